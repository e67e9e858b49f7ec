"""What is wrong with the clocks of a zone's data nodes, for people (NW-05)."""

from rezone.domain.model.node_texts import of_nodes
from rezone.domain.model.world import ZoneView


def clock_trouble(view: ZoneView) -> str:
    """Return which data nodes' clocks are wrong, and how; empty when none is."""
    return "; ".join(
        of_nodes({n: v.clock_text for n, v in sorted(view.nodes.items()) if v.clock_text})
    )
