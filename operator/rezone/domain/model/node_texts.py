"""What is told to people of several data nodes: the first few by name, how many the others are."""

from collections.abc import Mapping

from rezone.wire.messages import NodeId

_NODES_MAX = 5


def of_nodes(texts: Mapping[NodeId, str]) -> list[str]:
    """Return a text for each of the first nodes, in the mapping's order, and one for all others."""
    told = [f"data node {node}: {text}" for node, text in [*texts.items()][:_NODES_MAX]]
    if len(texts) > _NODES_MAX:
        told.append(f"and {len(texts) - _NODES_MAX} more")
    return told
