"""The bundle for the Operator Lifecycle Manager is valid, and installs what manifests/base does."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from resource_server import REPOSITORY, Kubectl

from kubernetes_fixture import establish
from rezone.local import tools
from rezone.local.tools import find_go, find_tools
from rezone.resources.crd import KINDS, custom_resource_definitions

HOMEPAGE = "https://x.example/rezone"
DEFINITION = "operators.coreos.com_clusterserviceversions.yaml"
MODULE = Path(tools.__file__).with_name("kubetools") / "olm"

# What is no fault of the bundle: of the program itself, and that it takes a rule for events, which
# names no version, for one of a beta version that is gone.
IGNORED = ('\\"operatorhub\\" validator is deprecated', "Migrate the API(s) for events: ")

Json = dict[str, Any]


@pytest.fixture
def files(hack: Callable[[str], Any]) -> dict[str, str]:
    """Return the files of the bundle by their paths."""
    found: dict[str, str] = hack("olm").bundle_files(REPOSITORY, HOMEPAGE)
    return found


@pytest.fixture
def version(files: dict[str, str]) -> Json:
    """Return the ClusterServiceVersion."""
    found: Json = yaml.safe_load(files["manifests/rezone.clusterserviceversion.yaml"])
    return found


def written(files: dict[str, str], place: Path) -> Path:
    """Write the bundle, and return where its manifests are."""
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return place / "manifests"


def complaints(manifests: Path) -> list[str]:
    """Return what the operator framework's validators say; their program always ends with 0."""
    program = str(find_tools(["operator-verify"])["operator-verify"])
    options = ("--operatorhub_validate", "--object_validate")
    done = subprocess.run(
        [program, "manifests", str(manifests), *options],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    lines = [line for line in done.stderr.splitlines() if "level=" in line]
    return [line for line in lines if not any(ignored in line for ignored in IGNORED)]


@pytest.mark.slow
def test_validators_of_the_operator_framework_find_nothing(
    files: dict[str, str], tmp_path: Path
) -> None:
    """Catalogs run them, and refuse a bundle with an error."""
    assert complaints(written(files, tmp_path)) == []


@pytest.mark.slow
def test_validators_would_complain(files: dict[str, str], tmp_path: Path) -> None:
    """Validators that are called wrongly find nothing wrong with anything."""
    name = "manifests/rezone.clusterserviceversion.yaml"
    body = yaml.safe_load(files[name])
    body["spec"]["customresourcedefinitions"]["owned"].pop()
    files[name] = yaml.safe_dump(body)
    found = complaints(written(files, tmp_path))
    assert any("RegionMigration" in line and "not defined in CSV" in line for line in found), found


def olm_definition() -> Json:
    """Return OLM's definition of ClusterServiceVersions, of the module that the program is of."""
    found = subprocess.run(
        [find_go(os.environ), "mod", "download", "-json", "github.com/operator-framework/api"],
        cwd=MODULE,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    text = Path(json.loads(found.stdout)["Dir"], "crds", DEFINITION).read_text()
    body: Json = yaml.safe_load(text)
    return body


@pytest.mark.long
@pytest.mark.slow
def test_api_server_takes_all_of_the_bundle(files: dict[str, str], kubectl: Kubectl) -> None:
    """OLM creates these objects; one that is refused fails the installation.

    The server is asked with strict validation, so that no field is dropped either.
    """
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    establish(kubectl.kubeconfig, [olm_definition()])
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bundle-test"}}
    kubectl(*apply, stdin=json.dumps(space))
    attempt = (*apply, "--dry-run=server", "--validate=strict", "-n", "bundle-test")
    for path, text in files.items():
        if path.startswith("manifests/") or path == "admission.yaml":
            assert "(server dry run)" in kubectl(*attempt, stdin=text), path


def base() -> list[Json]:
    """Return the objects of manifests/base and of the accounts that are with it."""
    paths = [
        *(REPOSITORY / "manifests/base").rglob("*.yaml"),
        REPOSITORY / "manifests/zone-namespace/accounts.yaml",
    ]
    found = [body for path in paths for body in yaml.safe_load_all(path.read_text())]
    return [body for body in found if body["kind"] != "Kustomization"]


def identity(body: Json) -> tuple[str, str]:
    """Return what is told apart by kind and name."""
    return body["kind"], body["metadata"]["name"]


def test_bundle_installs_what_kustomize_does(files: dict[str, str], version: Json) -> None:
    """An operator that OLM installs would lack a right or a setting, or have another one."""
    manifests = [
        yaml.safe_load(text) for path, text in files.items() if path.startswith("manifests/")
    ]
    bundled = {identity(body): body for body in manifests}
    bundled |= {identity(body): body for body in yaml.safe_load_all(files["admission.yaml"])}
    install = version["spec"]["install"]["spec"]
    (deployment,), (granted,) = install["deployments"], install["clusterPermissions"]
    rules: list[Json] = []
    left: set[tuple[str, str]] = set()
    for body in base():
        same = bundled.get(identity(body))
        if same is not None:
            metadata = {k: v for k, v in body["metadata"].items() if k != "namespace"}
            assert same == {**body, "metadata": metadata}
        elif body["kind"] == "Deployment":
            assert deployment["spec"] == body["spec"]
            assert deployment["name"] == body["metadata"]["name"]
        elif body["kind"] == "ClusterRole":
            rules += body["rules"]
        else:
            left.add(identity(body))
    assert granted["serviceAccountName"] == "rezone-operator"
    assert sorted(map(str, granted["rules"])) == sorted(map(str, rules))
    # OLM makes the account, and the bindings of what it grants everywhere; the namespace is the
    # one that it suggests.
    assert left == {
        ("ServiceAccount", "rezone-operator"),
        ("ClusterRoleBinding", "rezone-operator"),
        ("ClusterRoleBinding", "rezone-operator-cluster"),
        ("ClusterRoleBinding", "rezone-operator-signer"),
        ("Namespace", "rezone-system"),
    }
    suggested = version["metadata"]["annotations"][
        "operatorframework.io/suggested-namespace-template"
    ]
    assert json.loads(suggested)["metadata"]["name"] == "rezone-system"


def test_rights_of_one_namespace_are_not_granted_in_all(version: Json) -> None:
    """As permissions, OLM grants them in all namespaces: the operator would read all Secrets."""
    assert "permissions" not in version["spec"]["install"]["spec"]
    (granted,) = version["spec"]["install"]["spec"]["clusterPermissions"]
    assert not [rule for rule in granted["rules"] if "secrets" in rule["resources"]]


def test_every_kind_is_described_with_an_example(version: Json) -> None:
    """Consoles make forms of descriptors; a field of an old name would be a dead part of them."""
    examples = json.loads(version["metadata"]["annotations"]["alm-examples"])
    assert {body["kind"] for body in examples} == {kind.__name__ for kind in KINDS}
    owned = version["spec"]["customresourcedefinitions"]["owned"]
    definitions = {body["metadata"]["name"]: body for body in custom_resource_definitions()}
    assert {each["name"] for each in owned} == set(definitions)
    for each in owned:
        (served,) = definitions[each["name"]]["spec"]["versions"]
        parts = served["schema"]["openAPIV3Schema"]["properties"]
        for part, listed in (("spec", "specDescriptors"), ("status", "statusDescriptors")):
            roots = {descriptor["path"].split(".")[0] for descriptor in each[listed]}
            assert roots == set(parts[part]["properties"])
            assert all(descriptor["description"] for descriptor in each[listed])


def test_an_object_without_a_place_in_the_bundle_is_refused(
    hack: Callable[[str], Any], tmp_path: Path
) -> None:
    """What the chart begins to install would silently be missing for users of OLM."""
    olm = hack("olm")
    for path in ("base", "zone-namespace"):
        (tmp_path / "manifests" / path).mkdir(parents=True)
    accounts = tmp_path / "manifests/zone-namespace/accounts.yaml"
    accounts.write_text("kind: ConfigMap\nmetadata: {name: new}\n")
    with pytest.raises(olm.BundleError, match="ConfigMap new has no place"):
        olm.base_objects(tmp_path)


def test_labels_of_the_image_say_what_the_metadata_do(files: dict[str, str]) -> None:
    """A registry reads the labels, OLM the file; they would put the bundle into two channels."""
    annotations = yaml.safe_load(files["metadata/annotations.yaml"])["annotations"]
    lines = files["bundle.Dockerfile"].splitlines()
    labels = [line.removeprefix("LABEL ").split("=") for line in lines if line.startswith("LABEL ")]
    assert dict(labels) == annotations
    assert annotations["operators.operatorframework.io.bundle.package.v1"] == "rezone"
