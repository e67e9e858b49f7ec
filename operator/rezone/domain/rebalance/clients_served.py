"""How busy data nodes were with clients while copies were made. Pure.

The sums are in the task's status, so that the next operator goes on with them. One look is taken
with each sample of the copy's rate (`estimates`), and the busiest data node counts: it is the one
whose clients a copy may cost something.
"""

from collections.abc import Iterable

from rezone.domain.model.world import NodeView
from rezone.resources.task import ClientsServed, TaskProgress


def busiest(nodes: Iterable[NodeView]) -> int | None:
    """Return for what percent of the time the busiest data node serves; None while unknown."""
    known = (each.served_percent for each in nodes)
    return max((percent for percent in known if percent is not None), default=None)


def with_clients_served(
    new: TaskProgress, old: TaskProgress, served_percent: int | None
) -> TaskProgress:
    """Return the progress with one look more, if it has a sample of the rate more than before."""
    known = old.clients_served
    if served_percent is not None and new.samples and new.samples[-1:] != old.samples[-1:]:
        before = known or ClientsServed(samples=0, total_percent=0, max_percent=0)
        known = ClientsServed(
            samples=before.samples + 1,
            total_percent=before.total_percent + served_percent,
            max_percent=max(before.max_percent, served_percent),
        )
    return new.model_copy(update={"clients_served": known})
