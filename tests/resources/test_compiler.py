"""The compiler from models to structural schemas: what it emits, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from rezone.resources.crd import (
    LIST_MAP_KEYS,
    LIST_TYPE,
    PRESERVE,
    RULES,
    CompileError,
    custom_resource_definitions,
    structural_schema,
)
from rezone.resources.meta import Rule
from rezone.resources.model import Model
from rezone.resources.zone import ApprovalMode

Json = dict[str, Any]

DEFINITIONS = custom_resource_definitions()
SCHEMAS = {
    item["spec"]["names"]["kind"]: item["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for item in DEFINITIONS
}
ALLOWED = {
    "type", "format", "description", "default", "enum", "pattern", "minimum", "maximum",
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "required",
    "properties", "items", "additionalProperties", RULES, LIST_TYPE, LIST_MAP_KEYS, PRESERVE,
}  # fmt: skip


def nodes(path: str, schema: Json) -> Iterator[tuple[str, Json]]:
    """Yield every schema below one, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(f"{path}.{name}", inner)
    if "items" in schema:
        yield from nodes(f"{path}[]", schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(f"{path}{{}}", schema["additionalProperties"])


ALL = [node for kind, schema in SCHEMAS.items() for node in nodes(kind, schema)]
FIELDS = [(path, schema) for path, schema in ALL if ".metadata" not in path]


def test_only_structural_keywords() -> None:
    """A keyword that CRDs do not know is dropped by the server, and a check with it."""
    assert [(path, found) for path, s in ALL if (found := s.keys() - ALLOWED)] == []


def test_every_schema_has_a_type() -> None:
    """The server refuses a schema without one as not structural."""
    assert [path for path, schema in ALL if "type" not in schema] == []


def test_properties_and_additional_properties_exclude_each_other() -> None:
    """Structural schemas forbid both in one place."""
    assert [p for p, s in ALL if "properties" in s and "additionalProperties" in s] == []


def test_strings_lists_and_maps_are_bounded() -> None:
    """Without bounds the cost estimate of CEL explodes, and objects outgrow etcd."""
    bounded = {
        "string": ("maxLength", "enum", "format"),
        "array": ("maxItems",),
        "object": ("maxProperties", "properties", PRESERVE),
        "integer": ("maximum",),
    }
    loose = [
        path
        for path, schema in FIELDS
        if schema["type"] in bounded and not schema.keys() & set(bounded[schema["type"]])
    ]
    assert loose == []


def test_numbers_are_exact_in_json() -> None:
    """Bounds are float64 in the server; over 2**53 it would round them."""
    assert [p for p, s in ALL if abs(s.get("maximum", 0)) > 1 << 53] == []


def test_list_map_keys_are_required() -> None:
    """The server refuses list-map keys that an item may lack."""
    for path, schema in ALL:
        for key in schema.get(LIST_MAP_KEYS, ()):
            assert key in schema["items"]["required"], path


def test_lists_say_how_they_merge() -> None:
    """Without a list type, two appliers overwrite each other's items."""
    assert [p for p, s in ALL if s["type"] == "array" and LIST_TYPE not in s] == []


def test_every_field_is_described() -> None:
    """`kubectl explain` would show an empty line."""
    bare = [p for p, s in FIELDS if not s.get("description") and not p.endswith(("[]", "{}"))]
    assert bare == []


def test_defaults_are_single_values_of_the_spec() -> None:
    """A default object would materialize fields nobody asked for; one in status would lie."""
    found = {path: schema["default"] for path, schema in ALL if "default" in schema}
    assert found
    assert all(isinstance(value, str | int | bool) and value for value in found.values())
    assert [path for path in found if ".status" in path] == []


def test_every_rule_says_what_to_do_and_where() -> None:
    """A refusal without advice sends the user to the source code."""
    rules = [(path, rule) for path, schema in ALL for rule in schema.get(RULES, ())]
    assert len(rules) > 25
    by_path = dict(ALL)
    for path, rule in rules:
        assert len(rule["message"]) > 20
        assert not rule["message"].endswith(".")
        if "fieldPath" in rule:
            assert path + rule["fieldPath"] in by_path, rule


def test_rules_guard_optional_fields() -> None:
    """An unguarded optional field makes a rule fail with `no such key` instead of its message."""
    for path, schema in ALL:
        fields = schema.get("properties", {})
        sure = {*schema.get("required", ()), *(n for n, f in fields.items() if "default" in f)}
        for rule in schema.get(RULES, ()):
            for name in fields.keys() - sure - {"metadata"}:
                if f"self.{name}" in rule["rule"]:
                    assert f"has(self.{name})" in rule["rule"], (path, name)


def test_definitions_carry_names_and_subresources() -> None:
    """Short names, category, /status and /scale are what people type every day."""
    for item in DEFINITIONS:
        names = item["spec"]["names"]
        assert item["metadata"]["name"] == f"{names['plural']}.rezone.dev"
        assert names["categories"] == ["rezone"]
        assert item["spec"]["versions"][0]["subresources"]["status"] == {}
    zone = DEFINITIONS[0]["spec"]["versions"][0]
    assert zone["subresources"]["scale"]["specReplicasPath"] == ".spec.dataNodes.count"


def test_printer_columns_point_at_fields() -> None:
    """A column over a renamed field stays empty for ever."""
    for item in DEFINITIONS:
        version = item["spec"]["versions"][0]
        known = dict(nodes("", version["schema"]["openAPIV3Schema"]))
        for column in version["additionalPrinterColumns"]:
            path = column["jsonPath"].replace('[?(@.type=="Ready")]', "[]")
            assert path in known or path == ".metadata.creationTimestamp", path


class Inner(Model):
    """An inner model."""

    mode: ApprovalMode = Field(default=ApprovalMode.MANUAL, description="How.")


class Sample(Model):
    """One of everything the compiler translates."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(rule="self.above > 1", message="m", field_path=".above", message_expression="'x'"),
    )

    above: Annotated[int, Field(gt=0, lt=10)]
    maybe: Annotated[str, Field(max_length=3)] | None = None
    literal: Literal["only"] = "only"
    inner: Inner | None = Field(default=None, description="Beside the reference.")


def test_translations() -> None:
    """Each is a form pydantic emits that CRDs do not know."""
    schema = structural_schema(Sample, defaults=True)
    fields = schema["properties"]
    assert fields["above"] == {"type": "integer", "format": "int32", "minimum": 1, "maximum": 9}
    assert fields["maybe"] == {"type": "string", "maxLength": 3}
    assert fields["literal"] == {"type": "string", "enum": ["only"], "default": "only"}
    assert fields["inner"]["description"] == "Beside the reference."
    assert fields["inner"]["properties"]["mode"]["enum"] == ["Automatic", "Manual"]
    assert "Manual: a plan waits" in fields["inner"]["properties"]["mode"]["description"]
    assert schema[RULES] == [
        {
            "rule": "self.above > 1",
            "message": "m",
            "messageExpression": "'x'",
            "fieldPath": ".above",
        }
    ]
    assert schema["required"] == ["above"]


def test_defaults_can_be_left_out() -> None:
    """Status has none: what the operator has not said is not there."""
    schema = structural_schema(Sample, defaults=False)
    assert "default" not in schema["properties"]["literal"]


class Recursive(Model):
    """Contains itself."""

    child: Recursive | None = None


class Union(Model):
    """Two types."""

    value: int | str


class Pair(Model):
    """A tuple of two types."""

    value: tuple[int, str]


class Anything(Model):
    """No type."""

    value: Any


class Floating(Model):
    """A float."""

    value: float


class Unmerged(Model):
    """A list without a list type."""

    value: Annotated[tuple[int, ...], Field(max_length=3)]


class Unique(Model):
    """A set."""

    value: set[int]


class Open(Model):
    """A map of anything, not marked."""

    value: dict[str, Any]


@pytest.mark.parametrize(
    "model", [Recursive, Union, Pair, Anything, Floating, Unmerged, Unique, Open]
)
def test_refusals(model: type[Model]) -> None:
    """What has no structural form must fail here and not be dropped by the server."""
    with pytest.raises(CompileError, match=r"value|child|Recursive"):
        structural_schema(model, defaults=True)
