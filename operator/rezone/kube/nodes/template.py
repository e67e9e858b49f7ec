"""Merging a person's template override into what the operator builds.

The rules are those of kubectl's strategic merge as far as pods need them: maps are merged by key;
null removes a key; the lists below are merged by the named key of their items, in the operator's
order with new items behind; every other list is replaced whole.
"""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rezone.domain.access.template_policy import POD_FIELDS, SPARK_FIELDS, TemplatePolicy

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "configMaps": "name",
    "secrets": "name",
}

POD_POLICY = TemplatePolicy.of(POD_FIELDS, MERGE_KEYS)
SPARK_POLICY = TemplatePolicy.of(SPARK_FIELDS, MERGE_KEYS)


def merge(base: Mapping[str, Any], override: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return `base` with `override` merged in; neither is changed."""
    merged: dict[str, Any] = copy.deepcopy(dict(base))
    for key, value in (override or {}).items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        elif _is_keyed(key, value) and _is_keyed(key, merged.get(key)):
            merged[key] = _merge_items(MERGE_KEYS[key], merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _is_keyed(key: str, value: Any) -> bool:
    name = MERGE_KEYS.get(key)
    if name is None or not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return all(isinstance(item, Mapping) and _is_key(item.get(name)) for item in value)


def _is_key(value: Any) -> bool:
    """Return whether an item can be found by this value: what a person wrote may be anything."""
    return isinstance(value, str | int)


def _merge_items(
    name: str,
    base: Sequence[Mapping[str, Any]],
    override: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    items: dict[Any, dict[str, Any]] = {item[name]: dict(item) for item in base}
    for item in override:
        items[item[name]] = merge(items.get(item[name], {}), item)
    return list(items.values())


def fingerprint(value: Any) -> str:
    """Return a short hash of a JSON value that does not depend on the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
