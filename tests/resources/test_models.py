"""The models against their own schemas, and the edges of parsing."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rezone.resources.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    condition_of,
    drop_condition,
    set_condition,
)
from rezone.resources.crd import (
    KINDS,
    LIST_MAP_KEYS,
    LIST_TYPE,
    PRESERVE,
    part_of,
    structural_schema,
)
from rezone.resources.migration import RegionMigration
from rezone.resources.model import Model
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone, DistributionZoneSpec

Json = dict[str, Any]

PARTS = [
    pytest.param(part_of(kind, part), part == "spec", id=f"{kind.__name__}-{part}")
    for kind in KINDS
    for part in ("spec", "status")
]
# Hypothesis wants them naive and adds the time zone itself.
EPOCH, FAR_FUTURE = datetime(1970, 1, 1), datetime(9000, 1, 1)  # noqa: DTZ001
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)


def values(schema: Json) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - one per type
    """Return a strategy for the values that a structural schema allows, bounds included."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get(PRESERVE):
        return st.dictionaries(TEXT, st.integers() | TEXT, max_size=2)
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "string":
            return _strings(schema)
        case "array":
            return _lists(schema)
    if "additionalProperties" in schema:
        size = {"min_size": schema.get("minProperties", 0), "max_size": 3}
        return st.dictionaries(TEXT, values(schema["additionalProperties"]), **size)
    required = set(schema.get("required", ()))
    fields = {name: values(inner) for name, inner in schema["properties"].items()}
    return st.fixed_dictionaries(
        {name: fields[name] for name in fields if name in required},
        optional={name: fields[name] for name in fields if name not in required},
    )


def _strings(schema: Json) -> st.SearchStrategy[str]:
    if schema.get("format") == "date-time":
        return st.datetimes(EPOCH, FAR_FUTURE, timezones=st.just(UTC)).map(
            lambda time: time.strftime("%Y-%m-%dT%H:%M:%SZ")
        )
    low, high = schema.get("minLength", 0), schema["maxLength"]
    if "pattern" in schema:
        matching = st.from_regex(
            schema["pattern"], fullmatch=True, alphabet=st.characters(codec="ascii")
        )
        return matching.filter(lambda text: low <= len(text) <= high and not text.endswith("\n"))
    return st.text(st.characters(codec="utf-8"), min_size=low, max_size=min(high, 12))


def _lists(schema: Json) -> st.SearchStrategy[list[Any]]:
    keys = schema.get(LIST_MAP_KEYS)
    unique: Any = None
    if keys:
        unique = lambda item: tuple(item[key] for key in keys)  # noqa: E731 - a key function
    elif schema[LIST_TYPE] == "set":
        unique = lambda item: item  # noqa: E731 - a key function
    low = schema.get("minItems", 0)
    high = min(schema["maxItems"], low + 2)
    return st.lists(values(schema["items"]), min_size=low, max_size=high, unique_by=unique)


@functools.cache
def _allowed_by(
    model: type[Model], defaults: bool
) -> tuple[st.SearchStrategy[Any], jsonschema.Draft202012Validator]:
    """Return what a model's schema allows, and what checks it; made once, not for each example."""
    schema = structural_schema(model, defaults=defaults)
    return values(schema), jsonschema.Draft202012Validator(schema)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "defaults"), PARTS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_trip(model: type[Model], *, defaults: bool, data: st.DataObject) -> None:
    """What the server may store must parse, and what the operator writes must be stored."""
    allowed, server = _allowed_by(model, defaults)
    body = data.draw(allowed)
    parsed = model.model_validate(body)
    dumped = parsed.dump()
    server.validate(dumped)
    assert model.model_validate(dumped) == parsed
    assert _within(body, dumped)


def _within(small: Any, large: Any) -> bool:
    """Return whether everything of one JSON value stands in the other."""
    if isinstance(small, dict):
        return all(key in large and _within(value, large[key]) for key, value in small.items())
    if isinstance(small, list):
        return len(small) == len(large) and all(map(_within, small, large))
    return bool(small == large)


ZONE = {
    "metadata": {"name": "orders", "namespace": "shop", "uid": "u", "generation": 3},
    "spec": {"partitions": 8, "replicas": 3, "dataNodes": {"count": 3}},
}


def test_unknown_fields_are_ignored() -> None:
    """After a downgrade the newer operator's fields would stop the older one."""
    body = {**ZONE, "spec": {**ZONE["spec"], "later": 1}, "status": {"later": {"x": 1}}}
    zone = DistributionZone.parse(body)
    assert zone.spec.partitions == 8
    assert zone.status is not None


def test_schema_is_an_alias() -> None:
    """`schema` is a name pydantic uses itself; the field must still be called so outside."""
    spec = {
        **ZONE["spec"],
        "schema": {"columns": [{"name": "id", "type": "int64"}], "primaryKey": ["id"]},
    }
    parsed = DistributionZoneSpec.model_validate(spec)
    assert parsed.table_schema is not None
    assert parsed.dump()["schema"]["primaryKey"] == ["id"]


@pytest.mark.parametrize(("replicas", "wanted"), [(1, 1), (2, 2), (3, 2), (4, 3), (7, 4)])
def test_min_in_sync_defaults_to_a_majority(replicas: int, wanted: int) -> None:
    """A smaller default could lose acknowledged writes with half of the replicas."""
    spec = DistributionZoneSpec.model_validate({**ZONE["spec"], "replicas": replicas})
    assert spec.min_in_sync == wanted


def test_models_are_frozen() -> None:
    """A reconcile pass that edits what it observed decides on its own wishes."""
    zone = DistributionZone.parse(ZONE)
    with pytest.raises(ValidationError, match="frozen"):
        zone.spec.partitions = 9  # type: ignore[misc]


def test_absent_instead_of_null() -> None:
    """A null is a deletion in a merge patch, and no structural schema takes it."""
    migration = RegionMigration.parse(
        {"metadata": {"name": "m"}, "spec": {"zoneName": "orders", "partition": 1}, "status": {}}
    )
    assert "target" not in migration.spec.dump()
    assert migration.status is not None
    assert None not in migration.status.dump().values()


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (RebalanceTask, {"zoneName": "Orders"}),
        (RebalanceTask, {}),
        (RegionMigration, {"zoneName": "orders", "partition": 16_384}),
        (RegionMigration, {"zoneName": "orders", "partition": -1}),
    ],
)
def test_invalid_specs_do_not_parse(kind: Any, spec: Json) -> None:
    """Objects stored before a rule existed must be told apart from valid ones."""
    with pytest.raises(ValidationError):
        kind.parse({"metadata": {"name": "x"}, "spec": spec})


def test_times_are_written_in_utc_without_fractions() -> None:
    """Kubernetes' own times have neither offsets nor fractions; clients compare them as text."""
    local = datetime(2026, 5, 1, 12, 0, 0, 999, tzinfo=timezone(timedelta(hours=2)))
    condition = Condition(
        type=ConditionType.READY,
        status=ConditionStatus.TRUE,
        reason="Available",
        last_transition_time=local,
    )
    assert condition.dump()["lastTransitionTime"] == "2026-05-01T10:00:00Z"


def test_naive_times_do_not_parse() -> None:
    """A time without a zone would be read as local time somewhere."""
    with pytest.raises(ValidationError):
        Condition.model_validate(
            {
                "type": "Ready",
                "status": "True",
                "reason": "Available",
                "lastTransitionTime": "2026-05-01T10:00:00",
            }
        )


NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_transition_time_moves_only_with_the_status() -> None:
    """A heartbeat in lastTransitionTime would make each pass write, and wake the next."""
    first = set_condition((), _ready(value=True, reason=Reason.AVAILABLE, now=NOON))
    later = NOON + timedelta(hours=1)
    same = set_condition(first, _ready(value=True, reason=Reason.REBALANCING, now=later))
    assert same[0].last_transition_time == NOON
    assert same[0].reason == "Rebalancing"
    other = set_condition(same, _ready(value=False, reason=Reason.NO_LEADER, now=later))
    assert other[0].last_transition_time == later


def test_conditions_keep_one_order_and_one_per_type() -> None:
    """The list is a map by type; a second entry is refused by the server."""
    stalled = _condition(ConditionType.STALLED, value=True, reason=Reason.INVALID_SPEC)
    ready = _ready(value=None, reason=Reason.STARTING, now=NOON)
    found = set_condition(set_condition(set_condition((), stalled), ready), ready)
    assert [condition.type for condition in found] == ["Ready", "Stalled"]
    assert drop_condition(found, ConditionType.STALLED) == found[:1]


def _ready(*, value: bool | None, reason: Reason, now: datetime) -> Condition:
    return condition_of(ConditionType.READY, value, reason, "because", generation=1, now=now)


def _condition(kind: ConditionType, *, value: bool | None, reason: Reason) -> Condition:
    return condition_of(kind, value, reason, "because", generation=1, now=NOON)
