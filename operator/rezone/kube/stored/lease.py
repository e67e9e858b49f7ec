"""Leader election by a Lease, whose count of acquisitions is the coordinator epoch.

One process leads while it renews the Lease by compare-and-set. The others wait until they have
seen it unchanged for its whole duration, measured by their own monotonic clocks, so wall clocks
need not agree; they look again at that very moment. The leader gives up earlier: when its last
successful renewal was *sent* longer ago than the renew deadline. The margin between the two is
what keeps two from leading at once; a process that was frozen for longer may still act on what it
believed, and therefore every acquisition raises leaseTransitions, and data nodes refuse a lower
epoch (the Lease alone does not fence). A re-acquisition by the same identity raises it too.

A leader whose machine is lost is not waited for that long: the Lease says where it answers, and who
waits takes it over when the Lease has not been renewed in time and nobody answers there
(docs/decisions/0521). Where one that is alive is taken for lost, data nodes refuse its epoch.

Losing is final: `on_lost` is called at once, `run` returns, and the object leads never again. The
process is to end.

A Lease that goes back in time, or is gone, says that the API server's store was restored from a
backup; one that a person has deleted is taken for that. It is a loss, too, also for those who wait:
their watches go on at versions that are yet to come, and would tell them nothing
(docs/operate/failures/restore.md). Only a process that has never seen the Lease creates it.

Concurrency: one `run` per object; `stop` may be called from any task of the same loop.
"""

import asyncio
import contextlib
import math
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import (
    ConflictWriteError,
    KubeError,
    MissingError,
    UnknownOutcomeError,
)
from rezone.kube.api.kinds import Kind, Lease, Manifest

LEASE_NAME = "rezone-operator"
ADDRESS_ANNOTATION = "rezone.dev/address"
"""Of a Lease: where its holder answers those who wait."""
_POD_END = "_"  # in no pod's name

log = structlog.get_logger(__name__)


class Clock(Protocol):
    """Time as the election needs it."""

    def now(self) -> datetime:
        """Return the wall clock in UTC; only written, never compared."""

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return after this many seconds."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Return the wall clock in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since some start."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class ElectionSettings:
    """The election's times; they must satisfy renew interval < renew deadline < duration.

    A leader that dies without a word is succeeded after the duration and one retry interval at
    the latest, counted from its last renewal; where it can be asked whether it is there, once it
    has not renewed for `suspect_after_seconds` and does not answer. The API server takes a write
    per renew interval, and a read per retry interval from each process that waits.
    """

    lease_duration_seconds: int = 8
    renew_deadline_seconds: float = 5.0
    renew_interval_seconds: float = 1.0
    retry_interval_seconds: float = 0.5
    suspect_after_seconds: float = 1.25
    stop_grace_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Refuse times that would let two processes lead, or one lose by a single hiccup."""
        margin = self.lease_duration_seconds - self.renew_deadline_seconds
        if margin < 0.2 * self.lease_duration_seconds:
            raise ValueError("the renew deadline must end a fifth of the duration before it")
        if self.renew_deadline_seconds < 2 * self.renew_interval_seconds:
            raise ValueError("the renew deadline must leave room for two renewals")
        if self.suspect_after_seconds <= self.renew_interval_seconds:
            raise ValueError("a leader that renews in time must not be suspected")


def new_identity() -> str:
    """Return the pod's name with a random part: a restarted process is another holder."""
    host = os.environ.get("POD_NAME") or socket.gethostname()
    return f"{host}{_POD_END}{secrets.token_hex(4)}"


class WentBackError(Exception):
    """Raised inside: the Lease that this process has seen before is gone, or older than it was."""


OnStarted = Callable[[int], Awaitable[None]]
OnLost = Callable[[], None]
Answers = Callable[[str], Awaitable[bool]]
"""Whether somebody answers at an address; true where that cannot be asked."""


async def _nobody_is_asked(_address: str) -> bool:
    return True


class LeaderElection:
    """Competes for one Lease; see the module for the rules.

    `epoch_floor` is asked when the Lease does not exist: the highest epoch ever used as far as is
    known otherwise (`routes.highest_coordinator_epoch`), so that a deleted Lease does not make
    epochs fall. `pod` is the name of the pod that this process runs in, empty outside of one:
    a Lease of the same pod's earlier process is taken at once, because a kubelet starts a
    container again only when the one before has ended. `address` is where this process answers,
    `answers` asks whether another one does: without it nobody is taken for lost early.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        identity: str,
        pod: str = "",
        address: str = "",
        answers: Answers = _nobody_is_asked,
        name: str = LEASE_NAME,
        settings: ElectionSettings | None = None,
        clock: Clock | None = None,
        epoch_floor: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._pod = pod
        self._address = address
        self._answers = answers
        self._settings = settings or ElectionSettings()
        self._clock: Clock = clock or SystemClock()
        self._epoch_floor = epoch_floor
        self._stopping = asyncio.Event()
        self._used = False
        self._lease: Manifest = {}
        self._renewed_at = 0.0
        self._epoch = 0
        self._attempted_epoch = 0
        self._epoch_used = 0
        self._observed: tuple[str, float] = ("0", 0.0)
        self._holder_address = ""
        self._renewals: set[str] = set()
        """The times of the last renewal that was answered, and of those sent since."""
        self._free_at = 0.0

    @property
    def leading(self) -> bool:
        """Whether this process may act just now; asked by the clock, not remembered."""
        return self._epoch > 0 and self._seconds_left() > 0

    def stop(self, *, above: int = 0) -> None:
        """Ask `run` to end the work, release the Lease and return.

        The next epoch is higher than `above`: data nodes know that one from another coordinator.
        """
        self._epoch_used = max(self._epoch_used, above)
        self._stopping.set()

    async def run(self, on_started: OnStarted, on_lost: OnLost) -> None:
        """Lead once: wait for the Lease, run `on_started(epoch)` beside renewing, until the end.

        `on_started` is cancelled when leading ends; that it returns early ends nothing. Ends by
        loss (`on_lost` is called first, before anything is awaited; also for one that waits when
        the Lease goes back in time), by `stop` or cancellation
        (the work is ended, then the Lease released), or by an error of `on_started`, which is
        raised after a release.
        """
        if self._used:
            raise RuntimeError("an election leads once: make a new one")
        self._used = True
        try:
            epoch = await self._acquire()
        except WentBackError as error:
            log.error("the Lease has gone back in time", error=str(error))  # noqa: TRY400
            on_lost()
            return
        if epoch is None:
            return
        log.info("leading", epoch=epoch, identity=self._identity)
        work = asyncio.ensure_future(on_started(epoch))
        try:
            kept = await self._renew_until_end(work)
        except asyncio.CancelledError:
            await self._leave(work)
            raise
        if not kept:
            self._epoch = 0
            log.error("lost leadership", epoch=epoch, identity=self._identity)
            on_lost()
            work.cancel()
            await asyncio.wait({work}, timeout=self._settings.stop_grace_seconds)
            return
        await self._leave(work)
        if work.done() and not work.cancelled():
            work.result()

    # --- acquiring ---------------------------------------------------------------------------

    async def _acquire(self) -> int | None:
        """Return the new epoch, None when stopped before."""
        while not self._stopping.is_set():
            sent_at = self._clock.monotonic()
            try:
                lease = await self._try_acquire()
            except KubeError as error:
                log.warning("acquiring lease failed", error=str(error))
                lease = None
            if lease is not None:
                self._lease = lease
                self._renewed_at = sent_at
                self._renewals = {lease["spec"]["renewTime"]}
                self._epoch = int(lease["spec"]["leaseTransitions"])
                return self._epoch
            if not await self._is_holder_lost():
                await self._pause(self._look_again_in())
        return None

    def _look_again_in(self) -> float:
        """Return after how many seconds to look again: as soon as the Lease can be taken."""
        now = self._clock.monotonic()
        times = [self._free_at]
        if self._holder_address:
            times.append(self._observed[1] + self._settings.suspect_after_seconds)
        return min([self._settings.retry_interval_seconds, *(at - now for at in times if at > now)])

    async def _is_holder_lost(self) -> bool:
        """Return whether the holder is found to be lost: its Lease is free from now on."""
        version, since = self._observed
        silent_seconds = self._clock.monotonic() - since
        if not self._holder_address or silent_seconds == math.inf:
            return False
        if silent_seconds < self._settings.suspect_after_seconds:
            return False
        if await self._answers(self._holder_address):
            return False
        log.warning("the leader does not answer", address=self._holder_address)
        # As if this version had been seen for ever: any renewal is another one.
        self._observed = (version, -math.inf)
        return True

    async def _try_acquire(self) -> Manifest | None:
        found = await self._kube.find(Lease, self._namespace, self._name)
        if found is None and self._observed[0] != "0":
            # Its leader may still believe in it: who creates it at once would be the second one.
            raise WentBackError(f"it is gone, after version {self._observed[0]}")
        if found is None:
            floor = await self._epoch_floor() if self._epoch_floor else 0
            return await self._write(self._kube.create, self._held({}, floor + 1))
        spec = found.get("spec") or {}
        transitions = int(spec.get("leaseTransitions") or 0)
        # An unknown outcome of ours: this identity is only ours, so the write has landed.
        if self._is_own(spec) and transitions == self._attempted_epoch:
            return await self._write(self._kube.replace, self._held(found, transitions))
        if not self._is_free(found):
            return None
        return await self._write(self._kube.replace, self._held(found, transitions + 1))

    async def _write(
        self,
        call: Callable[[Kind, Manifest], Awaitable[Manifest]],
        manifest: Manifest,
    ) -> Manifest | None:
        """Write, remembering what was tried; None when somebody else was first."""
        self._attempted_epoch = int(manifest["spec"]["leaseTransitions"])
        try:
            return await call(Lease, manifest)
        except ConflictWriteError:
            self._attempted_epoch = 0
            return None

    def _is_own(self, spec: Manifest) -> bool:
        return spec.get("holderIdentity") == self._identity and self._attempted_epoch > 0

    def _is_free(self, found: Manifest) -> bool:
        """Return whether nobody holds the Lease who can still be alive, as far as can be told."""
        spec = found.get("spec") or {}
        now = self._clock.monotonic()
        version = str(found["metadata"]["resourceVersion"])
        if int(version) < int(self._observed[0]):
            raise WentBackError(f"version {version} after {self._observed[0]}")
        if version != self._observed[0]:
            self._observed = (version, now)
        annotations = found["metadata"].get("annotations") or {}
        self._holder_address = str(annotations.get(ADDRESS_ANNOTATION) or "")
        holder = spec.get("holderIdentity") or ""
        if not holder or (self._pod and holder.startswith(f"{self._pod}{_POD_END}")):
            return True
        duration = spec.get("leaseDurationSeconds") or self._settings.lease_duration_seconds
        self._free_at = self._observed[1] + float(duration)
        return now >= self._free_at

    def _held(self, found: Manifest, epoch: int) -> Manifest:
        now = _micro_time(self._clock.now())
        held = self._manifest(
            found,
            {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": self._settings.lease_duration_seconds,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": epoch,
            },
        )
        # Also without one: that of the holder before would be asked for this one.
        annotations = {**(held["metadata"].get("annotations") or {})}
        held["metadata"]["annotations"] = annotations | {ADDRESS_ANNOTATION: self._address}
        return held

    def _manifest(self, found: Manifest, spec: Manifest) -> Manifest:
        metadata = dict(found.get("metadata") or {})
        metadata |= {"name": self._name, "namespace": self._namespace}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {**(found.get("spec") or {}), **spec},
        }

    # --- holding -----------------------------------------------------------------------------

    async def _renew_until_end(self, work: asyncio.Future[None]) -> bool:
        """Renew until stopped or the work fails (True), or the Lease is lost (False)."""
        while True:
            # Never past the deadline: loss is told at once, not at the next turn.
            interval = self._settings.renew_interval_seconds
            await self._pause(min(interval, self._seconds_left()), work)
            if self._stopping.is_set() or _failed(work):
                return True
            sent_at = self._clock.monotonic()
            left = self._seconds_left()
            if left <= 0:
                return False
            try:
                renewed = await self._within(left, self._renew())
            except KubeError as error:
                log.warning("renewing lease failed", error=str(error))
                continue
            if not renewed:
                return False
            self._renewed_at = sent_at

    def _seconds_left(self) -> float:
        deadline = self._renewed_at + self._settings.renew_deadline_seconds
        return deadline - self._clock.monotonic()

    async def _renew(self) -> bool:
        """Return whether the Lease is renewed; False when it is another's or gone."""
        try:
            await self._replace(self._lease)
        except MissingError:
            return False
        except ConflictWriteError:
            pass
        else:
            return True
        # Either an unknown renewal of ours landed, somebody put a label on, or it was taken.
        found = await self._kube.find(Lease, self._namespace, self._name)
        if found is None or not self._still_ours(found):
            return False
        try:
            await self._replace(found)
        except ConflictWriteError as error:
            raise UnknownOutcomeError("the lease changes under the renewal") from error
        except MissingError:
            return False
        return True

    def _still_ours(self, found: Manifest) -> bool:
        spec = found.get("spec") or {}
        same = found["metadata"]["uid"] == self._lease["metadata"]["uid"]
        holder = spec.get("holderIdentity") == self._identity
        if not (same and holder and spec.get("leaseTransitions") == self._epoch):
            return False
        if spec.get("renewTime") not in self._renewals:
            log.error("the Lease has gone back in time", renewed=spec.get("renewTime"))
            return False
        return True

    async def _replace(self, found: Manifest) -> None:
        """Renew on top of what was found."""
        renewal = self._manifest(found, {"renewTime": _micro_time(self._clock.now())})
        self._renewals.add(renewal["spec"]["renewTime"])
        self._lease = await self._kube.replace(Lease, renewal)
        self._renewals = {renewal["spec"]["renewTime"]}

    async def _within(self, seconds: float, call: Coroutine[Any, Any, bool]) -> bool:
        """Return what the call returns, or False when the time is over first."""
        request = asyncio.ensure_future(call)
        alarm = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({request, alarm}, return_when=asyncio.FIRST_COMPLETED)
            return request.result() if request.done() else False
        finally:
            request.cancel()
            alarm.cancel()

    # --- leaving -----------------------------------------------------------------------------

    async def _leave(self, work: asyncio.Future[None]) -> None:
        """End the work, then release; without its end the Lease is left to expire."""
        self._epoch = 0
        work.cancel()
        await asyncio.wait({work}, timeout=self._settings.stop_grace_seconds)
        if not work.done():
            log.error("work did not end, lease not released", identity=self._identity)
            return
        spec: Manifest = {"holderIdentity": "", "renewTime": _micro_time(self._clock.now())}
        if self._epoch_used:
            held = int(self._lease["spec"]["leaseTransitions"])
            spec["leaseTransitions"] = max(held, self._epoch_used)
        # A failed release only makes the next leader wait.
        with contextlib.suppress(KubeError):
            await self._kube.replace(Lease, self._manifest(self._lease, spec))

    async def _pause(self, seconds: float, work: asyncio.Future[None] | None = None) -> None:
        """Sleep until the time is over, `stop` is called or the work fails."""
        waits: set[asyncio.Future[Any]] = {
            asyncio.ensure_future(self._clock.sleep(seconds)),
            asyncio.ensure_future(self._stopping.wait()),
        }
        own = set(waits)
        if work is not None and not work.done():
            waits.add(work)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in own:
                each.cancel()


def _failed(work: asyncio.Future[None]) -> bool:
    return work.done() and (work.cancelled() or work.exception() is not None)


def _micro_time(value: datetime) -> str:
    # MicroTime refuses any number of digits but six.
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
