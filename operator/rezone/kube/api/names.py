"""Labels, annotations, owner references and names: how our objects are told from others."""

from collections.abc import Mapping
from typing import Any

from rezone.kube.api.errors import ForeignObjectError
from rezone.kube.api.kinds import Manifest
from rezone.resources import API_VERSION
from rezone.resources.model import CustomObject

ZONE_LABEL = "rezone.dev/zone"
NODE_ID_LABEL = "rezone.dev/node-id"
OWNER_LABEL = "rezone.dev/owner"
COMPONENT_LABEL = "app.kubernetes.io/component"
TEMPLATE_HASH = "rezone.dev/template-hash"

LABEL_CHARS_MAX = 63

DATA_NODE = "data-node"
ROUTES = "routes"
TRANSFER = "transfer"

AnyObject = CustomObject[Any, Any]


def labels_of(zone: str, component: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a zone."""
    return {
        "app.kubernetes.io/name": "rezone",
        "app.kubernetes.io/instance": zone,
        COMPONENT_LABEL: component,
        "app.kubernetes.io/managed-by": "rezone",
        ZONE_LABEL: zone,
    }


def label_value(name: str) -> str:
    """Return a name as a label's value: names may be longer than labels allow, and are cut."""
    return name[:LABEL_CHARS_MAX].rstrip("-._")


def kind_of(obj: AnyObject) -> str:
    """Return the Kubernetes kind of one of our objects."""
    return str(type(obj).crd.kind)  # type: ignore[attr-defined]  # each kind declares it


def owner_reference(owner: AnyObject) -> Manifest:
    """Return the controlling reference to `owner`, so that its deletion takes the object along."""
    if not owner.metadata.uid:
        raise ValueError("an owner must have been read from the API server")
    return {
        "apiVersion": API_VERSION,
        "kind": kind_of(owner),
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_owned(manifest: Mapping[str, Any], owner: AnyObject) -> bool:
    """Return whether the object refers to exactly this owner, by uid."""
    references = manifest["metadata"].get("ownerReferences") or ()
    return any(each.get("uid") == owner.metadata.uid for each in references)


def require_owned(manifest: Manifest, owner: AnyObject) -> Manifest:
    """Return the object when it is the owner's.

    Raises ForeignObjectError: somebody else's object, or one of an earlier owner of the same name
    that the garbage collector has not reached yet.
    """
    if is_owned(manifest, owner):
        return manifest
    metadata = manifest["metadata"]
    named = f"{manifest.get('kind', 'object')} {metadata.get('namespace')}/{metadata['name']}"
    mine = f"{kind_of(owner)} {owner.metadata.name}"
    if _is_of_predecessor(manifest, owner):
        raise ForeignObjectError(f"{named} of an earlier {mine} is still being deleted", going=True)
    raise ForeignObjectError(
        f"{named} exists and does not belong to {mine} ({owner.metadata.uid}): delete or rename it",
    )


def _is_of_predecessor(manifest: Manifest, owner: AnyObject) -> bool:
    """Return whether the object's owner had the kind and the name of this one."""
    references = manifest["metadata"].get("ownerReferences") or ()
    wanted = (kind_of(owner), owner.metadata.name)
    return any((each.get("kind"), each.get("name")) == wanted for each in references)
