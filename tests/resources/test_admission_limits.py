"""What is nested too deep for kubectl is refused by the API server, by the chart's policy."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from admission import enforce, namespace, refusal, rendered, until_taken
from resource_server import Kubectl

from rezone.domain.access.template_policy import DEPTH_MAX, VALUES_MAX, TemplatePolicy
from rezone.resources.zone_status import DATA_NODES_MAX

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.proves("TR-03")]

Json = dict[str, Any]
LABEL = "limits-test"
TEMPLATES = ("podTemplate", "sparkTemplate")
MANAGED_LEVELS = 48
PATCH_SECONDS_MAX = 30.0


def nested(levels: int, *, of_lists: bool = False) -> Any:
    """Return JSON of so many levels, the last of which is a number."""
    found: Any = 1
    for _ in range(levels - 1):
        found = [found] if of_lists else {"x": found}
    return found


def zone(name: str = "limited", template: str = "", value: Any = None) -> Json:
    """Return a zone with one of its templates."""
    spec: Json = {"partitions": 8, "replicas": 3, "dataNodes": {"count": 3}}
    if template == "podTemplate":
        spec["dataNodes"][template] = value
    elif template:
        spec["transfer"] = {template: value}
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "DistributionZone",
        "metadata": {"name": name, "namespace": LABEL},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def limited(kubectl: Kubectl, helm: str) -> Kubectl:
    """Give the API server with the policy."""
    namespace(kubectl, LABEL, LABEL)
    policies = rendered(helm, "admissionlimits.yaml")
    enforce(kubectl, policies, LABEL, [zone("probe", "podTemplate", nested(DEPTH_MAX + 1))])
    (policy,) = (each for each in policies if each["kind"] == "ValidatingAdmissionPolicy")
    told = json.loads(kubectl("get", policy["kind"], policy["metadata"]["name"], "--output=json"))
    assert not told.get("status", {}).get("typeChecking", {}).get("expressionWarnings")
    return kubectl


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("of_lists", [False, True])
def test_templates_are_as_deep_as_the_operator_takes(
    limited: Kubectl, template: str, of_lists: bool
) -> None:
    """One zone of 9,993 levels ended all lists of zones, and only etcd could remove it."""
    for levels in (DEPTH_MAX, DEPTH_MAX + 1):
        value = {"x": nested(levels - 1, of_lists=of_lists)}
        taken = refusal(limited, zone(template=template, value=value)) == ""
        # Both look at the same: what the API server takes is not refused for its depth later.
        assert taken == ("levels deep" not in TemplatePolicy.of(["*"], {}).fault(value))
        assert taken == (levels == DEPTH_MAX)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_hundred_levels_and_all_that_json_may_have_are_refused(
    limited: Kubectl, template: str
) -> None:
    """With a reason, before they are stored."""
    for levels in (100, 9_993):
        deep = '{"x":' * levels + "1" + "}" * levels
        body = json.dumps(zone(template=template, value={"x": "HERE"})).replace('"HERE"', deep)
        path = f"/apis/rezone.dev/v1alpha1/namespaces/{LABEL}/distributionzones"
        done = limited.run("create", "--raw", path, "--filename=-", stdin=body)
        assert done.returncode != 0
        assert "may have 32 levels" in done.stderr, done.stderr[:500]


@pytest.mark.parametrize(
    "count", [VALUES_MAX - 4, VALUES_MAX + 1, pytest.param(500_000, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("of", [list, dict])
def test_large_maps_and_lists_are_soon_answered(
    limited: Kubectl, count: int, of: type[list[int] | dict[str, int]]
) -> None:
    """CEL's time grows with their square: 500,000 numbers took it half a minute."""
    if of is dict:
        count = min(count, 100_000)
    value = [0] * count if of is list else {str(n): 0 for n in range(count)}
    body = zone(template="podTemplate", value={"x": value})
    told = refusal(limited, body, "--request-timeout=30s")
    assert (told == "") == (count < VALUES_MAX), told[:500]
    assert not told or "4096 values" in told


def test_managed_fields_of_a_person_s_making_are_bounded_too(limited: Kubectl) -> None:
    """The API server stores those that come with an object, of any kind, as they are."""
    kinds = {
        "DistributionZone": zone()["spec"],
        "RebalanceTask": {"zoneName": "z"},
        "RegionMigration": {"zoneName": "z", "partition": 0},
    }
    for kind, spec in kinds.items():
        for levels in (8, MANAGED_LEVELS + 1, 5_000):
            body = {**zone(), "kind": kind, "spec": spec}
            fields = '{"f:x":' * levels + "{}" + "}" * levels
            entry = {
                "manager": "m",
                "operation": "Update",
                "apiVersion": "rezone.dev/v1alpha1",
                "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": "HERE",
            }
            body["metadata"] = {**body["metadata"], "managedFields": [entry]}
            plural = f"{kind.lower()}s"
            path = f"/apis/rezone.dev/v1alpha1/namespaces/{LABEL}/{plural}?dryRun=All"
            text = json.dumps(body).replace('"HERE"', fields)
            done = limited.run("create", "--raw", path, "--filename=-", stdin=text)
            assert (done.returncode == 0) == (levels == 8), (kind, levels, done.stderr[:500])


def test_what_was_stored_before_can_be_mended_and_deleted(limited: Kubectl, helm: str) -> None:
    """A zone of an earlier version would be stuck: neither changed nor deleted."""
    namespace(limited, "limits-before", "limits-nowhere")
    old = zone("old", "podTemplate", nested(DEPTH_MAX + 9))
    old["metadata"] |= {"namespace": "limits-before", "finalizers": ["example.com/last"]}
    until_taken(limited, old)
    limited("create", "--filename=-", stdin=json.dumps(old))
    namespace(limited, "limits-before", LABEL)
    where = ("dz", "old", "--namespace=limits-before", "--type=merge")
    bad = {"spec": {"dataNodes": {"podTemplate": nested(DEPTH_MAX + 20)}}}
    enforce(limited, rendered(helm, "admissionlimits.yaml"), LABEL, [])
    status = json.dumps({"status": {"readyDataNodes": 2}})
    limited("patch", *where, "--subresource=status", f"--patch={status}")
    done = limited.run("patch", *where, f"--patch={json.dumps(bad)}")
    assert "may have 32 levels" in done.stderr
    limited("delete", "dz", "old", "--namespace=limits-before", "--wait=false")
    limited("patch", *where, '--patch={"metadata":{"finalizers":null}}')
    assert limited("get", "dz", "--namespace=limits-before", "--output=name") == ""


MANAGERS = 4
"""So many programs have written the whole status of a zone as large as one may be."""


def test_a_full_zone_can_be_changed(limited: Kubectl) -> None:
    """A change is looked at for what it changes: entries of 1,024 data nodes stay as they are.

    Each field of these is in managedFields once for each program that has written the status. All
    of it would take more than a policy's budget, and the zone could not be changed any more.
    """
    full_zone(limited, "full", MANAGERS)
    where = ("dz", "full", "--namespace=limits-full")
    begun = time.monotonic()
    limited("patch", *where, "--type=merge", '--patch={"spec":{"dataNodes":{"count":4}}}')
    assert time.monotonic() - begun < PATCH_SECONDS_MAX
    limited("delete", *where)


@pytest.mark.parametrize(
    "fields", [VALUES_MAX // 2, pytest.param(VALUES_MAX - 4, marks=pytest.mark.long)]
)
def test_a_large_template_has_as_many_authors_as_come(limited: Kubectl, fields: int) -> None:
    """Each of them adds an entry with every field of the template; theirs alone is looked at.

    GitOps, a person, a mutating webhook and a script have one each: with all of them in one look
    the fourth would be over the policy's budget, and the zone could not be changed any more.
    """
    namespace(limited, "limits-authors", LABEL)
    annotations = {f"example.com/field-{number}": "x" for number in range(fields)}
    body = zone("authored", "podTemplate", {"metadata": {"annotations": annotations}})
    body["metadata"]["namespace"] = "limits-authors"
    for number in range(MANAGERS):
        body["spec"]["dataNodes"]["count"] = 3 + number
        applying = ("apply", "--server-side", "--force-conflicts", "--filename=-")
        limited(*applying, f"--field-manager=author-{number}", stdin=json.dumps(body))
    where = ("dz", "authored", "--namespace=limits-authors")
    stored = json.loads(limited("get", *where, "--output=json", "--show-managed-fields"))
    owned = [json.dumps(each) for each in stored["metadata"]["managedFields"]]
    assert sum("field-0" in each for each in owned) == MANAGERS
    # One more, as `kubectl edit` is: it takes a field from all of them, so all entries change.
    annotations["example.com/field-0"] = "y"
    changed = {"spec": body["spec"]}
    limited("patch", *where, "--type=merge", f"--patch={json.dumps(changed)}")
    limited("delete", *where)


def test_what_is_added_to_a_full_zone_is_looked_at(limited: Kubectl) -> None:
    """An entry that is too deep would pass beside those that stay as they are."""
    stored = full_zone(limited, "crowded", 2)
    entry = {
        **stored["metadata"]["managedFields"][0],
        "manager": "deep",
        "fieldsV1": json.loads('{"f:x":' * MANAGED_LEVELS + "{}" + "}" * MANAGED_LEVELS),
    }
    stored["metadata"]["managedFields"].append(entry)
    stored["spec"]["dataNodes"]["count"] = 4
    path = "/apis/rezone.dev/v1alpha1/namespaces/limits-full/distributionzones/crowded"
    done = limited.run("replace", "--raw", path, "--filename=-", stdin=json.dumps(stored))
    assert "may have 48 levels" in done.stderr, done.stderr[:500]
    limited("delete", "dz", "crowded", "--namespace=limits-full")


def full_zone(kubectl: Kubectl, name: str, managers: int) -> Json:
    """Make a zone of 1,024 data nodes whose status so many programs have written; return it."""
    namespace(kubectl, "limits-full", LABEL)
    body = zone(name)
    body["metadata"]["namespace"] = "limits-full"
    kubectl("create", "--filename=-", stdin=json.dumps(body))
    body["status"] = {"dataNodes": [full_node(number) for number in range(DATA_NODES_MAX)]}
    writing = ("apply", "--server-side", "--subresource=status", "--filename=-")
    for number in range(managers):
        kubectl(*writing, f"--field-manager=program-{number}", stdin=json.dumps(body))
    where = ("dz", name, "--namespace=limits-full")
    stored: Json = json.loads(kubectl("get", *where, "--output=json", "--show-managed-fields"))
    owned = json.dumps(stored["metadata"]["managedFields"])
    assert owned.count("f:waitingFor") == managers * DATA_NODES_MAX
    return stored


def full_node(number: int) -> Json:
    """Return the status of a data node with each of its fields."""
    now = "2026-01-01T00:00:00Z"
    resting = {"sinceTime": now, "untilTime": now, "state": "Waiting", "waitingFor": "another"}
    return {
        "id": number,
        **dict.fromkeys(("podName", "nodeName", "address", "failureDomain"), "x"),
        "placedAs": {"weight": 2, "failureDomain": "x"},
        "weight": 2,
        "triggerTime": now,
        "state": "Active",
        "maintenance": resting,
    }
