"""The compiler from the models to CustomResourceDefinitions.

pydantic emits a JSON schema that no API server would take: `$ref`, `anyOf` with null, exclusive
bounds, titles. This module turns it into a structural schema, and refuses what has no structural
form (unions, tuples, free-form values, lists that do not say how they merge) instead of dropping
it: a dropped keyword is a check that nobody makes any more.

Only defaults that are not their type's zero value are emitted, only for single values and only in
the spec. So a stored object says what it was made with, and what is absent stays absent.
"""

import copy
import enum
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from rezone.resources import GROUP, VERSION
from rezone.resources.meta import Column, CrdMeta, Rule
from rezone.resources.migration import RegionMigration
from rezone.resources.model import CustomObject
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone

Json = dict[str, Any]

KINDS: Final[tuple[type[CustomObject[Any, Any]], ...]] = (
    DistributionZone,
    RebalanceTask,
    RegionMigration,
)

RULES = "x-kubernetes-validations"
LIST_TYPE = "x-kubernetes-list-type"
LIST_MAP_KEYS = "x-kubernetes-list-map-keys"
PRESERVE = "x-kubernetes-preserve-unknown-fields"

# The comments of an enum's values, on their way into the description of a field.
_VALUES = "x-values"
_REF_PREFIX = "#/$defs/"
_INT32_MAX = (1 << 31) - 1
_COPIED = (
    "type",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    PRESERVE,
    RULES,
)
_TRANSLATED = (
    "$ref",
    "anyOf",
    "const",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "properties",
    "required",
    "items",
    "additionalProperties",
    "x-list-type",
    "x-list-map-keys",
    _VALUES,
    "default",
    "description",
)
_DROPPED = ("title", "examples", "deprecated", "readOnly", "format")
_KNOWN = frozenset({*_COPIED, *_TRANSLATED, *_DROPPED})


class CompileError(ValueError):
    """Raised when a model has a field that no structural schema can express."""


class _RuleSchema(GenerateJsonSchema):
    """pydantic's generator, which also puts each model's rules and enum values' comments in."""

    def model_schema(self, schema: core_schema.ModelSchema) -> Json:
        result = super().model_schema(schema)
        rules = getattr(schema["cls"], "rules", ())
        if rules:
            result[RULES] = [_rule(rule) for rule in rules]
        return result

    def enum_schema(self, schema: core_schema.EnumSchema) -> Json:
        result = super().enum_schema(schema)
        comments = value_comments(schema["cls"])
        if comments:
            values = (f"{member.value}: {comments[member.name]}." for member in schema["cls"])
            result[_VALUES] = " ".join(values)
        return result


def custom_resource_definition(kind: type[CustomObject[Any, Any]]) -> Json:
    """Return the CustomResourceDefinition of a kind. Raises CompileError."""
    meta = crd_meta(kind)
    version: Json = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": _subresources(meta),
        "additionalPrinterColumns": [_column(column) for column in meta.columns],
        "schema": {"openAPIV3Schema": _root_schema(kind)},
    }
    if meta.selectable_fields:
        version["selectableFields"] = [{"jsonPath": path} for path in meta.selectable_fields]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{meta.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "rezone"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": meta.kind,
                "listKind": f"{meta.kind}List",
                "plural": meta.plural,
                "singular": meta.kind.lower(),
                "shortNames": list(meta.short_names),
                "categories": list(meta.categories),
            },
            "versions": [version],
        },
    }


def custom_resource_definitions() -> tuple[Json, ...]:
    """Return the definitions of all kinds; what `kubectl apply` needs to know them."""
    return tuple(custom_resource_definition(kind) for kind in KINDS)


def crd_meta(kind: type[CustomObject[Any, Any]]) -> CrdMeta:
    """Return the names, columns and subresources of a kind."""
    meta = getattr(kind, "crd", None)
    if not isinstance(meta, CrdMeta):
        raise CompileError(f"{kind.__name__} carries no CrdMeta")
    return meta


def part_of(kind: type[CustomObject[Any, Any]], field: str) -> type[BaseModel]:
    """Return the model of a kind's spec or status."""
    annotation = kind.model_fields[field].annotation
    for candidate in (annotation, *get_args(annotation)):
        if inspect.isclass(candidate) and issubclass(candidate, BaseModel):
            return candidate
    raise CompileError(f"{kind.__name__}.{field} is no model")


def value_comments(values: type[enum.Enum]) -> dict[str, str]:
    """Return the comment beside each member of an enum; empty unless all members have one."""
    source = inspect.getsource(values)
    found = dict(re.findall(r"^\s+([A-Z][A-Z0-9_]*) = .*?  # (.+)$", source, re.MULTILINE))
    return found if found.keys() >= {member.name for member in values} else {}


def paragraphs(text: str | None) -> str:
    """Return a docstring with one line per paragraph, as `kubectl explain` wraps by itself."""
    blocks = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(" ".join(block.split()) for block in blocks)


def _root_schema(kind: type[CustomObject[Any, Any]]) -> Json:
    schema: Json = {
        "type": "object",
        "description": paragraphs(kind.__doc__),
        "required": ["spec"],
        "properties": {
            # The name stands here only so that a rule's fieldPath can point at it.
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": structural_schema(part_of(kind, "spec"), defaults=True),
            "status": structural_schema(part_of(kind, "status"), defaults=False),
        },
    }
    rules: Sequence[Rule] = getattr(kind, "rules", ())
    if rules:
        schema[RULES] = [_rule(rule) for rule in rules]
    return schema


def structural_schema(model: type[BaseModel], *, defaults: bool) -> Json:
    """Return the structural schema of a model. Raises CompileError."""
    schema = model.model_json_schema(by_alias=True, schema_generator=_RuleSchema)
    definitions = schema.pop("$defs", {})
    return _Compiler(definitions, defaults=defaults).compile(schema, model.__name__, ())


class _Compiler:
    """Walks one pydantic schema; `path` names the field in errors, `open_refs` finds recursion."""

    def __init__(self, definitions: Mapping[str, Json], *, defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def compile(self, schema: Json, path: str, open_refs: tuple[str, ...]) -> Json:
        schema, open_refs = self._inline(schema, path, open_refs)
        unknown = schema.keys() - _KNOWN
        if unknown:
            raise CompileError(f"{path}: {', '.join(sorted(unknown))} has no structural form")
        result: Json = {}
        if "description" in schema:
            result["description"] = paragraphs(
                " ".join([schema["description"], schema.get(_VALUES, "")]),
            )
        result.update({key: schema[key] for key in _COPIED if key in schema})
        if "const" in schema:
            result["enum"] = [schema["const"]]
        match result.get("type"):
            case "object":
                result.update(self._object(schema, path, open_refs))
            case "array":
                result.update(self._array(schema, path, open_refs))
            case "integer":
                result.update(_integer(schema))
            case "string":
                result.update(_string(schema))
            case "boolean":
                pass
            case other:
                raise CompileError(f"{path}: type {other} has no place in a resource")
        if self._defaults and _tells(schema.get("default")):
            result["default"] = schema["default"]
        return result

    def _inline(
        self, schema: Json, path: str, open_refs: tuple[str, ...]
    ) -> tuple[Json, tuple[str, ...]]:
        """Replace references and `T | None` by T; what stands beside them wins over T's own."""
        while "$ref" in schema or "anyOf" in schema:
            siblings = {key: schema[key] for key in schema if key not in {"$ref", "anyOf"}}
            if "$ref" in schema:
                reference = str(schema["$ref"])
                if reference in open_refs:
                    raise CompileError(f"{path}: {reference} contains itself")
                open_refs = (*open_refs, reference)
                target = self._definitions[reference.removeprefix(_REF_PREFIX)]
            else:
                options = [option for option in schema["anyOf"] if option.get("type") != "null"]
                if len(options) != 1:
                    raise CompileError(f"{path}: a union has no structural form")
                (target,) = options
            schema = {**copy.deepcopy(target), **siblings}
        return schema, open_refs

    def _object(self, schema: Json, path: str, open_refs: tuple[str, ...]) -> Json:
        if schema.get(PRESERVE):
            return {}
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            return {"additionalProperties": self.compile(extra, f"{path}.*", open_refs)}
        if not schema.get("properties"):
            raise CompileError(f"{path}: an object needs fields, or {PRESERVE}")
        properties = {
            name: self.compile(field, f"{path}.{name}", open_refs)
            for name, field in schema["properties"].items()
        }
        required = schema.get("required", [])
        return {**({"required": required} if required else {}), "properties": properties}

    def _array(self, schema: Json, path: str, open_refs: tuple[str, ...]) -> Json:
        if "items" not in schema:
            raise CompileError(f"{path}: a list needs one type of items")
        result: Json = {"items": self.compile(schema["items"], f"{path}[]", open_refs)}
        keys = schema.get("x-list-map-keys")
        if keys:
            return {LIST_TYPE: "map", LIST_MAP_KEYS: list(keys), **result}
        if "x-list-type" not in schema:
            raise CompileError(f"{path}: a list needs x-list-type or x-list-map-keys")
        return {LIST_TYPE: schema["x-list-type"], **result}


def _integer(schema: Json) -> Json:
    """Return inclusive bounds and the width; CRDs know exclusive bounds only as booleans."""
    result: Json = {}
    if "exclusiveMinimum" in schema:
        result["minimum"] = schema["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in schema:
        result["maximum"] = schema["exclusiveMaximum"] - 1
    maximum = result.get("maximum", schema.get("maximum"))
    narrow = maximum is not None and maximum <= _INT32_MAX
    return {"format": "int32" if narrow else "int64", **result}


def _string(schema: Json) -> Json:
    """Keep only formats that an API server checks the same way."""
    return {"format": "date-time"} if schema.get("format") == "date-time" else {}


def _tells(default: object) -> bool:
    """Return whether a default is worth storing: a single value that is not its type's zero."""
    return isinstance(default, bool | int | str) and bool(default)


def _rule(rule: Rule) -> Json:
    result = {"rule": rule.rule, "message": rule.message}
    if rule.message_expression:
        result["messageExpression"] = rule.message_expression
    if rule.field_path:
        result["fieldPath"] = rule.field_path
    return result


def _column(column: Column) -> Json:
    result: Json = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.description:
        result["description"] = column.description
    if column.priority:
        result["priority"] = column.priority
    return result


def _subresources(meta: CrdMeta) -> Json:
    result: Json = {"status": {}}
    if meta.scale is not None:
        result["scale"] = {
            "specReplicasPath": meta.scale.spec_path,
            "statusReplicasPath": meta.scale.status_path,
            "labelSelectorPath": meta.scale.selector_path,
        }
    return result
