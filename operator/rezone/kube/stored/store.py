"""Our custom resources: read, compare-and-set of the status, create or adopt.

Every decision of the operator is one guarded write here. A status is written as a whole against
the resourceVersion that was read, so two writers can never mix; who comes second is told so
(ConflictWriteError) and decides again. A status equal to the stored one apart from transition
times is not written, or the write would wake us for ever.

Concurrency: stateless; any number of tasks may use one store.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import structlog
from pydantic import ValidationError

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ExistsError, InvalidWriteError, MissingError, UnreadableError
from rezone.kube.api.kinds import Kind, Manifest, MigrationKind, TaskKind, ZoneKind
from rezone.kube.api.names import AnyObject, kind_of, owner_reference, require_owned
from rezone.kube.api.standins import nameplate, stand_in, without_words
from rezone.resources import API_VERSION
from rezone.resources.migration import RegionMigration
from rezone.resources.model import CustomObject, Model
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone

O = TypeVar("O", bound=CustomObject[Any, Any])  # noqa: E741 - the object, in all signatures here

log = structlog.get_logger(__name__)

_KINDS: dict[type[AnyObject], Kind] = {
    DistributionZone: ZoneKind,
    RebalanceTask: TaskKind,
    RegionMigration: MigrationKind,
}


class StatusStore:
    """Reads and writes DistributionZones, RebalanceTasks and RegionMigrations."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def read(self, kind: type[O], namespace: str, name: str) -> O:
        """Return the object as it is stored now. Raises MissingError, UnreadableError."""
        return parse(kind, await self._kube.get(_KINDS[kind], namespace, name))

    async def find(self, kind: type[O], namespace: str, name: str) -> O | None:
        """Return the object, None when it does not exist. Raises UnreadableError."""
        try:
            return await self.read(kind, namespace, name)
        except MissingError:
            return None

    async def list(
        self,
        kind: type[O],
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> tuple[O, ...]:
        """Return all objects of a namespace (None: of all) by name, as `Kube.list` selects them.

        Raises UnreadableError if one does not parse: leaving it out could hide a move under way.
        """
        found = await self._kube.list(_KINDS[kind], namespace, labels=labels, fields=fields)
        return _by_name(parse(kind, each) for each in found)

    async def list_all(
        self, kind: type[O], namespace: str, *, fields: Mapping[str, str]
    ) -> tuple[O, ...]:
        """Return objects as `list` does, with a stand-in for each that does not parse.

        One object must not end the passes of its zone; its own pass tells what is wrong with it.
        """
        found = await self._kube.list(_KINDS[kind], namespace, fields=fields)
        return _by_name(each for body in found if (each := _parse_or_stand_in(kind, body)))

    async def write_status(self, obj: O, new_status: Model) -> O:
        """Set the status of `obj`, only if the object is still as it was read.

        Returns the object as stored afterwards: `obj` itself when nothing but transition times
        would change. Raises ConflictWriteError when the object has changed, MissingError when it
        is gone, InvalidWriteError when the status breaks its schema, UnknownOutcomeError when the
        answer is missing.
        """
        status = validated(new_status)
        if obj.status is not None and _essence(obj.status.dump()) == _essence(status):
            return obj
        body = _identity(obj)
        body["metadata"]["resourceVersion"] = obj.metadata.resource_version
        # The uid makes the API server refuse an object of the same name that is another one.
        body["metadata"]["uid"] = obj.metadata.uid
        body["status"] = status
        written = await self._kube.replace_status(_KINDS[type(obj)], body)
        return parse(type(obj), written)

    async def create(self, obj: O, owner: AnyObject | None = None) -> O:
        """Create `obj` as a child of `owner`, or return the one that is there if it is ours.

        The name must follow from what the object is for, so that a repeat finds it. The spec of an
        adopted object is left as it is. Raises ForeignObjectError when the name is taken by an
        object of another owner, ExistsError likewise when `owner` is None, InvalidWriteError when
        the API server refuses the spec.
        """
        body = _identity(obj)
        meta = obj.metadata
        body["metadata"] |= {
            "labels": dict(meta.labels),
            "annotations": dict(meta.annotations),
        }
        if owner is not None:
            body["metadata"]["ownerReferences"] = [owner_reference(owner)]
        body["spec"] = obj.spec.dump()
        kind = _KINDS[type(obj)]
        try:
            return parse(type(obj), await self._kube.create(kind, body))
        except ExistsError:
            if owner is None:
                raise
        found = await self._kube.get(kind, meta.namespace, meta.name)
        return parse(type(obj), require_owned(found, owner))

    async def patch_spec(self, obj: O, changes: Mapping[str, Any]) -> O:
        """Merge `changes` (camelCase JSON) into the spec, only if the object is as it was read.

        For children that the operator made itself (`{"cancel": True}`); a person's spec is
        never written. Raises as `write_status`.
        """
        meta = obj.metadata
        guard = {"resourceVersion": meta.resource_version, "uid": meta.uid}
        patch = {"metadata": guard, "spec": dict(changes)}
        merged = await self._kube.merge(_KINDS[type(obj)], meta.namespace, meta.name, patch)
        return parse(type(obj), merged)

    async def delete(self, obj: AnyObject) -> bool:
        """Ask for the object's deletion; False when it was gone already."""
        meta = obj.metadata
        return await self._kube.delete(_KINDS[type(obj)], meta.namespace, meta.name)


def parse(kind: type[O], body: Mapping[str, Any]) -> O:
    """Return the object from its JSON. Raises UnreadableError, naming object and field."""
    try:
        return kind.parse(body)
    except ValidationError as error:
        mended = _without_words(kind, body, error)
        if mended is not None:
            return mended
        metadata = body.get("metadata", {})
        where = f"{metadata.get('namespace')}/{metadata.get('name')}"
        about = nameplate(kind, body)
        raise UnreadableError(f"{kind.__name__} {where}: {_short(error)}", about=about) from error


def _without_words(kind: type[O], body: Mapping[str, Any], error: ValidationError) -> O | None:
    """Return the object without the words that do not parse; None when more is wrong."""
    mended = without_words(body, error)
    try:
        return None if mended is None else kind.parse(mended)
    except ValidationError:
        return None


def _parse_or_stand_in(kind: type[O], body: Manifest) -> O | None:
    try:
        return parse(kind, body)
    except UnreadableError as error:
        log.warning("an object cannot be read, and counts as suspended", error=str(error))
        return stand_in(kind, body)


def _by_name(objects: Iterable[O]) -> tuple[O, ...]:
    return tuple(sorted(objects, key=lambda o: (o.metadata.namespace, o.metadata.name)))


def validated(status: Model) -> dict[str, Any]:
    """Return the status as JSON after checking it against its own schema.

    Models changed by `model_copy` were not checked; a 422 from the API server would come after
    the decision and say less. Raises InvalidWriteError.
    """
    body = status.dump()
    try:
        type(status).model_validate(body)
    except ValidationError as error:
        raise InvalidWriteError(f"{type(status).__name__}: {_short(error)}") from error
    return body


def _identity(obj: AnyObject) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": kind_of(obj),
        "metadata": {"name": obj.metadata.name, "namespace": obj.metadata.namespace},
    }


def _essence(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status without transition times, which alone are no news."""
    conditions = [
        {key: value for key, value in each.items() if key != "lastTransitionTime"}
        for each in status.get("conditions", ())
    ]
    return {**status, "conditions": conditions}


def _short(error: ValidationError) -> str:
    """Return the first problems in one line, without the values (they may be large)."""
    lines = [
        f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}"
        for each in error.errors(include_input=False, include_url=False)[:3]
    ]
    return "; ".join(lines)
