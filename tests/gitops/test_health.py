"""Argo CD's health scripts and Flux's expressions, run by a real Lua and a real CEL evaluator."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from health_readers import (
    GITOPS,
    MODELS,
    SCRIPTS,
    Health,
    Json,
    argo_cases,
    argo_health,
    expressions,
    flux_cases,
    flux_status,
    load,
    objects,
)
from lupa import lua51

from rezone.domain.machines.statuses import Standing, with_conditions
from rezone.domain.observed.rollout import NOTHING, RolloutDecision
from rezone.domain.observed.volumes import Growth
from rezone.domain.zone.status import ZoneHealth, zone_conditions
from rezone.kube.api.client import connect
from rezone.kube.api.kinds import ConfigMap
from rezone.resources import API_VERSION
from rezone.resources.conditions import Reason
from rezone.resources.generate import drift
from rezone.resources.migration import MigrationState, RegionMigrationStatus
from rezone.resources.packaging import gitops_files
from rezone.resources.task import RebalanceTaskStatus, TaskState
from rezone.resources.zone_status import DistributionZoneStatus, RolloutStatus

pytestmark = pytest.mark.proves("OP-07")

REPOSITORY = GITOPS.parent
NOW = dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)
STATES = {"RebalanceTask": TaskState, "RegionMigration": MigrationState}

# What both say of one object. Flux has no word for Suspended: it waits, goes on when the zone
# serves, and fails at once when a person is asked for.
AGREED = {
    ("Healthy", "Current"),
    ("Progressing", "InProgress"),
    ("Degraded", "Failed"),
    ("Suspended", "InProgress"),
    ("Suspended", "Current"),
    ("Suspended", "Failed"),
}


def script(kind: str) -> str:
    """Return a kind's health script."""
    return (SCRIPTS / kind / "health.lua").read_text()


@pytest.mark.parametrize(("kind", "path", "expected"), list(argo_cases()))
def test_argocd_health(kind: str, path: Path, expected: Health) -> None:
    """Argo CD would show a failed rebalance green, or a healthy zone as never done."""
    assert argo_health(script(kind), load(path)) == expected


@pytest.mark.parametrize(("path", "expected"), list(flux_cases()))
def test_flux_health(path: Path, expected: str) -> None:
    """Flux would go on before a zone serves, or wait its whole timeout for one that cannot."""
    body = load(path)
    assert flux_status(expressions()[body["kind"]], body) == expected


@pytest.mark.parametrize("path", objects(), ids=lambda p: f"{p.parents[1].name}-{p.stem}")
def test_objects_are_what_the_operator_writes(path: Path) -> None:
    """Scripts proven on conditions that the operator has renamed prove nothing."""
    body = load(path)
    model = MODELS[body["kind"]]
    assert body["apiVersion"] == API_VERSION
    strict = {key: body[key] for key in ("metadata", "spec", "status") if key in body}
    parsed = model.model_validate(strict, extra="forbid")
    if parsed.status is None:
        return
    conditions = {c.type: c for c in parsed.status.conditions}
    assert {c.reason for c in conditions.values()} <= set(Reason)
    assert not conditions.keys() >= {"Reconciling", "Stalled"}
    if body["kind"] in STATES:
        assert parsed.status.state in ("", *STATES[body["kind"]])


def test_every_object_and_every_answer_is_in_the_tables() -> None:
    """An object that no table names, or an answer that no object gets, is never tried."""
    argo = [case.values for case in argo_cases()]
    assert sorted(path for _, path, _ in argo) == objects()
    assert sorted(case.values[0] for case in flux_cases()) == objects()
    for kind in MODELS:
        answers = {expected.status for owner, _, expected in argo if owner == kind}
        assert answers == {"Healthy", "Progressing", "Degraded", "Suspended"}
    assert {p.parent.name for p in SCRIPTS.glob("*/health.lua")} == MODELS.keys()
    assert expressions().keys() == MODELS.keys()
    assert {each["apiVersion"] for each in expressions().values()} == {API_VERSION}


def test_tasks_and_migrations_are_read_alike() -> None:
    """Both have one status; what is mended for one only stays wrong for the other."""
    task, migration = script("RebalanceTask"), script("RegionMigration")
    assert task.splitlines()[1:] == migration.splitlines()[1:]
    without_kind = [
        {k: v for k, v in expressions()[kind].items() if k != "kind"} for kind in STATES
    ]
    assert without_kind[0] == without_kind[1]


def zones() -> list[Json]:
    """Return zones with every combination of conditions that the operator gives them."""
    found = []
    shortage = (Reason.NOT_ENOUGH_DATA_NODES, "add data nodes")
    update = RolloutStatus(started_time=NOW, outdated=1, waiting_for="data node 1 catches up")
    rollouts = (
        NOTHING,
        RolloutDecision(status=update),
        RolloutDecision(status=update, held=True),
        RolloutDecision(status=update, stuck="data node 1 catches up"),
    )
    growing = Growth(size="20Gi", grown=1, total=3)
    growths = (None, growing, dataclasses.replace(growing, refused=True))
    for (partitions, led, in_sync), stalled, task, paused, rollout, volumes in itertools.product(
        ((0, 0, 0), (4, 3, 3), (4, 4, 3), (4, 4, 4)),
        (None, shortage),
        ("", "t"),
        (False, True),
        rollouts,
        growths,
    ):
        conditions = zone_conditions(
            (),
            ZoneHealth(
                partitions=partitions, led=led, in_sync=in_sync, ready_nodes=3, wanted_nodes=3
            ),
            stalled=stalled,
            obstacle=None,
            rebalancing=task,
            paused=paused,
            rollout=rollout,
            volumes=volumes,
            generation=2,
            now=NOW,
        )
        status = DistributionZoneStatus(conditions=conditions, observed_generation=2)
        found.append(stored("DistributionZone", {"rebalance": {"paused": paused}}, status))
    return found


def machines(kind: str, status: Any) -> list[Json]:
    """Return tasks or migrations with every combination of conditions and reasons."""
    found = []
    for succeeded, reason, stalled in itertools.product((True, False, None), Reason, (False, True)):
        if succeeded and stalled:
            continue  # what has succeeded waits for nobody
        standing = Standing(succeeded=succeeded, reason=reason, message="why", stalled=stalled)
        written = with_conditions(status, standing, generation=2, now=NOW)
        found.append(stored(kind, {}, written))
    return found


def stored(kind: str, spec: Json, status: Any) -> Json:
    """Return an object as the API server would."""
    body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": "x", "generation": 2}}
    return {**body, "spec": spec, "status": status.dump()}


@pytest.mark.parametrize("kind", MODELS)
def test_argocd_and_flux_agree(kind: str) -> None:
    """Whoever moves from one to the other, or has both, would get two answers to one question."""
    made: dict[str, Callable[[], list[Json]]] = {
        "DistributionZone": zones,
        "RebalanceTask": lambda: machines(kind, RebalanceTaskStatus()),
        "RegionMigration": lambda: machines(kind, RegionMigrationStatus()),
    }
    text, checks = script(kind), expressions()[kind]
    for body in made[kind]():
        answers = (argo_health(text, body).status, flux_status(checks, body))
        assert answers in AGREED, json.dumps(body["status"]["conditions"])


def test_scripts_have_nothing_but_the_base_library() -> None:
    """The tests would pass a script that Argo CD, which gives it no strings, cannot run."""
    for name in ("string", "io", "require", "python", "dofile", "loadstring", "debug"):
        with pytest.raises(lua51.LuaError, match="nil value"):
            argo_health(f"return {name}.x or {name}()", {})
    with pytest.raises(lua51.LuaError, match="too many steps"):
        argo_health("while true do end", {})


def test_argocd_settings_hold_the_scripts() -> None:
    """People apply the fragment; the scripts beside it are what is tested."""
    assert drift(REPOSITORY, gitops_files(REPOSITORY), ()) == []
    data = yaml.safe_load((GITOPS / "argocd" / "argocd-cm.yaml").read_text())["data"]
    assert data == {
        f"resource.customizations.health.rezone.dev_{kind}": script(kind) for kind in MODELS
    }


@pytest.mark.apiserver
@pytest.mark.slow
async def test_argocd_settings_leave_the_others_alone(kubeconfig: Path, namespace: str) -> None:
    """Applied as the page says, the fragment would wipe out Argo CD's other settings."""
    name, url = "argocd-cm", {"url": "https://argocd.example.com"}
    body = yaml.safe_load((GITOPS / "argocd" / "argocd-cm.yaml").read_text())
    body["metadata"]["namespace"] = namespace
    async with await connect(kubeconfig) as kube:
        meta = {"name": name, "namespace": namespace}
        await kube.create(ConfigMap, {"metadata": meta, "data": url})
        await kube.apply(ConfigMap, body)
        stored = await kube.get(ConfigMap, namespace, name)
    assert stored["data"] == {**url, **body["data"]}
