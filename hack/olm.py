"""Makes the bundle of the Operator Lifecycle Manager (OLM) of what manifests/ and crds/ have.

    python hack/olm.py --output dist/olm --homepage https://...

Nothing of it is written twice: the Deployment and the rights are those of manifests/base, the kinds
those of crds/, the examples those of manifests/samples, and versions are the chart's. Admission
policies are no objects of a bundle; they are in a file next to it, for kubectl (decision 0465).
"""

import argparse
import base64
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

Json = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parent.parent
NAME: Final = "rezone"
TITLE: Final = "Rezone"
EPOCH_DEFAULT: Final = 1735689600  # that of the images (Dockerfile)
CHANNEL: Final = "alpha"
ADMISSION: Final = "admission.yaml"

# What OLM installs as it is. Other kinds are in the ClusterServiceVersion, or not in the bundle.
INSTALLED: Final = ("ClusterRole", "Role", "RoleBinding", "ServiceAccount")
ADMISSION_KINDS: Final = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")

# What the operator makes for an object of each kind: what OpenShift's console shows beside it.
MADE: Final = {
    "DistributionZone": (
        ("Pod", "v1"),
        ("Service", "v1"),
        ("ConfigMap", "v1"),
        ("PersistentVolumeClaim", "v1"),
        ("PodDisruptionBudget", "policy/v1"),
        ("RebalanceTask", "rezone.dev/v1alpha1"),
    ),
    "RebalanceTask": (
        ("RegionMigration", "rezone.dev/v1alpha1"),
        ("SparkApplication", "sparkoperator.k8s.io/v1beta2"),
    ),
    "RegionMigration": (("SparkApplication", "sparkoperator.k8s.io/v1beta2"),),
}
DESCRIPTION: Final = """\
Rezone keeps partitioned, replicated tables on Kubernetes, and moves their partitions while
clients read and write.

* A **DistributionZone** is a table: its columns, partitions, replicas and data nodes.
* A **RebalanceTask** brings a zone's partitions where they should be. The operator makes one when
  nodes come or go; people apply one to drain a node.
* A **RegionMigration** moves the leader of one partition.

### Before you install

The bundle belongs in the namespace `{namespace}`: its role bindings name the account there. OLM
installs no admission policies, so apply them first, from the release's archive:

```
kubectl apply --server-side -f {admission}
```

### Namespaces for zones

A namespace that holds zones needs the accounts of `manifests/zone-namespace`. Zones in
`{namespace}` itself are refused, unless `zonesInReleaseNamespace` names them.
"""

_UI: Final = "urn:alm:descriptor:com.tectonic.ui:"
_CONDITIONS: Final = "urn:alm:descriptor:io.kubernetes.conditions"
_CONTROLS: Final = {"integer": "number", "string": "text", "boolean": "booleanSwitch"}


class BundleError(Exception):
    """Raised when manifests/ has something that no place in the bundle is known for."""


def bundle_files(root: Path, homepage: str) -> dict[str, str]:
    """Return the bundle's files by path. Raises BundleError."""
    objects = base_objects(root)
    definitions = [yaml.safe_load(path.read_text()) for path in sorted(root.glob("crds/*.yaml"))]
    files = {
        f"manifests/{NAME}.clusterserviceversion.yaml": _dump(
            service_version(root, objects, definitions, homepage)
        ),
        "metadata/annotations.yaml": _dump({"annotations": ANNOTATIONS}),
        "bundle.Dockerfile": dockerfile(),
        ADMISSION: "---\n".join(_dump(each) for each in _of(objects, *ADMISSION_KINDS)),
    }
    for body in [*definitions, *installed(objects)]:
        kind, name = body["kind"].lower(), body["metadata"]["name"]
        files[f"manifests/{name}.{kind}.yaml"] = _dump(body)
    return files


def base_objects(root: Path) -> list[Json]:
    """Return the objects of manifests/base but the definitions, with those of its own zones."""
    paths = [*sorted(root.glob("manifests/base/*.yaml")), root / "manifests/zone-namespace"]
    paths[-1] /= "accounts.yaml"
    found = [
        body
        for path in paths
        if path.name != "kustomization.yaml"
        for body in yaml.safe_load_all(path.read_text())
    ]
    known = {*INSTALLED, *ADMISSION_KINDS, "ClusterRoleBinding", "Deployment", "Namespace"}
    for body in found:
        if body["kind"] not in known:
            raise BundleError(f"{body['kind']} {body['metadata']['name']} has no place in a bundle")
    return found


def installed(objects: Iterable[Json]) -> list[Json]:
    """Return the objects that OLM installs as they are, without a namespace: OLM sets it.

    The operator's account is OLM's to make, and so are the cluster roles that are bound to it
    everywhere. Its namespaced rights stay Roles: as the ClusterServiceVersion's permissions, OLM
    would grant them in all namespaces to an operator that looks after all.
    """
    everything = list(objects)
    taken = {role["metadata"]["name"] for role in cluster_roles(everything)}
    account = operator_account(everything)
    found = []
    for body in _of(everything, *INSTALLED):
        name = body["metadata"]["name"]
        if body["kind"] == "ClusterRole" and name in taken:
            continue
        if body["kind"] == "ServiceAccount" and name == account:
            continue
        metadata = {k: v for k, v in body["metadata"].items() if k != "namespace"}
        found.append({**body, "metadata": metadata})
    return found


def operator_account(objects: Iterable[Json]) -> str:
    """Return the name of the account that the operator's Deployment runs with."""
    (deployment,) = _of(objects, "Deployment")
    name: str = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    return name


def cluster_roles(objects: Iterable[Json]) -> list[Json]:
    """Return the cluster roles that are bound to the operator's account in all namespaces."""
    everything = list(objects)
    roles = {body["metadata"]["name"]: body for body in _of(everything, "ClusterRole")}
    account = operator_account(everything)
    found = []
    for binding in _of(everything, "ClusterRoleBinding"):
        if [each["name"] for each in binding["subjects"]] != [account]:
            raise BundleError(f"{binding['metadata']['name']} binds others than the operator")
        found.append(roles[binding["roleRef"]["name"]])
    return found


def service_version(
    root: Path, objects: list[Json], definitions: list[Json], homepage: str
) -> Json:
    """Return the ClusterServiceVersion."""
    chart = yaml.safe_load((root / "charts" / NAME / "Chart.yaml").read_text())
    (namespace,) = _of(objects, "Namespace")
    examples = [yaml.safe_load(path.read_text()) for path in samples(root)]
    images = related_images(objects)
    link = homepage.rstrip("/")
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{NAME}.v{chart['version']}",
            "annotations": {
                "alm-examples": json.dumps(examples, indent=2, default=str),
                "capabilities": chart["annotations"]["artifacthub.io/operatorCapabilities"],
                "categories": "Database",
                "containerImage": images[0]["image"],
                "createdAt": _created(),
                "description": chart["description"],
                "operatorframework.io/suggested-namespace": namespace["metadata"]["name"],
                "operatorframework.io/suggested-namespace-template": json.dumps(namespace),
                "repository": link,
                "support": link,
            },
        },
        "spec": {
            "displayName": TITLE,
            "description": DESCRIPTION.format(
                namespace=namespace["metadata"]["name"], admission=ADMISSION
            ),
            "version": chart["version"],
            "maturity": CHANNEL,
            "minKubeVersion": minimum_kubernetes(chart),
            "keywords": chart["keywords"],
            "provider": {"name": f"The {TITLE} maintainers", "url": link},
            "links": [{"name": "Source and documentation", "url": link}],
            "icon": [_icon(root)],
            # The operator's rights are in all namespaces.
            "installModes": [
                {"type": mode, "supported": mode == "AllNamespaces"}
                for mode in ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
            ],
            "install": {"strategy": "deployment", "spec": install(objects)},
            "customresourcedefinitions": {"owned": [owned(body) for body in definitions]},
            "relatedImages": images,
        },
    }


def install(objects: list[Json]) -> Json:
    """Return what OLM runs, and with which rights in all namespaces."""
    (deployment,) = _of(objects, "Deployment")
    rules = [rule for role in cluster_roles(objects) for rule in role["rules"]]
    return {
        "deployments": [
            {
                "name": deployment["metadata"]["name"],
                "label": deployment["metadata"]["labels"],
                "spec": deployment["spec"],
            }
        ],
        "clusterPermissions": [{"serviceAccountName": operator_account(objects), "rules": rules}],
    }


def samples(root: Path) -> list[Path]:
    """Return the files with an example object each."""
    return sorted(root.glob("manifests/samples/*.yaml"))


def related_images(objects: list[Json]) -> list[Json]:
    """Return the operator's image and those that it starts pods of, for mirrors."""
    (deployment,) = _of(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    images = [{"name": container["name"], "image": container["image"]}]
    for each in container["env"]:
        named = re.fullmatch(r"REZONE_(\w+)_IMAGE", each["name"])
        if named:
            name = named[1].lower().replace("_", "-")
            images.append({"name": name, "image": each["value"]})
    return images


def minimum_kubernetes(chart: Mapping[str, Any]) -> str:
    """Return the oldest version of Kubernetes that the chart takes. Raises BundleError."""
    found = re.fullmatch(r">=(\d+\.\d+\.\d+)-0", chart["kubeVersion"])
    if found is None:
        raise BundleError(f"kubeVersion {chart['kubeVersion']} of the chart names no oldest one")
    return found[1]


def owned(definition: Json) -> Json:
    """Return a kind as the ClusterServiceVersion describes it, with its fields."""
    names, (served,) = definition["spec"]["names"], definition["spec"]["versions"]
    schema = served["schema"]["openAPIV3Schema"]
    kind = names["kind"]
    parts = schema["properties"]
    return {
        "name": definition["metadata"]["name"],
        "kind": kind,
        "version": served["name"],
        "displayName": _words(kind),
        "description": schema["description"],
        "resources": [
            {"kind": each, "name": "", "version": version} for each, version in MADE[kind]
        ],
        "specDescriptors": list(descriptors(parts["spec"])),
        "statusDescriptors": list(descriptors(parts["status"])),
    }


def descriptors(schema: Json, prefix: str = "") -> Iterator[Json]:
    """Yield a descriptor for each field, and for those of the objects among them."""
    for name, field in sorted(schema["properties"].items()):
        path = f"{prefix}{name}"
        inner = field.get("properties")
        if inner and not prefix:
            yield from descriptors(field, f"{path}.")
            continue
        yield {
            "path": path,
            "displayName": _words(path.replace(".", " ")),
            "description": field["description"],
            "x-descriptors": _controls(path, field),
        }


def _controls(path: str, field: Json) -> list[str]:
    if path == "conditions":
        return [_CONDITIONS]
    if "enum" in field:
        return [f"{_UI}select:{value}" for value in field["enum"]]
    control = _CONTROLS.get(field["type"])
    return [f"{_UI}{control}"] if control else []


def _words(name: str) -> str:
    """Return `dataNodes count` as "Data Nodes Count"."""
    return " ".join(
        word[:1].upper() + word[1:]
        for part in name.split()
        for word in re.sub(r"(?<=[a-z])(?=[A-Z])", " ", part).split()
    )


def _icon(root: Path) -> Json:
    picture = (root / "operator/rezone/console/static/icon.svg").read_bytes()
    return {"base64data": base64.b64encode(picture).decode(), "mediatype": "image/svg+xml"}


def _created() -> str:
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or EPOCH_DEFAULT)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_PREFIX: Final = "operators.operatorframework.io.bundle."
ANNOTATIONS: Final = {
    f"{_PREFIX}mediatype.v1": "registry+v1",
    f"{_PREFIX}manifests.v1": "manifests/",
    f"{_PREFIX}metadata.v1": "metadata/",
    f"{_PREFIX}package.v1": NAME,
    f"{_PREFIX}channels.v1": CHANNEL,
    f"{_PREFIX}channel.default.v1": CHANNEL,
}
"""What tells OLM where the bundle's parts are: in a file, and as labels of its image."""


def dockerfile() -> str:
    """Return the recipe of the bundle's image, which has nothing but the files."""
    labels = "".join(f"LABEL {name}={value}\n" for name, value in ANNOTATIONS.items())
    return f"FROM scratch\n{labels}COPY manifests /manifests/\nCOPY metadata /metadata/\n"


def _of(objects: Iterable[Json], *kinds: str) -> list[Json]:
    return [body for body in objects if body["kind"] in kinds]


def _dump(body: Json) -> str:
    return yaml.safe_dump(body, sort_keys=False, width=100, allow_unicode=True)


def main() -> int:
    """Write the bundle into a directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="a directory that is empty")
    parser.add_argument("--homepage", required=True)
    chosen = parser.parse_args()
    output: Path = chosen.output
    if output.exists() and any(output.iterdir()):
        sys.stderr.write(f"{output} is not empty\n")
        return 1
    try:
        files = bundle_files(ROOT, chosen.homepage)
    except BundleError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for path, text in files.items():
        (output / path).parent.mkdir(parents=True, exist_ok=True)
        (output / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
