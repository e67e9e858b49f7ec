"""The manifests that the documentation tells people to apply, to be applied as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)

Json = dict[str, Any]


def manifests(page: str, group: str) -> list[Json]:
    """Return the objects of an API group in a page's YAML, in the order of the page."""
    text = (_DOCS / page).read_text()
    objects = (one for block in _BLOCK.findall(text) for one in yaml.safe_load_all(block))
    return [one for one in objects if str(one.get("apiVersion", "")).startswith(f"{group}/")]
