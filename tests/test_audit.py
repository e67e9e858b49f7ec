"""The audit of the lock file finds what must not be released, and nothing in ours."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
URL = "https://files.example/a.whl"
HASH = "sha256:" + "0" * 64


@pytest.fixture
def audit(hack: Callable[[str], ModuleType]) -> ModuleType:
    """Return hack/audit.py."""
    return hack("audit")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"wheels": [{"url": URL}]}, [f"a 1: {URL} has no SHA-256 digest"]),
        (
            {"wheels": [], "sdist": {"url": URL, "hash": "md5:00"}},
            [f"a 1: {URL} has no SHA-256 digest"],
        ),
        (
            {"wheels": [{"url": "http://x/a.whl", "hash": HASH}]},
            ["a 1: http://x/a.whl is not had by HTTPS"],
        ),
        ({"wheels": []}, ["a 1: has no file"]),
        (
            {"source": {"git": "https://x/a"}},
            ["a 1: is not of https://pypi.org/simple"],
        ),
    ],
)
def test_files_that_cannot_be_checked_are_told(
    audit: ModuleType, changes: dict[str, Any], told: list[str]
) -> None:
    """Asserts that each file has a digest. Without it a changed file would be installed unseen."""
    package = {
        "name": "a",
        "version": "1",
        "source": {"registry": "https://pypi.org/simple"},
        "wheels": [{"url": URL, "hash": HASH}],
    }
    assert list(audit.file_problems({"package": [package | changes]})) == told


@pytest.mark.parametrize(
    ("licence", "told"),
    [
        ("MIT", ""),
        ("Apache-2.0 AND MIT", ""),
        ("GPL-3.0-only OR MIT", ""),
        ("GPL-3.0-only", "GPL-3.0-only is not on the list of allowed licences"),
        ("MIT AND GPL-3.0-only", "MIT AND GPL-3.0-only is not on the list of allowed licences"),
        ("MIT AND (MIT OR ISC)", "MIT AND (MIT OR ISC) is not on the list of allowed licences"),
        ("", " is not on the list of allowed licences"),
        (None, "its licence is unknown; read it, and add it to READ in hack/audit.py"),
    ],
)
def test_licences_that_nobody_allowed_are_told(
    audit: ModuleType, licence: str | None, told: str
) -> None:
    """Asserts that all parts of a licence are allowed, or one of several to choose from.

    Without it users get a dependency that they may not ship.
    """
    found = list(audit.licence_problems({"package": [{"name": "a"}]}, lambda _: licence))
    assert found == ([f"a: {told}"] if told else [])


def test_our_lock_file_passes(audit: ModuleType) -> None:
    """Asserts that a new dependency has digests and a licence that is allowed."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    assert list(audit.file_problems(lock)) == []
    assert list(audit.licence_problems(lock)) == []


def test_a_package_that_is_not_there_has_no_licence(audit: ModuleType) -> None:
    """Asserts that what is not installed is told, unless a person has read its licence."""
    assert audit.licence("rezone-is-not-installed-under-this-name") is None
    assert audit.licence("colorama") == "BSD-3-Clause"
