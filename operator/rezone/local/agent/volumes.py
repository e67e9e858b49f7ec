"""Volumes as directories, and the service account's token and kubeconfig."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rezone.local.agent.environment import ConfigError, field_value
from rezone.local.agent.settings import Services
from rezone.local.api import Json
from rezone.local.controlplane import write_kubeconfig
from rezone.local.errors import ApiError
from rezone.local.processes import write_atomically

_TOKEN_SECONDS = 3600
# A token is replaced when less than this share of its life is left.
_REFRESH_SHARE = 0.4
_ACCOUNT_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class VolumeWait(Exception):  # noqa: N818 - a state to wait in, not an error
    """A volume cannot be made yet; the message says what it waits for."""


async def prepare_volumes(pod: Json, services: Services) -> dict[str, Path]:
    """Make or refresh every volume of a pod; return their directories by volume name.

    Raises VolumeWait while something they need does not exist, ApiError.
    """
    root = services.pod_directory(pod) / "volumes"
    made: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes", []):
        name = volume["name"]
        if "persistentVolumeClaim" in volume or "ephemeral" in volume:
            made[name] = await _claimed(pod, volume, services)
        elif "hostPath" in volume:
            made[name] = Path(volume["hostPath"]["path"])
        else:
            made[name] = await _filled(pod, volume, root / name, services)
    return made


async def prepare_account(pod: Json, services: Services) -> Path | None:
    """Write or refresh the kubeconfig of the pod's account; None if the pod wants no token."""
    mounts = [m for c in pod["spec"]["containers"] for m in c.get("volumeMounts", [])]
    if not any(mount["mountPath"] == _ACCOUNT_MOUNT for mount in mounts):
        return None
    directory = services.pod_directory(pod) / "account"
    token_path, target = directory / "token", directory / "kubeconfig"
    source = {"expirationSeconds": _TOKEN_SECONDS}
    token = await _token(pod, source, token_path, services)
    write_atomically(token_path, token)
    write_atomically(directory / "ca.crt", services.api.authority)
    write_kubeconfig(
        target,
        server=services.api.server,
        authority=directory / "ca.crt",
        user={"token": token, "tokenFile": str(token_path)},
        namespace=pod["metadata"]["namespace"],
    )
    return target


async def _claimed(pod: Json, volume: Mapping[str, Any], services: Services) -> Path:
    namespace = pod["metadata"]["namespace"]
    if "ephemeral" in volume:
        name = f"{pod['metadata']['name']}-{volume['name']}"
    else:
        name = volume["persistentVolumeClaim"]["claimName"]
    try:
        claim = await services.api.get(
            f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
        )
        if claim.get("status", {}).get("phase") != "Bound":
            # A pod that names its node skips the scheduler, which would have marked the claim.
            await services.provision(claim, pod["spec"]["nodeName"])
            raise VolumeWait(f'persistentvolumeclaim "{name}" is not bound')
        volume_name = claim["spec"]["volumeName"]
        stored = await services.api.get(f"/api/v1/persistentvolumes/{volume_name}")
    except ApiError as error:
        if error.not_found:
            raise VolumeWait(f'persistentvolumeclaim "{name}" not found') from error
        raise
    source = stored["spec"].get("hostPath") or stored["spec"].get("local")
    if source is None:
        raise VolumeWait(f"the local agent cannot mount PersistentVolume {volume_name}")
    return ensure_directory(Path(source["path"]))


async def _filled(
    pod: Json, volume: Mapping[str, Any], directory: Path, services: Services
) -> Path:
    ensure_directory(directory)
    if "emptyDir" in volume:
        return directory
    sources = [volume]
    if "projected" in volume:
        sources = volume["projected"].get("sources", [])
    for source in sources:
        for path, content in (await _files(pod, source, directory, services)).items():
            if not _same(directory / path, content):
                write_atomically(directory / path, content, 0o644)
    return directory


async def _files(
    pod: Json, source: Mapping[str, Any], directory: Path, services: Services
) -> dict[str, str]:
    """Return the files of one volume source by their relative path."""
    namespace = pod["metadata"]["namespace"]
    if "serviceAccountToken" in source:
        token = source["serviceAccountToken"]
        content = await _token(pod, token, directory / token["path"], services)
        return {token["path"]: content}
    if "downwardAPI" in source:
        items = source["downwardAPI"].get("items", [])
        return {i["path"]: _downward(pod, i) for i in items}
    for field, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if field in source:
            reference = source[field]
            name = reference.get("name") or reference.get("secretName")
            data = await services.lookup(kind, namespace, name)
            if data is None and not reference.get("optional"):
                raise VolumeWait(f'{kind.lower()} "{name}" not found')
            return _selected(data or {}, reference.get("items"))
    known = sorted(set(source) - {"name"})
    raise VolumeWait(f"the local agent has no volumes of kind {', '.join(known)}")


def _selected(data: Mapping[str, bytes], items: list[Json] | None) -> dict[str, str]:
    """Return the keys a volume asks for; surrogate escapes carry bytes that are no text."""
    if items is None:
        return {key: value.decode(errors="surrogateescape") for key, value in data.items()}
    return {
        item["path"]: data[item["key"]].decode(errors="surrogateescape")
        for item in items
        if item["key"] in data
    }


def _downward(pod: Json, item: Mapping[str, Any]) -> str:
    try:
        return field_value(pod, item["fieldRef"]["fieldPath"])
    except (KeyError, ConfigError) as error:
        raise VolumeWait(str(error)) from error


async def _token(pod: Json, source: Mapping[str, Any], path: Path, services: Services) -> str:
    """Return the token in the file while it is fresh, else a new one bound to the pod."""
    present = _fresh_token(path)
    if present is not None:
        return present
    metadata = pod["metadata"]
    spec: Json = {
        "expirationSeconds": max(int(source.get("expirationSeconds", _TOKEN_SECONDS)), 600),
        "audiences": [source["audience"]] if source.get("audience") else [],
        "boundObjectRef": {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }
    account = pod["spec"].get("serviceAccountName", "default")
    url = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
    return str((await services.api.create(url, {"spec": spec}))["status"]["token"])


def _fresh_token(path: Path) -> str | None:
    try:
        token = path.read_text()
        middle = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        issued, expires = float(claims["iat"]), float(claims["exp"])
    except (OSError, ValueError, IndexError, KeyError):
        return None
    left = expires - dt.datetime.now(dt.UTC).timestamp()
    return token if left > (expires - issued) * _REFRESH_SHARE else None


def ensure_directory(path: Path) -> Path:
    """Make a directory that may exist."""
    path.mkdir(parents=True, exist_ok=True)
    return path


def _same(path: Path, content: str) -> bool:
    try:
        return path.read_bytes() == content.encode(errors="surrogateescape")
    except OSError:
        return False
