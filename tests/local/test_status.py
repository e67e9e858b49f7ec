"""A pod's status from what is known of its containers, and the addresses of pods."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from rezone.local.agent.addresses import Addresses
from rezone.local.agent.records import ContainerRecord, PodRecord, load_record
from rezone.local.agent.status import pod_status
from rezone.local.processes import ProcessId

POD: dict[str, Any] = {
    "metadata": {"uid": "u", "name": "p", "namespace": "n"},
    "spec": {"containers": [{"name": "a", "image": "i"}]},
}
PROCESS = ProcessId(2**22 + 1, "never")


def record_of(container: ContainerRecord) -> PodRecord:
    """Return the record of a pod with one container."""
    return PodRecord("u", "n", "p", "worker-1", "127.64.0.1", "t", {"a": container})


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition of a status."""
    found: dict[str, Any] = next(c for c in status["conditions"] if c["type"] == kind)
    return found


def test_running_and_ready() -> None:
    """Everything that waits for pods waits for this."""
    container = ContainerRecord("a")
    container.run(PROCESS)
    container.ready = container.started = True
    status = pod_status(POD, record_of(container), host="127.60.0.1", final=False)
    assert status["phase"] == "Running"
    assert condition(status, "Ready")["status"] == "True"
    assert status["podIPs"] == [{"ip": "127.64.0.1"}]


def test_readiness_gate_holds_ready_back() -> None:
    """The operator's gate "caught up" must hold a pod back although its probe succeeds."""
    pod = {**POD, "spec": {**POD["spec"], "readinessGates": [{"conditionType": "x/y"}]}}
    container = ContainerRecord("a")
    container.run(PROCESS)
    container.ready = True
    status = pod_status(pod, record_of(container), host="h", final=False)
    assert condition(status, "ContainersReady")["status"] == "True"
    assert condition(status, "Ready")["status"] == "False"
    pod["status"] = {"conditions": [{"type": "x/y", "status": "True"}]}
    opened = pod_status(pod, record_of(container), host="h", final=False)
    assert condition(opened, "Ready")["status"] == "True"


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed")])
def test_final_phase_follows_exit_codes(code: int, phase: str) -> None:
    """Jobs and the Spark runner read success and failure from the phase alone."""
    container = ContainerRecord("a")
    container.run(PROCESS)
    container.terminate(code)
    status = pod_status(POD, record_of(container), host="h", final=True)
    assert status["phase"] == phase
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code


def test_between_two_runs_the_pod_is_running() -> None:
    """A crash loop reported as Pending would count as a pod that never started."""
    container = ContainerRecord("a")
    container.run(PROCESS)
    container.terminate(1)
    container.prepare_restart("CrashLoopBackOff", "m")
    status = pod_status(POD, record_of(container), host="h", final=False)
    assert status["phase"] == "Running"
    written = status["containerStatuses"][0]
    assert written["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert written["lastState"]["terminated"]["exitCode"] == 1
    assert written["restartCount"] == 1


def test_transition_time_moves_with_the_status_only() -> None:
    """A time that moves on each write would make every write an event for all watchers."""
    container = ContainerRecord("a")
    first = condition(pod_status(POD, record_of(container), host="h", final=False), "Ready")
    old = {**first, "lastTransitionTime": "2020-01-01T00:00:00Z"}
    pod = {**POD, "status": {"conditions": [old]}}
    second = condition(pod_status(pod, record_of(container), host="h", final=False), "Ready")
    assert second["lastTransitionTime"] == "2020-01-01T00:00:00Z"


def test_record_survives_the_agent(tmp_path: Path) -> None:
    """Without the record a restarted agent would start a second process beside the first."""
    container = ContainerRecord("a")
    container.run(PROCESS)
    record = record_of(container)
    record.save(tmp_path)
    assert load_record(tmp_path) == record
    (tmp_path / "record.json").write_text("{")
    assert load_record(tmp_path) is None


def test_pods_may_have_addresses_of_another_network(tmp_path: Path) -> None:
    """kube-apiserver's proxy goes to none on loopback: nothing that needs it could be tested."""
    addresses = Addresses(tmp_path / "addresses.json", IPv4Network("10.64.0.0/30"))

    assert {addresses.for_pod(uid, "p") for uid in "ab"} == {"10.64.0.1", "10.64.0.2"}
    assert addresses.for_node("n").startswith("127.60.")


def test_addresses_are_kept_and_never_shared(tmp_path: Path) -> None:
    """Two data nodes with one address would answer for each other."""
    path = tmp_path / "addresses.json"
    addresses = Addresses(path)
    first = addresses.for_pod("uid-1", "n/p")
    second = addresses.for_pod("uid-2", "n/p")
    assert first != second
    assert first.startswith("127.")
    again = Addresses(path)
    assert again.for_pod("uid-1", "n/p") == first
    again.release_pod("uid-1")
    assert again.for_pod("uid-3", "n/p") == first
    again.keep_pods({"uid-2"})
    assert again.for_pod("uid-4", "n/p") == first
