"""The page of rights is what the chart gives: who reads one reads the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from resource_server import REPOSITORY
from test_chart import EVERYTHING, Json, chart

pytestmark = pytest.mark.proves("TR-02", "B-12")

PAGE = REPOSITORY / "docs" / "operate" / "security.md"
SIGNER = "rezone.dev/zone-client"


class Right(NamedTuple):
    """One resource that a role names, and what may be done to it."""

    role: str
    resource: str
    verbs: frozenset[str]


def rights_of(documents: list[Json]) -> Iterator[Right]:
    """Yield the rights in rendered roles."""
    for each in documents:
        for rule in each["rules"] if each["kind"] in {"Role", "ClusterRole"} else ():
            names = [
                ".".join(filter(None, (resource, group)))
                for group in rule["apiGroups"]
                for resource in rule["resources"]
            ]
            assert rule.get("resourceNames", [SIGNER]) == [SIGNER]
            for name in names:
                yield Right(each["metadata"]["name"], name, frozenset(rule["verbs"]))


def rights_told() -> Iterator[Right]:
    """Yield the rights in the page's table."""
    text = PAGE.read_text().partition("### Each right\n")[2].partition("\n### ")[0]
    role = ""
    for line in text.splitlines():
        if not line.startswith("|") or line.startswith(("| role", "| ---")):
            continue
        _, who, resources, verbs, _, _ = line.split("|")
        role = next(iter(re.findall(r"`([^`]+)`", who)), role)
        for resource in re.findall(r"`([^`]+)`", resources):
            yield Right(role, resource, frozenset(verbs.strip().split(", ")))


def test_the_page_names_each_right(helm: str) -> None:
    """Asserts that page and chart have the same rights, none twice.

    Without it somebody who reviews the page agrees to rights that nobody has told them of.
    """
    told = list(rights_told())
    assert len(told) == len(set(told)) > 30
    given = list(rights_of(chart(helm, *EVERYTHING)))
    assert {(right.role, right.resource) for right in given} == {
        (right.role, right.resource) for right in told
    }
    assert set(given) == set(told)
