"""The base of all resource models, and the types that several of them use.

Stored objects are parsed leniently (unknown fields ignored, so that a newer operator's status
does not stop an older one); what the operator writes is built from these same frozen models.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

Name = Annotated[
    str,
    Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
]
LabelKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"
        r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    ),
]
ShortText = Annotated[str, Field(max_length=256)]
Message = Annotated[str, Field(max_length=4096)]
CompactText = Annotated[str, Field(max_length=320_000)]
NodeNumber = Annotated[int, Field(ge=0, le=2_147_483_647)]
"""The id of a data node; ids are never used again."""
Count = Annotated[int, Field(ge=0, le=1 << 50)]
"""A number of things or bytes; API servers and jq keep whole numbers exact up to 2**53."""


def _kubernetes_time(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[
    AwareDatetime,
    PlainSerializer(_kubernetes_time, return_type=str, when_used="json"),
]


class Model(BaseModel):
    """Frozen, camelCase on the outside, lenient when parsing."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",
    )

    def dump(self) -> dict[str, Any]:
        """Return the JSON form as Kubernetes stores it: absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class OwnerReference(Model):
    """The part of an owner reference that the operator reads."""

    kind: str
    name: str
    uid: str = ""


class ObjectMeta(Model):
    """The part of Kubernetes' object metadata that the operator reads."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    deletion_timestamp: AwareDatetime | None = None
    creation_timestamp: AwareDatetime | None = None


Spec = TypeVar("Spec", bound=Model)
Status = TypeVar("Status", bound=Model)


class CustomObject(Model, Generic[Spec, Status]):
    """One stored object: metadata, spec and, once the operator has seen it, status."""

    metadata: ObjectMeta
    spec: Spec
    status: Status | None = None

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Return the object from its JSON form; pydantic's ValidationError says what is wrong."""
        return cls.model_validate(body)
