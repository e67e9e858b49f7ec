"""What a driver says in annotations, made safe to show: anybody may annotate."""

from collections.abc import Mapping
from typing import Any

from rezone.cli.look.text import clean

NUMBER_MAX = 2**63
TEXT_CHARACTERS_MAX = 2000


def number_of(said: Mapping[str, Any], name: str) -> int:
    """Return a count. Raises KeyError, and ValueError for what is none."""
    value = said[name]
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise ValueError(f"{name} is no count")
    return value


def number_or_zero(said: Mapping[str, Any], name: str) -> int | float:
    """Return a number that can be shown, else 0."""
    value: Any = said.get(name)
    if type(value) not in (int, float):
        return 0
    return value if 0 <= value < NUMBER_MAX else 0  # neither NaN nor infinity


def text_in(value: object) -> str:
    """Return a text that can be shown. Raises TypeError for what is no text."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return shown(value)


def shown(text: str) -> str:
    """Return a text without orders to a terminal, cut where it is too long."""
    return clean(text[:TEXT_CHARACTERS_MAX])
