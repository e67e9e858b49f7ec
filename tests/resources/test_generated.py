"""Generated files are what the models and the chart say now."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from resource_server import REPOSITORY

from rezone.controller.work.settings import CoordinatorSettings
from rezone.resources import NAMESPACE
from rezone.resources.conditions import ConditionType, Reason
from rezone.resources.crd import custom_resource_definitions, value_comments
from rezone.resources.generate import drift, main, plain_files, write
from rezone.resources.packaging import (
    BASE_VALUES,
    manifest_files,
    render,
    without_helm,
)
from rezone.resources.reference import reference_page

Json = dict[str, Any]
CHART = REPOSITORY / "charts" / "rezone"
DEFINITIONS = ("crds", "charts/rezone/templates/crds")
MANIFESTS = ("manifests/base", "manifests/zone-namespace")


def test_definitions_are_up_to_date() -> None:
    """Users would install other definitions than the operator was written for."""
    assert drift(REPOSITORY, plain_files(), DEFINITIONS) == []


def test_what_users_read_names_no_promise() -> None:
    """Definitions and reference say what things mean, not which of our ids they keep.

    `kubectl explain` would show users ids that they cannot look up.
    """
    groups = yaml.safe_load((REPOSITORY / "docs" / "promises.yaml").read_text())
    ids = re.compile(rf"\b({'|'.join(groups)})-\d\d\b")
    for text in (*plain_files().values(), reference_page()):
        assert ids.findall(text) == []


@pytest.mark.proves("OP-06")
def test_manifests_equal_the_chart(helm: str) -> None:
    """Users of kustomize would get another operator than Helm users."""
    assert drift(REPOSITORY, manifest_files(REPOSITORY, helm), MANIFESTS) == []


@pytest.mark.proves("OP-06")
def test_every_chart_object_is_in_the_manifests(helm: str) -> None:
    """Compared as objects, beside the comparison of text: nothing may get lost in the files."""
    rendered = [without_helm(document) for _, document in render(CHART, helm, BASE_VALUES)]
    files = [*(REPOSITORY / "manifests/base").rglob("*.yaml")]
    files += (REPOSITORY / "manifests/zone-namespace").rglob("*.yaml")
    stored = [d for file in files for d in yaml.safe_load_all(file.read_text())]
    stored = [d for d in stored if d["kind"] not in {"Kustomization", "Namespace"}]
    assert sorted(map(_key, stored)) == sorted(map(_key, rendered))


def test_definitions_are_the_same_in_all_copies(helm: str) -> None:
    """The chart's copy goes through a template language; crds/ does not."""
    charted = {
        document["metadata"]["name"]: without_helm(document)
        for _, document in render(CHART, helm)
        if document["kind"] == "CustomResourceDefinition"
    }
    for definition in custom_resource_definitions():
        name = definition["metadata"]["name"]
        assert charted[name] == definition
        assert yaml.safe_load((REPOSITORY / "crds" / f"{name}.yaml").read_text()) == definition


def test_check_fails_on_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A check that passes on a changed, missing or left-over file guards nothing."""
    files = plain_files()
    write(tmp_path, files, DEFINITIONS)
    arguments = ["--check", "--root", str(tmp_path), "--helm", ""]
    assert drift(tmp_path, files, DEFINITIONS) == []
    (tmp_path / "crds" / "distributionzones.rezone.dev.yaml").write_text("changed")
    (tmp_path / "crds" / "rebalancetasks.rezone.dev.yaml").unlink()
    (tmp_path / "crds" / "old.yaml").write_text("left over")
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert "crds/distributionzones.rezone.dev.yaml: differs" in said
    assert "crds/rebalancetasks.rezone.dev.yaml: missing" in said
    assert "crds/old.yaml: generated no more" in said
    assert "make generate" in said
    assert main(arguments[1:]) == 0
    assert main(arguments) == 0


def test_reference_names_everything() -> None:
    """A reason that the page lacks cannot be looked up by those who see it."""
    page = reference_page()
    for value in (*ConditionType, *Reason):
        assert f"| `{value.value}` |" in page
    for definition in custom_resource_definitions():
        assert f"## {definition['spec']['names']['kind']}\n" in page
    assert "`spec.dataNodes.autoAdjust.scaleDownSeconds`" in page


def test_every_condition_and_reason_says_when_it_surfaces() -> None:
    """The comments are the reference page."""
    assert value_comments(Reason).keys() == set(Reason.__members__)
    assert value_comments(ConditionType).keys() == set(ConditionType.__members__)


def test_chart_settings_are_the_operators() -> None:
    """A setting the operator does not read would be accepted and do nothing."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = {field.name for field in dataclasses.fields(CoordinatorSettings)}
    for name in schema["properties"]["settings"]["properties"]:
        assert re.sub("([A-Z])", r"_\1", name).lower() in known


def test_values_and_their_schema_name_the_same(helm: str) -> None:
    """A value without a schema is refused when a user sets it."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema["properties"].keys() - {"global"} == values.keys()
    with pytest.raises(RuntimeError, match="replica"):
        render(CHART, helm, ["--set", "replica=2"])


def test_settings_and_namespaces_reach_the_operator(helm: str) -> None:
    """The environment is all the operator is told."""
    values = ["--set", "settings.leaderLeaseSeconds=5,watchNamespaces={team-a,team-b}"]
    values += ["--set", "logLevel=debug,image.tag=1.2.3"]
    rendered = [document for _, document in render(CHART, helm, values)]
    (deployment,) = (d for d in rendered if d["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    settings = CoordinatorSettings.from_environment({k: v for k, v in env.items() if v is not None})
    assert settings.leader_lease_seconds == 5
    assert settings.namespaces == ("team-a", "team-b")
    assert env["REZONE_SPARK_IMAGE"] == "rezone-dev/rezone-spark:1.2.3"
    accounts = {d["metadata"]["namespace"] for d in rendered if d["kind"] == "ServiceAccount"}
    assert accounts == {NAMESPACE, "team-a", "team-b"}


def test_watching_namespaces_gives_no_cluster_wide_rights(helm: str) -> None:
    """Those who list namespaces expect the operator to be able to do nothing elsewhere."""
    arguments = ["--set", "watchNamespaces={team-a},tls.clientLogin=false"]
    rendered = [d for _, d in render(CHART, helm, arguments)]
    roles = {d["metadata"]["name"]: d for d in rendered if d["kind"] == "ClusterRole"}
    bound = [d["roleRef"]["name"] for d in rendered if d["kind"] == "ClusterRoleBinding"]
    verbs = {verb for name in bound for rule in roles[name]["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}
    inside = [d for d in rendered if d["kind"] == "RoleBinding"]
    assert ("team-a", "rezone-operator") in {
        (d["metadata"]["namespace"], d["roleRef"]["name"]) for d in inside
    }


@pytest.mark.proves("B-12")
def test_only_requests_of_our_own_signer_can_be_signed(helm: str) -> None:
    """Who can sign for the API server's own signers is the administrator of the cluster."""
    rules = [
        rule
        for _, document in render(CHART, helm)
        for rule in document.get("rules", ())
        if "signers" in rule["resources"]
    ]
    (rule,) = rules
    assert rule["resourceNames"] == ["rezone.dev/zone-client"]
    off = [d["metadata"]["name"] for _, d in render(CHART, helm, ["--set", "tls.enabled=false"])]
    assert not {name for name in off if name.endswith(("-signer", "-login"))}


def test_rights_have_no_wildcards_and_no_secrets_of_others(helm: str) -> None:
    """Least privilege: an operator that can read all Secrets can become anybody."""
    rendered = [document for _, document in render(CHART, helm)]
    for document in rendered:
        for rule in document.get("rules", ()):
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
            if "secrets" in rule["resources"]:
                assert document["metadata"]["name"] == "rezone-operator-certificates"
                assert set(rule["verbs"]) == {"get", "create", "update"}
    # Only in the namespaces that zones may live in, never in all.
    bound = [d for d in rendered if d.get("roleRef", {}).get("name", "").endswith("-certificates")]
    assert [(d["kind"], d["metadata"]["namespace"]) for d in bound] == [
        ("RoleBinding", "rezone-system")
    ]


def test_operator_pod_is_restricted(helm: str) -> None:
    """Namespaces that enforce the restricted profile would refuse the pod."""
    (pod,) = (
        document["spec"]["template"]["spec"]
        for _, document in render(CHART, helm)
        if document["kind"] == "Deployment"
    )
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = pod["containers"][0]["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.proves("OP-06")
def test_definitions_are_kept_by_default_and_optional(helm: str) -> None:
    """An uninstall that removes the definitions removes every zone."""
    kept = [d for _, d in render(CHART, helm) if d["kind"] == "CustomResourceDefinition"]
    assert len(kept) == 3
    for definition in kept:
        assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    given_up = render(CHART, helm, ["--set", "crds.keep=false"])
    assert "keep" not in json.dumps([d["metadata"] for _, d in given_up])
    without = render(CHART, helm, ["--set", "crds.enabled=false"])
    assert all(document["kind"] != "CustomResourceDefinition" for _, document in without)


def test_chart_passes_lint(helm: str) -> None:
    """Helm's own checks of the chart."""
    done = subprocess.run(
        [helm, "lint", "--strict", str(CHART), "--kube-version", "v1.34.0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def _key(document: Json) -> str:
    return json.dumps(document, sort_keys=True)
