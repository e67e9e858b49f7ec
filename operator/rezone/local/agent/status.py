"""From a pod's record to its status in the API, without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rezone.local.agent.records import ContainerRecord, Phase, PodRecord, now_text
from rezone.local.api import Json


def pod_status(pod: Json, record: PodRecord, *, host: str, final: bool) -> Json:
    """Return the status to write; `final` says that nothing of the pod will run again."""
    inits = pod["spec"].get("initContainers", [])
    containers = pod["spec"]["containers"]
    init_done = all(record.container(spec["name"]).succeeded for spec in inits)
    phase = _phase(pod, record, init_done=init_done, final=final)
    status: Json = {
        "phase": phase,
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "startTime": record.start_time,
        "conditions": _conditions(pod, record, phase, init_done=init_done),
        "containerStatuses": [_container_status(pod, record, spec) for spec in containers],
    }
    if inits:
        status["initContainerStatuses"] = [_container_status(pod, record, spec) for spec in inits]
    if record.address:
        status["podIP"] = record.address
        status["podIPs"] = [{"ip": record.address}]
    return status


def _phase(pod: Json, record: PodRecord, *, init_done: bool, final: bool) -> str:
    """Decide as a kubelet does: a container between two runs counts as stopped, not waiting."""
    known = [record.container(spec["name"]) for spec in pod["spec"]["containers"]]
    inits = [record.container(spec["name"]) for spec in pod["spec"].get("initContainers", [])]
    if final:
        return "Succeeded" if all(item.succeeded for item in [*inits, *known]) else "Failed"
    if not init_done:
        return "Pending"
    if any(item.phase is Phase.WAITING and not item.last for item in known):
        return "Pending"
    return "Running"


def _conditions(pod: Json, record: PodRecord, phase: str, *, init_done: bool) -> list[Json]:
    known = [record.container(spec["name"]) for spec in pod["spec"]["containers"]]
    present = {item["type"]: item for item in pod.get("status", {}).get("conditions", [])}
    unready = [item.name for item in known if not item.ready]
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates", [])]
    closed = [gate for gate in gates if present.get(gate, {}).get("status") != "True"]
    reason, message = "", ""
    if unready:
        reason = "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
        message = f"containers with unready status: [{' '.join(unready)}]"
    gate_reason = "ReadinessGatesNotReady" if closed and not unready else reason
    gate_message = f"readiness gates not open: {closed}" if closed and not unready else message
    wanted = [
        ("PodScheduled", True, "", ""),
        ("Initialized", init_done, "" if init_done else "ContainersNotInitialized", ""),
        ("ContainersReady", not unready, reason, message),
        ("Ready", not unready and not closed, gate_reason, gate_message),
    ]
    return [
        _condition(present.get(kind, {}), kind, good=good, reason=why, message=text)
        for kind, good, why, text in wanted
    ]


def _condition(
    present: Mapping[str, Any], kind: str, *, good: bool, reason: str, message: str
) -> Json:
    status = "True" if good else "False"
    changed = present.get("status") != status
    # Explicit nulls: a strategic merge would keep the old reason beside the new status.
    return {
        "type": kind,
        "status": status,
        "reason": reason or None,
        "message": message or None,
        "lastTransitionTime": now_text() if changed else present["lastTransitionTime"],
    }


def _container_status(pod: Json, record: PodRecord, spec: Mapping[str, Any]) -> Json:
    item = record.container(spec["name"])
    identity = f"rezone://{pod['metadata']['uid']}/{item.name}/{item.runs}" if item.runs else ""
    return {
        "name": item.name,
        "image": spec.get("image", ""),
        "imageID": spec.get("image", ""),
        "containerID": identity,
        "restartCount": item.restarts,
        "ready": item.ready or (item.succeeded and _is_init(pod, item)),
        "started": item.started,
        "state": _state(item),
        "lastState": {"terminated": item.last} if item.last else {},
    }


def _is_init(pod: Json, item: ContainerRecord) -> bool:
    inits: Sequence[Json] = pod["spec"].get("initContainers", [])
    return any(spec["name"] == item.name for spec in inits)


def _state(item: ContainerRecord) -> Json:
    if item.phase is Phase.RUNNING:
        return {"running": {"startedAt": item.started_at}}
    if item.phase is Phase.TERMINATED:
        return {"terminated": item.terminated_state()}
    waiting = {"reason": item.reason}
    return {"waiting": {**waiting, "message": item.message} if item.message else waiting}
