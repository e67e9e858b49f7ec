"""The time of a node: by its monotonic clock, and compared with those of the others.

A machine's time of day can be set: by a person, by NTP, by a host that was suspended. What a row or
a closed timestamp was given can never be taken back. So a node that gives times goes on by its
monotonic clock. It follows the time of day while that is within `offset_max_ms` of the time that it
has; one that was set further counts for nothing, until a majority of the nodes has such a time.

Who begins has nothing but the time of day. So nodes tell each other their times with each round of
leases, and each computes how far the others' are from its own. It gives times when a majority
agrees with it, itself included, as CockroachDB's nodes do (`--max-offset`). Those that have
agreed with others before, and run since, are asked first: their time rests on their monotonic
clocks. While there are such, nodes that have just begun have no say.

Where there are none, all nodes have just begun. Two that hear each other first may be wrong alike.
So a node's first agreement takes a majority of all nodes that it knows of: those that hold replicas
of its partitions (`shares_with`), and those heard. Nodes may be dead: after `FIRST_SECONDS` in
which a majority of those heard has its time, a node gives times all the same. Others are not told
that it has agreed, so it does not outvote nodes that start later.

When a majority of all times of day has been set alike, and stays so for `SETTLED_SECONDS`, that
time is taken: a suspended cluster wakes up so. From a truth it cannot be told.

Concurrency: channels call `heard`, the ticking thread `look`; a lock guards what they change. What
partitions ask is one attribute, or computed from some that are never changed together.
"""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from rezone.datanode.settings import Clock
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import NodeClock, NodeId

LOOK_SECONDS = 0.1
HEARD_SECONDS = 10.0
"""For so long it counts what a node has said of its time."""

FIRST_SECONDS = 10.0
"""A node that has just begun waits at most that long for a majority of the nodes it knows of.

Several leases (`lease_ms`) long: by then a new leader has connected to all that are there.
"""

SETTLED_SECONDS = 300.0
TROUBLE_SECONDS = 2.0
WELL_SECONDS = 10.0
"""After so long trouble is told of, and after so long without that it is over."""

_LOOKS: Final = 3
_BETWEEN_MICROS: Final = 1_000
"""A look at two clocks that took longer says little of how far they are apart."""


class Moment(NamedTuple):
    """A time of another node, as its distance from this one's monotonic clock; microseconds.

    It may be wrong by `error` either way. `wall` is the distance of its time of day.
    """

    time: int
    wall: int
    error: int
    agreed: bool
    at: float

    def is_near(self, time: int, most: int) -> bool:
        """Whether it may be no further away than that."""
        return abs(self.time - time) - self.error <= most


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a node's clock, for people; `off`: it gives no times, so it must not lead.

    Without `off` its time of day was set, and it goes on by the time it had.
    """

    text: str = ""
    off: bool = False


class CheckedClock:
    """The clock of one node, in place of its machine's.

    `alone` says whether nobody has to agree, because no row that this node gives a time to has to
    be on another node. It then gives times that nobody has compared (`is_compared`).
    `shares_with` returns the other nodes that a first agreement has to count, heard or not.
    `changed` is called, without any lock, when `gives` or `trouble` is another. It `gives` times
    when it `knows` the time and is not held back. `monotonic` is the machine's: it is asked some
    fifty times for each write.
    """

    def __init__(
        self,
        machine: Clock,
        offset_max_ms: int,
        *,
        alone: Callable[[], bool] = lambda: False,
        shares_with: Callable[[], Collection[NodeId]] = tuple,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._machine = machine
        self.monotonic = machine.monotonic
        self.offset_max = offset_max_ms * 1_000
        self._lock = threading.Lock()
        self._peers: dict[NodeId, Moment] = {}
        self._wall = self._look_at_wall(anyway=True) or 0
        self._base = self._wall
        self._highest = 0
        self._agreed = False
        self._near_since: float | None = None
        self._look_at = float("-inf")
        self._set_since: float | None = None
        self._found = Trouble()
        self._found_at = float("-inf")
        self._held_back = False
        self.knows = False
        self.gives = False
        self.is_off = False
        self.trouble = Trouble()
        self.alone, self.shares_with, self.changed = alone, shares_with, changed

    # --- what partitions ask ---------------------------------------------------------------------

    def micros(self) -> int:
        """Return the node's time in microseconds since 1970; right while `gives`."""
        return int(self.monotonic() * 1e6) + self._base

    @property
    def highest(self) -> int:
        """The latest time that it has ever been, also in lives before (`begin_above`)."""
        return max(self._highest, self.micros()) if self.gives else self._highest

    def begin_above(self, time: int) -> None:
        """Note which time it was in a life before."""
        self._highest = max(self._highest, time)

    def hold_back(self) -> None:
        """Give no times until `release`, though it knows the time."""
        self._held_back = True

    def release(self) -> None:
        """Give times again."""
        self._held_back = False
        self.look(self.monotonic(), at_once=True)

    def time(self) -> int:
        """Return the node's time as `micros` does; NotReadyError while the node does not know it.

        The look whether it does comes last: as soon as the node gives none it may take another.
        """
        micros = self.micros()
        self.require()
        return micros

    def known(self) -> int | None:
        """Return the node's time as `time` does; None while the node does not know it."""
        micros = self.micros()
        return micros if self.gives else None

    def require(self) -> None:
        """Raise NotReadyError while the node does not know the time."""
        if not self.gives:
            raise NotReadyError(f"the node's time is not known: {self.why_not}")

    @property
    def is_compared(self) -> bool:
        """Whether others have agreed with it: what others' clocks gave has an age here."""
        return self.gives and self._agreed

    def require_near(self, time: int) -> None:
        """Raise NotReadyError for a time of others that no node can have by now, were it well."""
        ahead = time - self.micros()
        if self.gives and ahead > 2 * self.offset_max:
            raise NotReadyError(f"a time that is {ahead / 1e6:.1f} s ahead is promised to nobody")

    @property
    def why_not(self) -> str:
        """Why it gives no times."""
        if self.is_off:
            return "it is not that of a majority"
        if self.knows:
            return "what it has told before is not known yet"
        return "too few others agree so far" if self._peers else "no other node has been heard"

    @property
    def offset_micros(self) -> int:
        """How far the time of day is from that of the others; from this node's while it has none.

        What the node's own time is off by counts too: the one that is more is told.
        """
        with self._lock:
            others = sorted(p.time for p in self._voters()) or [self._base]
            middle = others[len(others) // 2]
            return max(self._wall - middle, self._base - middle, key=abs)

    # --- what channels tell ----------------------------------------------------------------------

    def say(self, echo: int, held: int) -> NodeClock:
        """Return what another node is told; `echo` is the stamp that it is told back."""
        now = int(self._machine.monotonic() * 1e6)
        return NodeClock(
            time=now + self._base,
            wall=self._machine.micros(),
            agreed=self._agreed,
            stamp=now,
            echo=echo,
            held=held,
        )

    def heard(self, peer: NodeId, said: NodeClock) -> None:
        """Take what another node has said of its clock, if it was an answer."""
        if not said.echo:
            return
        at = self._machine.monotonic()
        now = int(at * 1e6)
        way = max(0, now - said.echo - said.held)
        then = now - way // 2
        moment = Moment(said.time - then, said.wall - then, way // 2, said.agreed, at)
        with self._lock:
            self._peers[peer] = moment
        self.look(at, at_once=True)

    # --- what follows ----------------------------------------------------------------------------

    def look(self, now: float, *, at_once: bool = False) -> None:
        """See what time it is, from time to time."""
        if now < self._look_at and not at_once:
            return
        with self._lock:
            self._look_at = now + LOOK_SECONDS
            before = self.gives, self.trouble
            wall = self._look_at_wall()
            self._wall = self._wall if wall is None else wall
            self._forget(now)
            self._follow()
            self._settle(now)
            self._decide(now)
            self._tell(now)
            news = (self.gives, self.trouble) != before
        if news:
            self.changed()

    def _look_at_wall(self, *, anyway: bool = False) -> int | None:
        """Return the distance of the time of day from the monotonic clock, if that can be told."""
        for _ in range(_LOOKS):
            before = int(self._machine.monotonic() * 1e6)
            wall = self._machine.micros()
            between = int(self._machine.monotonic() * 1e6) - before
            if between <= _BETWEEN_MICROS or anyway:
                return wall - before - between // 2
        return None

    def _forget(self, now: float) -> None:
        for peer, moment in list(self._peers.items()):
            if now - moment.at > HEARD_SECONDS:
                del self._peers[peer]

    def _voters(self) -> list[Moment]:
        """Return the others whose times count."""
        others = list(self._peers.values())
        agreed = [moment for moment in others if moment.agreed]
        return agreed if agreed or self._agreed else others

    def _is_own(self) -> bool:
        """Whether this node's time is that of a majority, itself included."""
        voters = self._voters()
        near = 1 + sum(moment.is_near(self._base, self.offset_max) for moment in voters)
        return 2 * near > 1 + len(voters)

    def _follow(self) -> None:
        """Go by the time of day, while that is the time of a majority, or no times are given."""
        if abs(self._wall - self._base) <= _BETWEEN_MICROS:
            return
        if not self.gives:
            self._take(self._wall)
            return
        near = [moment.is_near(self._wall, self.offset_max) for moment in self._voters()]
        if self._is_own():
            near.append(abs(self._wall - self._base) <= self.offset_max)
        if 2 * sum(near) > len(near):
            self._take(self._wall)

    def _settle(self, now: float) -> None:
        """Take a time of day that a majority of all has had for long."""
        walls = [moment.wall for moment in self._peers.values()]
        near = 1 + sum(abs(wall - self._wall) <= self.offset_max for wall in walls)
        is_set = abs(self._wall - self._base) > self.offset_max
        if not is_set or 2 * near <= 1 + len(walls) or not (walls or self.alone()):
            self._set_since = None
        elif self._set_since is None:
            self._set_since = now
        elif now - self._set_since >= SETTLED_SECONDS:
            self._take(self._wall)
            self._agreed, self._set_since = bool(walls), None

    def _take(self, base: int) -> None:
        if base < self._base and self.gives:
            self._highest = max(self._highest, self.micros())
        self._base = base

    def _decide(self, now: float) -> None:
        """See whether the time is right, as far as anybody knows."""
        own = self._is_own()
        self._note_nearness(now, own=own)
        self._agreed = own and (self._agreed or self._agrees_first())
        self.is_off = not own
        self.knows = own and (self._agreed or self._has_waited(now) or self.alone())
        gives = self.knows and not self._held_back
        if self.gives and not gives:
            self._highest = max(self._highest, self.micros())
        self.gives = gives

    def _agrees_first(self) -> bool:
        """Whether those that have agreed have this time, or most nodes that this one knows of."""
        heard = self._peers
        if any(moment.agreed for moment in heard.values()):
            return True  # they were asked already, and nobody else
        near = 1 + sum(moment.is_near(self._base, self.offset_max) for moment in heard.values())
        return bool(heard) and 2 * near > 1 + len(heard.keys() | set(self.shares_with()))

    def _note_nearness(self, now: float, *, own: bool) -> None:
        """Note since when most of those heard have this node's time.

        One that knows it already, because it was alone, need not wait when it no longer is.
        """
        if not own:
            self._near_since = None
        elif self._peers and self._near_since is None:
            self._near_since = float("-inf") if self.knows else now

    def _has_waited(self, now: float) -> bool:
        """Whether a majority of those heard is enough, because the others do not come."""
        return self._near_since is not None and now - self._near_since >= FIRST_SECONDS

    def _tell(self, now: float) -> None:
        """Say what is wrong when it has been so for a while, not each time that a clock is set."""
        found = self._trouble()
        if (found.off, bool(found.text)) != (self._found.off, bool(self._found.text)):
            self._found, self._found_at = found, now
        patience = TROUBLE_SECONDS if self._found.text else WELL_SECONDS
        if self._found != self.trouble and now - self._found_at >= patience:
            self.trouble = self._found

    def _trouble(self) -> Trouble:
        if self.is_off:
            times = sorted(moment.time for moment in self._voters())
            off = _told(self._base - times[len(times) // 2])
            return Trouble(f"its clock is {off} those of others; it gives no times", off=True)
        if abs(self._wall - self._base) > self.offset_max:
            was = _told(self._wall - self._base)
            return Trouble(f"its clock was set {was} the time it goes by")
        return Trouble()


def _told(micros: int) -> str:
    return f"{abs(micros) / 1e6:.1f} s {'ahead of' if micros > 0 else 'behind'}"


class Exchange:
    """One end of a channel, on which two nodes tell each other their times.

    Each tells back the other's last stamp and how long it had it: so both know how long what they
    hear was on the way, at most. One thread says, one hears.
    """

    def __init__(self, clock: CheckedClock, peer: NodeId) -> None:
        self._clock = clock
        self._peer = peer
        self._last: tuple[int, float] | None = None

    def say(self) -> NodeClock:
        """Return what is sent now."""
        if self._last is None:
            return self._clock.say(0, 0)
        stamp, at = self._last
        return self._clock.say(stamp, int((self._clock.monotonic() - at) * 1e6))

    def heard(self, said: NodeClock | None) -> None:
        """Take what has come; None of a node that does not know this."""
        if said is not None:
            self._last = said.stamp, self._clock.monotonic()
            self._clock.heard(self._peer, said)
