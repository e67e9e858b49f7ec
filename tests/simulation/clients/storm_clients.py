"""Storms with clients of another kind beside those that each storm has."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from simulation.storms.copy_storm import CopyStorm
from simulation.storms.cut_over import CutOver


class StormClients(Protocol):
    """Clients that a storm steps, one after the other."""

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer."""
        ...

    def step(self, *, storm: bool) -> None:
        """Go on with what each does; in a storm begin more."""
        ...

    def close(self) -> None:
        """End them, whatever they wait for."""
        ...


C = TypeVar("C", bound=StormClients)


class CutOverOf(CutOver, Generic[C]):
    """A re-sharding under storms, with such clients over its seals. Who makes it sets `more`."""

    more: C

    def step(self) -> None:
        """Let a moment pass."""
        super().step()
        self.more.step(storm=self.loop.time() < self.storm_seconds)

    def close(self) -> None:
        """End the run."""
        self.more.close()
        super().close()

    def _over(self) -> bool:
        return super()._over() and self.more.idle


class CopyStormOf(CopyStorm, Generic[C]):
    """Copies in both forms under storms, with such clients. Who makes it sets `more`."""

    _more: C | None = None
    """None until the first replicas lead: passes are done before that."""

    @property
    def more(self) -> C:
        """The clients."""
        assert self._more is not None
        return self._more

    @more.setter
    def more(self, clients: C) -> None:
        self._more = clients

    def ask(self) -> None:
        """Write."""
        super().ask()
        self.more.step(storm=True)

    def coordinate(self) -> None:
        """Do a pass; when the storm is over clients go on in it."""
        super().coordinate()
        if self._more is not None and self.loop.time() >= self.storm_seconds:
            self._more.step(storm=False)

    def close(self) -> None:
        """End the run."""
        if self._more is not None:
            self._more.close()
        super().close()

    def _over(self) -> bool:
        return super()._over() and self._more is not None and self._more.idle
