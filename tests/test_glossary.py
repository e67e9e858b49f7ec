"""The check of the glossary finds forbidden words, and only those."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
WORDS: Any = {
    "terms": {"producer": {"means": "A client.", "as": "Kafka", "not": ["teller_id", r"`Old`"]}},
    "plain": {"hence": "so"},
}


@pytest.fixture
def glossary(hack: Callable[[str], Any]) -> Any:
    """Return hack/glossary.py."""
    return hack("glossary")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x\nteller_id = 1", "a.md:2: 'teller_id': say producer"),
        ("the reason `Old`", "a.md:1: '`Old`': say producer"),
        ("and hence", "a.md:1: 'hence': say so"),
    ],
)
def test_a_forbidden_word_is_found(glossary: Any, text: str, found: str) -> None:
    """A second word for one thing would come back unseen."""
    assert list(glossary.offences("a.md", text, glossary.forbidden(WORDS))) == [found]


@pytest.mark.parametrize("text", ["storyteller_ids", "Old", "henceforth", "a new one"])
def test_other_words_are_left_alone(glossary: Any, text: str) -> None:
    """The check would be switched off if it complained of innocent words."""
    assert list(glossary.offences("a.md", text, glossary.forbidden(WORDS))) == []


def test_the_page_lists_each_term(glossary: Any) -> None:
    """A reader would not find what a word means."""
    assert "| producer | A client. | Kafka |\n" in glossary.page(WORDS)
