"""What the author of a zone may set in its templates: pure, and safe with any JSON.

Who may create a zone has the operator create pods, so a template is a way to have what Kubernetes
would refuse to its author: host paths, other accounts, Secrets of the namespace, any program with
the data node's key. A policy is a list of the fields that may be set. All others are refused,
null included, which would remove what the operator sets.

A field is a path of names, with a part in brackets for keys that are chosen freely: of a map, or
of a list that is merged by a key of its items.

    spec.tolerations                                  the field with all that is in it
    spec.containers[data-node].env[REZONE_NODE_*].value
    metadata.annotations[prometheus.io/*]             "*" stands for anything but "/"
    *                                                 everything
"""

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Self

VALUES_MAX: Final = 4096
"""So many values a template may have in all; each pass of the zone looks at them."""
DEPTH_MAX: Final = 32
FAULTS_MAX: Final = 3
PATH_CHARACTERS_MAX: Final = 120

_EVERYTHING = "*"
_FIELD = re.compile(r"[A-Za-z]+(\[[^\[\],]+\])?(\.[A-Za-z]+(\[[^\[\],]+\])?)*")
_PART = re.compile(r"\[[^\[\]]+\]|[A-Za-z]+")

_DATA_NODE = "spec.containers[data-node]"
_PROBES = tuple(
    f"{_DATA_NODE}.{probe}.{time}"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    for time in ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold")
)

POD_FIELDS: Final = (
    # Names without a prefix are for people. Those with one tell other controllers what to do.
    "metadata.annotations[*]",
    "metadata.annotations[prometheus.io/*]",
    "metadata.annotations[rezone.dev/*]",
    "metadata.annotations[cluster-autoscaler.kubernetes.io/*]",
    "metadata.labels[*]",
    "metadata.labels[app.kubernetes.io/*]",
    "metadata.labels[rezone.dev/*]",
    # Where the pod runs, and who gives way to it: scheduler and quotas check it as they do for all.
    "spec.affinity",
    "spec.nodeSelector",
    "spec.priorityClassName",
    "spec.tolerations",
    "spec.topologySpreadConstraints",
    "spec.terminationGracePeriodSeconds",
    # Other users, where a cluster gives each namespace a range; runAsNonRoot stays.
    "spec.securityContext.fsGroup",
    "spec.securityContext.fsGroupChangePolicy",
    "spec.securityContext.runAsGroup",
    "spec.securityContext.runAsUser",
    f"{_DATA_NODE}.resources.limits",
    f"{_DATA_NODE}.resources.requests",
    # Literal values of the data node's own settings: a reference could be to any Secret.
    f"{_DATA_NODE}.env[REZONE_NODE_*].value",
    *_PROBES,
    "spec.volumes[data].emptyDir",
    "spec.volumes[tmp].emptyDir",
)

_SPARK_CONF = (
    "spark.dynamicAllocation.*",
    "spark.executor.heartbeatInterval",
    "spark.executor.memoryOverhead*",
    "spark.driver.memoryOverhead*",
    "spark.memory.*",
    "spark.network.timeout",
    "spark.speculation*",
    "spark.sql.adaptive.*",
    "spark.sql.shuffle.partitions",
    "spark.task.cpus",
    "spark.task.maxFailures",
)

SPARK_FIELDS: Final = (
    "suspend",
    "timeToLiveSeconds",
    "executor.instances",
    *(
        f"{role}.{field}"
        for role in ("driver", "executor")
        for field in (
            *("cores", "coreRequest", "coreLimit", "memory", "memoryOverhead"),
            *("affinity", "nodeSelector", "priorityClassName", "tolerations"),
        )
    ),
    *(f"sparkConf[{name}]" for name in _SPARK_CONF),
)

_Rest = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class TemplatePolicy:
    """The fields that a template may set.

    `keys` names, by the name of a list, the field that tells its items apart.
    """

    fields: frozenset[_Rest]
    keys: Mapping[str, str]
    everything: bool = False

    @classmethod
    def of(cls, fields: Iterable[str], keys: Mapping[str, str]) -> Self:
        """Return the policy of these fields. Raises ValueError for what is no field."""
        listed = list(fields)
        for each in listed:
            if each != _EVERYTHING and not _FIELD.fullmatch(each):
                raise ValueError(f"{each!r} is no field of a template: spec.nodeName, for example")
        parts = frozenset(tuple(_PART.findall(f)) for f in listed if f != _EVERYTHING)
        return cls(parts, keys, everything=_EVERYTHING in listed)

    def fault(self, template: object) -> str:
        """Return why the template may not be used, with the first fields; empty when it may."""
        if template is None:
            return ""
        if size := _size_fault(template):
            return size
        if self.everything:
            return "" if isinstance(template, Mapping) else "it is no map"
        refused = list(dict.fromkeys(self._refused(template, "", self.fields, "")))
        if not refused:
            return ""
        more = f" and {len(refused) - FAULTS_MAX} more" if len(refused) > FAULTS_MAX else ""
        return f"{', '.join(map(_shown, refused[:FAULTS_MAX]))}{more} may not be set"

    def _refused(
        self, value: object, name: str, allowed: frozenset[_Rest], path: str
    ) -> Iterator[str]:
        """Yield the paths that no field allows; `allowed` are the rests of fields that led here."""
        if () in allowed:
            return
        key = self.keys.get(name)
        if allowed and isinstance(value, list) and key is not None:
            for item in value:
                yield from self._item(item, key, allowed, path)
        elif allowed and isinstance(value, Mapping) and key is None:
            for each, child in value.items():
                yield from self._refused(child, each, *_step(allowed, path, each))
        else:
            yield path or "the template"

    def _item(self, item: object, key: str, allowed: frozenset[_Rest], path: str) -> Iterator[str]:
        chosen = item.get(key) if isinstance(item, Mapping) else None
        if not isinstance(item, Mapping) or not isinstance(chosen, str):
            yield f"{path}[] without a {key} that is a text"
            return
        rests = frozenset(r[1:] for r in allowed if _matches(r[0], chosen, brackets_only=True))
        if not rests:
            yield f"{path}[{chosen}]"
        elif () not in rests:
            others = {k: v for k, v in item.items() if k != key}
            yield from self._refused(others, "", rests, f"{path}[{chosen}]")


def _step(allowed: frozenset[_Rest], path: str, key: str) -> tuple[frozenset[_Rest], str]:
    """Return what is allowed below a key of a map, and the key's path."""
    bracketed = any(rest[0].startswith("[") for rest in allowed)
    below = f"{path}[{key}]" if bracketed else f"{path}.{key}".removeprefix(".")
    return frozenset(rest[1:] for rest in allowed if _matches(rest[0], key)), below


def _matches(part: str, key: str, *, brackets_only: bool = False) -> bool:
    if not part.startswith("["):
        return part == key and not brackets_only
    patterns, names = part[1:-1].split("/"), key.split("/")
    return len(patterns) == len(names) and all(map(fnmatch.fnmatchcase, names, patterns))


def _size_fault(template: object) -> str:
    """Return why a template is too large or too deep to be looked at; without recursion."""
    level: list[object] = [template]
    count = 0
    for _ in range(DEPTH_MAX):
        below: list[object] = []
        for value in level:
            if isinstance(value, Mapping):
                below += value.values()
            elif isinstance(value, list):
                below += value
        count += len(level)
        if count > VALUES_MAX:
            return f"it has more than {VALUES_MAX} values"
        if not below:
            return ""
        level = below
    return f"it is more than {DEPTH_MAX} levels deep"


def _shown(path: str) -> str:
    text = path if path.isprintable() else ascii(path)
    return text if len(text) <= PATH_CHARACTERS_MAX else f"{text[:PATH_CHARACTERS_MAX]}..."
