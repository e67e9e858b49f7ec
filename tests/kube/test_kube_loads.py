"""Rates that data nodes are asked for through the API server: bounded, unknown without rights."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rezone.kube.api.errors import ForbiddenError
from rezone.kube.jobs import loads
from rezone.kube.jobs.loads import RateReader, load_of
from rezone.resources.zone import DistributionZone
from rezone.wire.messages.loads import ClientLoad, RequestLoad
from standing_clock import StandingClock

pytestmark = pytest.mark.proves("OB-04")


def zone_of(*pods: str) -> DistributionZone:
    """Return a zone with these data nodes."""
    nodes = [{"id": i, "podName": pod, "state": "Active"} for i, pod in enumerate(pods)]
    return DistributionZone.parse(
        {
            "metadata": {"name": "z", "namespace": "shop"},
            "spec": {"partitions": 1, "replicas": 1, "dataNodes": {"count": len(pods)}},
            "status": {"dataNodes": nodes},
        }
    )


@dataclass
class Answer:
    """A page's beginning."""

    content: bytes
    complete: bool = True


@dataclass
class FakeKube:
    """Answers for pods by their names: with bytes, an error, or never."""

    answers: dict[str, bytes | Exception | None]
    asked: list[str] = field(default_factory=list)
    sizes: set[int] = field(default_factory=set)

    async def text(self, _kind: object, _place: str, name: str, page: str, **bounds: Any) -> Answer:
        """Answer as the API server's proxy does."""
        assert page == "proxy/load"
        self.asked.append(name)
        self.sizes.add(bounds["bytes_max"])
        found = self.answers[name.partition(":")[0]]
        if found is None:
            await asyncio.Event().wait()
            raise AssertionError
        if isinstance(found, Exception):
            raise found
        return Answer(found)


def counted(seconds: float, reads: int) -> bytes:
    """Return a page /load."""
    load = ClientLoad(
        process_id="1",
        seconds=seconds,
        bounds_micros=(1000,),
        reads=RequestLoad(ok=(reads, 0)),
        writes=RequestLoad(ok=(0, 0)),
    )
    return msgspec.json.encode(load)


async def test_rates_are_since_the_last_look() -> None:
    """A live view would show the mean since its begin, or nothing."""
    kube, clock = FakeKube({"a": counted(10, 0), "b": counted(50, 0)}), StandingClock(1000.0)
    reader = RateReader(kube, clock)  # type: ignore[arg-type]  # a fake
    zone = zone_of("a", "b")
    assert (await reader.rates(zone, wait=False)).zone is None
    kube.answers = {"a": counted(12, 100), "b": counted(52, 20)}
    clock.now += 2
    found = await reader.rates(zone, wait=False)
    assert found.unknown == ""
    assert {node: rates.reads.ok_per_second for node, rates in found.nodes.items()} == {
        0: 50,
        1: 10,
    }
    assert found.zone is not None
    assert found.zone.reads.ok_per_second == 60
    assert kube.sizes == {loads.ANSWER_BYTES_MAX}
    assert kube.asked[0] == "a:7401"


async def test_without_the_right_rates_are_unknown_and_few_are_asked() -> None:
    """Who may not use the proxy would get an error for a zone, or hundreds of refusals."""
    pods = [f"p{i}" for i in range(100)]
    kube = FakeKube(dict.fromkeys(pods, ForbiddenError("pods/proxy is forbidden")))
    found = await RateReader(kube, StandingClock(1000.0)).rates(zone_of(*pods), wait=True)  # type: ignore[arg-type]
    assert found.zone is None
    assert "pods/proxy is forbidden" in found.unknown
    assert len(kube.asked) <= loads.ASKED_AT_A_TIME_MAX


async def test_one_that_hangs_or_lies_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One data node without an answer would stop or slow the view of all others."""
    monkeypatch.setattr(loads, "ASK_SECONDS_MAX", 0.2)
    answers: dict[str, bytes | Exception | None] = {
        "a": counted(10, 0),
        "hangs": None,
        "lies": b"{" * 20_000,
        "refuses": ForbiddenError("as if the API server had refused"),
    }
    kube, clock = FakeKube(answers), StandingClock(1000.0)
    reader, zone = RateReader(kube, clock), zone_of(*answers)  # type: ignore[arg-type]
    first = await reader.rates(zone, wait=False)
    assert "data node" in first.unknown
    kube.asked.clear()
    clock.now += 2
    kube.answers["a"] = counted(12, 100)
    assert set((await reader.rates(zone, wait=False)).nodes) == {0}
    assert kube.asked == ["a:7401"]
    clock.now += loads.LEFT_ALONE_SECONDS
    await reader.rates(zone, wait=False)
    assert sorted(kube.asked) == [
        "a:7401",
        "a:7401",
        "hangs:7401",
        "lies:7401",
        "refuses:7401",
    ]


async def test_a_pod_s_name_leads_nowhere_else() -> None:
    """Who may write a zone's status would make others read any address of the API server."""
    kube = FakeKube({})
    zone = zone_of("../../secrets/x", "a?b", "A", "a/b", "a%2f")
    assert (await RateReader(kube, StandingClock(1000.0)).rates(zone, wait=True)).zone is None  # type: ignore[arg-type]
    assert kube.asked == []


@given(content=st.binary(max_size=200) | st.just(b"[" * 100_000))
def test_whatever_a_data_node_answers_is_read_or_refused(content: bytes) -> None:
    """An answer could end the console's page with an error that nobody expects."""
    with contextlib.suppress(ValueError):
        assert isinstance(load_of(content), ClientLoad)


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": -1.0},
        {"seconds": 1e300},
        {"copied_bytes": -5},
        {"copied_bytes": 1 << 70},
        {"bounds_micros": [1] * 1000},
        {"reads": {"ok": [-1, 2]}},
        {"process_id": "x" * 1000},
        {"process_id": None},
    ],
)
def test_numbers_out_of_range_are_refused(change: dict[str, Any]) -> None:
    """A number that nobody sends would overflow, or show a rate below zero."""
    body = {**msgspec.json.decode(counted(1, 1)), **change}
    with pytest.raises(ValueError, match="cannot be read"):
        load_of(msgspec.json.encode(body) if change.get("copied_bytes") != 1 << 70 else b"{}")
