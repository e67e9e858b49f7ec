"""The environment, command and arguments of a container that is only a process.

Containers share the machine's file system, so a text that names a path below a volume's mount path
is rewritten to the volume's directory on the host.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import rezone

_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
# What a process may know of the machine; proxies, tokens and KUBECONFIG of the person stay out.
_INHERITED = ("LANG", "LC_ALL", "TZ", "TMPDIR", "JAVA_HOME")
_MEMORY_BYTES = 8.0 * 1024**3


class ConfigError(Exception):
    """The container cannot be made from its spec; the message is shown in its waiting state."""


class Lookup(Protocol):
    """Reads the data of a ConfigMap or Secret; None if it does not exist."""

    async def __call__(self, kind: str, namespace: str, name: str) -> dict[str, bytes] | None:
        """Return the object's keys with their bytes."""


@dataclass(frozen=True)
class Invocation:
    """What to execute."""

    command: tuple[str, ...]
    env: dict[str, str]
    directory: Path


def base_environment(home: Path) -> dict[str, str]:
    """Return what every process gets: this project's programs on PATH, and it importable."""
    env = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    package_root = Path(rezone.__path__[0]).parent
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    env["PYTHONPATH"] = str(package_root)
    env["PYTHONUNBUFFERED"] = "1"
    env["HOME"] = str(home)
    return env


async def build_environment(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    base: Mapping[str, str],
    lookup: Lookup,
) -> dict[str, str]:
    """Return the container's variables in the order of its spec.

    Raises ConfigError if a key that is not optional does not exist.
    """
    env = dict(base)
    namespace = pod["metadata"]["namespace"]
    for source in container.get("envFrom", []):
        kind, reference = _env_from(source)
        data = await lookup(kind, namespace, reference["name"])
        if data is None and not reference.get("optional"):
            raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
        prefix = source.get("prefix", "")
        env.update({prefix + key: value.decode() for key, value in (data or {}).items()})
    for item in container.get("env", []):
        if "valueFrom" in item:
            value = await _value_from(pod, container, item["valueFrom"], lookup)
        else:
            value = expand(item.get("value", ""), env)
        if value is not None:
            env[item["name"]] = value
    return env


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace $(NAME) as Kubernetes does: unknown names stay as they are, $$ is a dollar sign."""

    def replacement(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else env.get(match[1], match[0])

    return _VARIABLE.sub(replacement, text)


def rewrite_mounts(text: str, mounts: Mapping[str, Path]) -> str:
    """Replace mount paths that a text begins with, or that follow a `=`, `,` or `:` in it."""
    if not mounts:
        return text
    hosts = {path.rstrip("/"): str(host) for path, host in mounts.items()}
    longest_first = sorted(hosts, key=len, reverse=True)
    # One pass over the text: a host directory may itself begin with a mount path such as /tmp.
    paths = "|".join(re.escape(path) for path in longest_first)
    pattern = rf"(^|[=,:])({paths})(?=$|[/,:])"
    return re.sub(pattern, lambda match: match[1] + hosts[match[2]], text)


def build_invocation(
    container: Mapping[str, Any], env: Mapping[str, str], mounts: Mapping[str, Path], home: Path
) -> Invocation:
    """Return the command line with variables expanded and mounts rewritten.

    Raises ConfigError if the container names no command: there is no image to take one from.
    """
    words = [*container.get("command", []), *container.get("args", [])]
    if not container.get("command"):
        raise ConfigError("no command specified (the local agent has no images to take one from)")
    expanded = [rewrite_mounts(expand(word, env), mounts) for word in words]
    rewritten = {
        # PATH and the like hold many paths; only whole values of the spec's own are texts to
        # rewrite.
        key: value
        if key in {"PATH", "PYTHONPATH", "HOME", "KUBECONFIG"} or key.startswith("REZONE_MOUNT_")
        else rewrite_mounts(value, mounts)
        for key, value in env.items()
    }
    wanted = rewrite_mounts(container.get("workingDir", ""), mounts)
    directory = Path(wanted) if wanted and Path(wanted).is_dir() else home
    return Invocation(tuple(expanded), rewritten, directory)


def mount_variables(mounts_by_volume: Mapping[str, Path]) -> dict[str, str]:
    """Return REZONE_MOUNT_<VOLUME> for every mounted volume."""
    return {
        f"REZONE_MOUNT_{re.sub('[^A-Z0-9]', '_', name.upper())}": str(path)
        for name, path in mounts_by_volume.items()
    }


def field_value(pod: Mapping[str, Any], path: str) -> str:
    """Return what a fieldRef points to.

    Raises ConfigError for a path the downward API does not have.
    """
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    keyed = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if keyed:
        return str(metadata.get(keyed[1], {}).get(keyed[2], ""))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": status.get("podIP", ""),
        "status.hostIP": status.get("hostIP", ""),
        "status.hostIPs": status.get("hostIP", ""),
    }
    if path in values:
        return str(values[path])
    if path in {"metadata.labels", "metadata.annotations"}:
        entries = metadata.get(path.removeprefix("metadata."), {})
        return "\n".join(f'{key}="{value}"' for key, value in sorted(entries.items()))
    raise ConfigError(f"unsupported fieldPath {path!r}")


def resource_value(container: Mapping[str, Any], name: str, divisor: str) -> str:
    """Return a request or limit in units of the divisor; the machine's size without one."""
    section, _, resource = name.partition(".")
    quantity = container.get("resources", {}).get(section, {}).get(resource)
    if quantity is None:
        whole = float(os.cpu_count() or 1) if resource == "cpu" else _MEMORY_BYTES
    else:
        whole = parse_quantity(str(quantity))
    return str(int(-(-whole // parse_quantity(divisor or "1"))))


def parse_quantity(text: str) -> float:
    """Return a Kubernetes quantity such as 500m or 2Gi as a number."""
    match = re.fullmatch(r"([0-9.]+)(m|[kMGTPE]|[KMGTPE]i)?", text)
    if match is None:
        return float(text)
    unit = match[2] or ""
    if unit == "m":
        return float(match[1]) / 1000
    power = " KMGTPE".index(unit[0].upper()) if unit else 0
    base = 1024.0 if unit.endswith("i") else 1000.0
    return float(match[1]) * float(base**power)


def _env_from(source: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if "configMapRef" in source:
        return "ConfigMap", source["configMapRef"]
    return "Secret", source["secretRef"]


async def _value_from(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    source: Mapping[str, Any],
    lookup: Lookup,
) -> str | None:
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        reference = source["resourceFieldRef"]
        return resource_value(container, reference["resource"], str(reference.get("divisor", "1")))
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if field in source:
            return await _key(pod["metadata"]["namespace"], kind, source[field], lookup)
    raise ConfigError(f"unsupported valueFrom {sorted(source)}")


async def _key(
    namespace: str, kind: str, reference: Mapping[str, Any], lookup: Lookup
) -> str | None:
    data = await lookup(kind, namespace, reference["name"])
    value = (data or {}).get(reference["key"])
    if value is not None:
        return value.decode()
    if reference.get("optional"):
        return None
    if data is None:
        raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
    raise ConfigError(f"couldn't find key {reference['key']} in {kind} {reference['name']}")


def object_data(kind: str, item: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the keys of a ConfigMap or Secret with their bytes."""
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    data = {key: str(value).encode() for key, value in (item.get("data") or {}).items()}
    binary = item.get("binaryData") or {}
    return data | {key: base64.b64decode(value) for key, value in binary.items()}
