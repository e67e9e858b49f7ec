"""A topology as text, as the status of a zone and of a task holds it.

Usually "0,1,2;1,2,3": partition 0 on nodes 0, 1 and 2, partition 1 on nodes 1, 2 and 3; the first
of each is the preferred leader. Where that is longer than 64 KiB, nobody reads it and up to five of
them must fit into one object: then "base36x3:0rs0rt0ru;0rt..." has the same ids as numbers of base
36, all of them with the same count of digits, which stands before the colon, and without commas.

A topology has one text only, because texts are compared and hashed.
"""

import functools
from typing import Final

from rezone.wire.codec.keyspace import PARTITIONS_MAX
from rezone.wire.messages import NodeId

Topology = tuple[tuple[NodeId, ...], ...]
"""For each partition of a layout, by index, its data nodes; the first is the preferred leader."""

REPLICAS_MAX: Final = 7
NODE_ID_MAX: Final = 2**31 - 1
TEXT_LENGTH_MAX: Final = 320_000  # resources.model.CompactText
DECIMAL_LENGTH_MAX: Final = 1 << 16
PARSED_TEXTS_MAX: Final = 128
"""How many texts are remembered: each pass reads the same ones again."""

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_DENSE = "base36x"


class TopologyError(ValueError):
    """A topology, or its compact text, that no zone can have; the message names the partition."""


def check_topology(topology: Topology) -> None:
    """Raise TopologyError unless the topology is within all bounds.

    Bounds: 1 to 16,384 partitions, 1 to 7 replicas each, node ids from 0 to 2**31 - 1, no node
    twice in a partition.
    """
    if not 1 <= len(topology) <= PARTITIONS_MAX:
        raise TopologyError(f"a topology has 1 to {PARTITIONS_MAX} partitions, not {len(topology)}")
    for partition, nodes in enumerate(topology):
        if not 1 <= len(nodes) <= REPLICAS_MAX:
            raise TopologyError(
                f"partition {partition} has {len(nodes)} replicas, not 1 to {REPLICAS_MAX}"
            )
        if len(set(nodes)) != len(nodes):
            raise TopologyError(f"partition {partition} names a node twice: {list(nodes)}")
        if not (min(nodes) >= 0 and max(nodes) <= NODE_ID_MAX):
            wrong = next(node for node in nodes if not 0 <= node <= NODE_ID_MAX)
            raise TopologyError(f"partition {partition}: node id {wrong} is not 0 to {NODE_ID_MAX}")


def compact(topology: Topology) -> str:
    """Return the compact text; equal topologies have equal texts. Raises TopologyError."""
    check_topology(topology)
    text = ";".join([",".join(map(str, nodes)) for nodes in topology])
    if len(text) > DECIMAL_LENGTH_MAX:
        text = _dense(topology)
    if len(text) > TEXT_LENGTH_MAX:
        raise TopologyError(
            f"the topology's text has {len(text)} characters, {TEXT_LENGTH_MAX} are the most: "
            "use fewer partitions or replicas"
        )
    return text


def _dense(topology: Topology) -> str:
    ids = {node for nodes in topology for node in nodes}
    width = len(_base36(max(ids)))
    words = {node: _base36(node).rjust(width, "0") for node in ids}
    return f"{_DENSE}{width}:" + ";".join(["".join([words[n] for n in row]) for row in topology])


def _base36(number: int) -> str:
    digits = _DIGITS[number % 36]
    while number := number // 36:
        digits = _DIGITS[number % 36] + digits
    return digits


@functools.lru_cache(maxsize=PARSED_TEXTS_MAX)
def parse(text: str) -> Topology:
    """Return the topology of a compact text; exactly what `compact` writes is accepted.

    Raises TopologyError, which names the partition and its text where one is to blame.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise TopologyError(f"the text has {len(text)} characters, {TEXT_LENGTH_MAX} are the most")
    if text.startswith(_DENSE):
        topology = _parse_dense(text)
    else:
        topology = tuple(
            [_parse_nodes(partition, nodes) for partition, nodes in enumerate(text.split(";"))]
        )
    check_topology(topology)
    # One topology must have one text only: not the dense form of a small one, not a wider one.
    large = len(text) > DECIMAL_LENGTH_MAX or text.startswith(_DENSE)
    if large and compact(topology) != text:
        raise TopologyError("the text is not the one that is written for its topology")
    return topology


def _parse_dense(text: str) -> Topology:
    head, _, body = text.partition(":")
    width = head.removeprefix(_DENSE)
    if not (len(width) == 1 and width in "123456"):
        raise TopologyError(f"{head[:40]!r} does not say how many digits an id has")
    return tuple(
        [_parse_row(partition, row, int(width)) for partition, row in enumerate(body.split(";"))]
    )


def _parse_row(partition: int, row: str, width: int) -> tuple[int, ...]:
    if not row or len(row) % width or not row.isascii() or not row.isalnum():
        raise _not_a_list(partition, row)
    return tuple([int(row[at : at + width], 36) for at in range(0, len(row), width)])


def _parse_nodes(partition: int, text: str) -> tuple[int, ...]:
    nodes = []
    for word in text.split(","):
        # int() would also take "+1", " 1", "1_0" and "01".
        if not (word.isascii() and word.isdigit() and (word == "0" or word[0] != "0")):
            raise _not_a_list(partition, text)
        nodes.append(int(word))
    return tuple(nodes)


def _not_a_list(partition: int, text: str) -> TopologyError:
    shown = text if len(text) <= 40 else text[:40] + "..."  # noqa: PLR2004
    return TopologyError(f"partition {partition}: {shown!r} is not a list of node ids")
