"""What stands in for stored objects that this version of the operator cannot read.

A newer version may have written a word that this one does not know, or a person a status by hand.
Such a RebalanceTask or RegionMigration may be in the middle of its work: without it its zone would
start that work again, and with an error no pass of the zone would come to its end. So it counts
with all that can be read of it, and begins nothing by itself until somebody mends it.

Pure; bodies are as the API server has them.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from rezone.resources.migration import RegionMigration, RegionMigrationSpec, RegionMigrationStatus
from rezone.resources.model import CustomObject, Model, ObjectMeta
from rezone.resources.task import RebalanceTask, RebalanceTaskSpec, RebalanceTaskStatus

M = TypeVar("M", bound=Model)
O = TypeVar("O", bound=CustomObject[Any, Any])  # noqa: E741 - the object, in all signatures here

_WORDS = ("conditions", "waitingReason")
"""Parts of a status that are for people: nothing is decided by them, and the next pass says them
again."""


def stand_in(kind: type[O], body: Mapping[str, Any]) -> O | None:
    """Return what can be read of a task or a migration; None when not even what it is about."""
    try:
        if kind is RebalanceTask:
            return kind.model_validate(_task(body))
        if kind is RegionMigration:
            return kind.model_validate(_migration(body))
    except (ValidationError, LookupError, TypeError):
        return None
    return None


def _task(body: Mapping[str, Any]) -> dict[str, Any]:
    spec = _readable(RebalanceTaskSpec, body["spec"], "zoneName")
    # One that is suspended keeps what it has begun, and copies nothing.
    return _object(body, {**spec, "suspend": True}, RebalanceTaskStatus)


def _migration(body: Mapping[str, Any]) -> dict[str, Any]:
    spec = _readable(RegionMigrationSpec, body["spec"], "zoneName", "partition")
    return _object(body, spec, RegionMigrationStatus)


def _object(
    body: Mapping[str, Any], spec: Mapping[str, Any], status_of: type[Model]
) -> dict[str, Any]:
    stored = body.get("status")
    status = _readable(status_of, stored) if isinstance(stored, Mapping) else None
    return {"metadata": body["metadata"], "spec": spec, "status": status}


def _readable(model: type[Model], fields: Mapping[str, Any], *needed: str) -> dict[str, Any]:
    """Return the fields that parse, each by itself beside those that the model needs."""
    base = {name: fields[name] for name in needed}
    return base | {
        name: value for name, value in fields.items() if _parses(model, {**base, name: value})
    }


def _parses(model: type[Model], fields: Mapping[str, Any]) -> bool:
    try:
        model.model_validate(fields)
    except ValidationError:
        return False
    return True


def without_words(body: Mapping[str, Any], error: ValidationError) -> Mapping[str, Any] | None:
    """Return the object without the words for people that do not parse, if nothing else is wrong.

    A version that is put back would otherwise read no object of which the newer one has said
    something that it has no word for.
    """
    places = [problem["loc"] for problem in error.errors(include_input=False, include_url=False)]
    if any(len(at) < 2 or at[0] != "status" or at[1] not in _WORDS for at in places):  # noqa: PLR2004
        return None
    status = dict(body["status"])
    bad = {at[2] for at in places if at[1] == "conditions" and len(at) > 2}  # noqa: PLR2004
    conditions = status.pop("conditions", None)
    if bad and isinstance(conditions, list):
        status["conditions"] = [c for n, c in enumerate(conditions) if n not in bad]
    elif all(at[1] != "conditions" for at in places):
        status["conditions"] = conditions or []
    if any(at[1] == "waitingReason" for at in places):
        status.pop("waitingReason", None)
    return {**body, "status": status}


def nameplate(kind: type[O], body: Mapping[str, Any]) -> O | None:
    """Return an object with nothing but its metadata, to be told about; None without any."""
    made: Any = kind
    try:
        plate: O = made.model_construct(metadata=ObjectMeta.model_validate(body.get("metadata")))
    except ValidationError:
        return None
    return plate
