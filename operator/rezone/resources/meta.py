"""What a kind needs beside its schema to become a CRD: names, columns, rules, subresources."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A printer column of `kubectl get`; priority 1 shows only with -o wide."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    description: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A CEL rule: `message` says what to do; `field_path` is relative to where the rule stands.

    A rule about several fields at once has no field path: the server then names their parent.
    """

    rule: str
    message: str
    field_path: str = ""
    message_expression: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """The paths of the /scale subresource."""

    spec_path: str
    status_path: str
    selector_path: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrdMeta:
    """All that the compiler adds to a model."""

    kind: str
    plural: str
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]
    categories: tuple[str, ...] = ("rezone",)
    scale: Scale | None = None
    selectable_fields: tuple[str, ...] = ()
