"""Argo CD and Flux as far as they read the health of an object, with their own languages.

Argo CD runs a Lua 5.1 script with the object in `obj`. Flux compares the generations and then
evaluates up to three CEL expressions with the object's fields as variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from cel_expr_python import cel
from lupa import lua51

from rezone.resources.migration import RegionMigration
from rezone.resources.model import CustomObject
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone

Json = dict[str, Any]
GITOPS = Path(__file__).parents[2] / "gitops"
SCRIPTS = GITOPS / "argocd" / "rezone.dev"
MODELS: dict[str, type[CustomObject[Any, Any]]] = {
    "DistributionZone": DistributionZone,
    "RebalanceTask": RebalanceTask,
    "RegionMigration": RegionMigration,
}

# What Argo CD leaves to a script: the base library without what loads code, and `table`.
_LUA_GLOBALS = frozenset(
    {"error", "ipairs", "next", "pairs", "pcall", "select", "tonumber", "tostring", "type"}
    | {"unpack", "table"},
)
_LUA_STEPS_MAX = 100_000
_LUA_BYTES_MAX = 4 << 20


class Health(NamedTuple):
    """Argo CD's answer."""

    status: str
    message: str


def argo_health(script: str, body: Json) -> Health:
    """Return what the script says of an object, run without files, processes and Python."""
    lua = lua51.LuaRuntime(
        register_eval=False,
        register_builtins=False,
        attribute_filter=_no_python,
        max_memory=_LUA_BYTES_MAX,
    )
    lua.execute(f"debug.sethook(function() error('too many steps') end, '', {_LUA_STEPS_MAX})")
    names = lua.globals()
    for name in list(names.keys()):
        if name not in _LUA_GLOBALS:
            names[name] = None
    names.obj = lua.table_from(body, recursive=True)
    answer = lua.execute(script)
    return Health(answer.status, answer.message)


def _no_python(_owner: object, name: str, _setting: bool) -> str:
    raise AttributeError(f"a health script reached for Python's {name}")


def flux_status(expressions: Json, body: Json) -> str:
    """Return what Flux says of an object; Unknown when it cannot tell and waits."""
    observed = body.get("status", {}).get("observedGeneration")
    if observed is not None and observed != body["metadata"]["generation"]:
        return "InProgress"
    for status, name in (
        ("InProgress", "inProgress"),
        ("Failed", "failed"),
        ("Current", "current"),
    ):
        value = _evaluate(expressions[name], body)
        if value is None:
            return "Unknown"
        if value:
            return status
    return "InProgress"


def _evaluate(expression: str, body: Json) -> bool | None:
    """Return the value, None when it fails. Types are not checked first: Flux does not either."""
    fields = ("apiVersion", "kind", "metadata", "spec", "status")
    environment = cel.NewEnv(variables=dict.fromkeys(fields, cel.Type.DYN))
    result = environment.compile(expression, disable_check=True).eval(data=body)
    return result.value() if result.type() == cel.Type.BOOL else None


def expressions() -> dict[str, Json]:
    """Return Flux's expressions by kind."""
    body = yaml.safe_load((GITOPS / "flux" / "zones.yaml").read_text())
    return {each["kind"]: each for each in body["spec"]["healthCheckExprs"]}


def argo_cases() -> Iterator[Any]:
    """Yield (kind, path of an object, Argo CD's expected answer)."""
    for kind in MODELS:
        for row in yaml.safe_load((SCRIPTS / kind / "health_test.yaml").read_text())["tests"]:
            path = SCRIPTS / kind / row["inputPath"]
            yield pytest.param(kind, path, Health(**row["healthStatus"]), id=f"{kind}-{path.stem}")


def flux_cases() -> Iterator[Any]:
    """Yield (path of an object, Flux's expected status)."""
    for row in yaml.safe_load((GITOPS / "flux" / "health_test.yaml").read_text())["tests"]:
        path = (GITOPS / "flux" / row["inputPath"]).resolve()
        yield pytest.param(path, row["status"], id=f"{path.parents[1].name}-{path.stem}")


def objects() -> list[Path]:
    """Return all objects of the test data."""
    return sorted(SCRIPTS.glob("*/testdata/*.yaml"))


def load(path: Path) -> Json:
    """Return an object."""
    body: Json = yaml.safe_load(path.read_text())
    return body
