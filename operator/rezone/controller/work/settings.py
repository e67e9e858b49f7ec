"""The coordinator's settings, all from the environment, each with its unit in its name."""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any, Self

from rezone.domain.access.template_policy import POD_FIELDS, SPARK_FIELDS, TemplatePolicy
from rezone.domain.machines.resharding_table import GRACE_SECONDS
from rezone.kube.nodes.template import MERGE_KEYS
from rezone.kube.tls.certificates import AUTHORITY_SECRET, NodeNames

LOG_LEVELS = ("debug", "info", "warning", "error")
TLS_MODES = ("issued", "provided", "off")
_ALLOWED = {
    "log_level": LOG_LEVELS,
    "tls": TLS_MODES,
    "data_node_names": tuple(NodeNames),
    "client_login": ("on", "off"),
    "tracing": ("off", "otlp"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """What the operator can be told; docs/settings.yaml has the meanings."""

    namespaces: tuple[str, ...] = ()
    namespace: str = ""
    zones_in_own_namespace: tuple[str, ...] = ()
    pod_template_fields: tuple[str, ...] = ()
    spark_template_fields: tuple[str, ...] = ()
    identity: str = "rezone-operator"
    lease_namespace: str = "default"
    lease_duration_seconds: int = 8
    leader_lease_seconds: float = 5.0
    lost_after_seconds: float = 300.0
    resharding_grace_seconds: float = GRACE_SECONDS
    report_timeout_seconds: float = 2.0
    call_timeout_seconds: float = 10.0
    resync_seconds: float = 20.0
    reconciles_max: int = 8
    max_migrations_per_kubernetes_node: int = 16
    data_node_image: str = "rezone-data-node:latest"
    data_node_service_account: str = "default"
    spark_image: str = "rezone-spark:latest"
    spark_service_account: str = "default"
    tls: str = "off"
    tls_authority_secret: str = AUTHORITY_SECRET
    data_node_names: str = NodeNames.OWN.value
    client_login: str = "on"
    tracing: str = "off"
    log_level: str = "info"
    health_address: str = "127.0.0.1"
    health_port: int = 8080

    def __post_init__(self) -> None:
        """Refuse numbers that no time, count or port can be."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            allowed = _ALLOWED.get(field.name)
            if allowed is not None and value not in allowed:
                listed = ", ".join(allowed)
                raise ValueError(f"{_variable(field.name)}={value}: must be one of {listed}")
            if isinstance(value, int | float) and not 0 < value < math.inf:
                raise ValueError(f"{_variable(field.name)}={value}: must be above 0 and finite")
        self.pod_policy()
        self.spark_policy()

    def pod_policy(self) -> TemplatePolicy:
        """Return what podTemplates may set. Raises ValueError for what is no field."""
        return _policy("pod_template_fields", POD_FIELDS, self.pod_template_fields)

    def spark_policy(self) -> TemplatePolicy:
        """Return what sparkTemplates may set. Raises ValueError for what is no field."""
        return _policy("spark_template_fields", SPARK_FIELDS, self.spark_template_fields)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the settings that REZONE_* variables name; ValueError names a bad one."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            text = environment.get(_variable(field.name))
            if text is None:
                continue
            values[field.name] = _parse(field.name, text, field.default)
        if "identity" not in values and (pod := environment.get("POD_NAME")):
            values["identity"] = pod
        if "lease_namespace" not in values and (ns := environment.get("REZONE_NAMESPACE")):
            values["lease_namespace"] = ns
        return cls(**values)


def _policy(name: str, always: tuple[str, ...], more: tuple[str, ...]) -> TemplatePolicy:
    try:
        return TemplatePolicy.of((*always, *more), MERGE_KEYS)
    except ValueError as error:
        raise ValueError(f"{_variable(name)}: {error}") from error


def _variable(name: str) -> str:
    return f"REZONE_{name.upper()}"


def _parse(name: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, tuple):
            return tuple(part.strip() for part in text.split(",") if part.strip())
        return type(default)(text)
    except ValueError as error:
        raise ValueError(f"{_variable(name)}={text!r}: {error}") from error
