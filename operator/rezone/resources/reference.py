"""The reference page: fields, rules and columns of the kinds, and all conditions and reasons.

It reads the compiled definitions, so the page says what the API server checks, and not what a
model looks like before it is compiled.
"""

import enum
from collections.abc import Iterator
from typing import Any

from rezone.resources import API_VERSION
from rezone.resources.conditions import ConditionType, Reason
from rezone.resources.crd import (
    KINDS,
    LIST_MAP_KEYS,
    LIST_TYPE,
    PRESERVE,
    RULES,
    crd_meta,
    custom_resource_definition,
    value_comments,
)
from rezone.resources.migration import MigrationState
from rezone.resources.task import TaskState

Json = dict[str, Any]

_INTRODUCTION = f"""# Reference

The custom resources of `{API_VERSION}`. `kubectl get rezone` lists all of them;
`kubectl explain dz.spec` tells the same as this page.

A dot leads into an object, `[]` into the items of a list, `{{}}` into the values of a map. Fields
in **bold** are required. Rules are checked by the API server before anything is stored.
"""

_CONDITIONS = """## Conditions

They follow kstatus: `Ready` stands from the first visit of the operator, `Reconciling` and
`Stalled` stand only while they are True, so that `kubectl wait`, Argo CD and Flux read an object
without knowing its kind. Tasks and migrations carry `Succeeded`, which is Unknown while they run:

    kubectl wait --for=condition=Ready dz/orders
    kubectl wait --for=condition=Succeeded rbt/drain-2 --timeout=10m
"""


def reference_page() -> str:
    """Return the page as Markdown."""
    parts = [_INTRODUCTION]
    for kind in KINDS:
        parts += _kind(custom_resource_definition(kind), crd_meta(kind).plural)
    parts += [_CONDITIONS, _values(ConditionType, "Condition", "Meaning")]
    parts += ["## Reasons\n", _values(Reason, "Reason", "When it surfaces")]
    parts += ["## States\n", "A RebalanceTask goes through:\n", _list(TaskState)]
    parts += ["A RegionMigration goes through:\n", _list(MigrationState)]
    return "\n".join(parts)


def _kind(definition: Json, plural: str) -> Iterator[str]:
    names = definition["spec"]["names"]
    version = definition["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    yield f"## {names['kind']}\n"
    short = ", ".join(f"`{name}`" for name in names["shortNames"])
    yield f"{schema['description']} Short name: {short}; resource: `{plural}`.\n"
    for part in ("spec", "status"):
        yield f"### {names['kind']} {part}\n"
        yield _table(
            ("Field", "Type", "Limits", "Default", "Meaning"),
            _fields(part, schema["properties"][part]),
        )
    yield "### Rules\n"
    yield _table(("At", "Rule"), _rules("", schema))
    scale = version["subresources"].get("scale")
    if scale:
        yield (
            f"`kubectl scale` sets `{scale['specReplicasPath'].lstrip('.')}` and reads "
            f"`{scale['statusReplicasPath'].lstrip('.')}`.\n"
        )
    yield "### Columns\n"
    yield _table(
        ("Column", "Shows", "With"),
        (
            (
                column["name"],
                f"`{column['jsonPath'].lstrip('.')}`",
                "`-o wide`" if column.get("priority") else "",
            )
            for column in version["additionalPrinterColumns"]
        ),
    )


def _fields(path: str, schema: Json) -> Iterator[tuple[str, ...]]:
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        inner = f"{path}.{name}"
        shown = f"**`{inner}`**" if name in required else f"`{inner}`"
        default = f"`{field['default']}`" if "default" in field else ""
        yield (shown, _type(field), _limits(field), default, field.get("description", ""))
        yield from _below(inner, field)


def _below(path: str, schema: Json) -> Iterator[tuple[str, ...]]:
    if "properties" in schema:
        yield from _fields(path, schema)
    elif schema.get("items", {}).get("type") == "object":
        yield from _fields(f"{path}[]", schema["items"])


def _type(schema: Json) -> str:
    match schema["type"]:
        case "array":
            merged = schema[LIST_TYPE]
            keys = ", ".join(schema.get(LIST_MAP_KEYS, ()))
            how = {"map": f"by {keys}", "set": "no repetitions", "atomic": "in order"}[merged]
            return f"list of {_type(schema['items'])}, {how}"
        case "object" if "additionalProperties" in schema:
            return f"map to {_type(schema['additionalProperties'])}"
        case "object" if schema.get(PRESERVE):
            return "object, any fields"
        case "string" if schema.get("format") == "date-time":
            return "time"
        case other:
            return str(other)


def _limits(schema: Json) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    found = [
        _range("", schema, "minimum", "maximum"),
        _range(" characters", schema, "minLength", "maxLength"),
        _range(" items", schema, "minItems", "maxItems"),
        _range(" entries", schema, "minProperties", "maxProperties"),
        f"`{schema['pattern']}`" if "pattern" in schema else "",
    ]
    return "; ".join(part for part in found if part)


def _range(unit: str, schema: Json, low: str, high: str) -> str:
    if low in schema and high in schema:
        return f"{schema[low]} to {schema[high]}{unit}"
    if high in schema:
        return f"at most {schema[high]}{unit}"
    return f"at least {schema[low]}{unit}" if low in schema else ""


def _rules(path: str, schema: Json) -> Iterator[tuple[str, ...]]:
    for rule in schema.get(RULES, ()):
        place = (path + rule.get("fieldPath", "")).lstrip(".")
        yield (f"`{place}`", rule["message"])
    for name, field in schema.get("properties", {}).items():
        yield from _rules(f"{path}.{name}", field)
    if "items" in schema:
        yield from _rules(f"{path}[]", schema["items"])


def _values(values: type[enum.Enum], name: str, meaning: str) -> str:
    comments = value_comments(values)
    return _table((name, meaning), ((f"`{v.value}`", comments[v.name]) for v in values))


def _list(values: type[enum.Enum]) -> str:
    return ", ".join(f"`{value.value}`" for value in values) + ".\n"


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(_cell(c) for c in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
