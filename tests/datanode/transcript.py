"""Scripts of events and what follows from them, which tests play and compare line by line.

A script stands in `transcripts`: scenes under titles, each a list of events; the lines below an
event that begin with two spaces say what followed. Who plays a script yields those lines.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "transcripts"
Player = Callable[[list[str]], Iterable[str]]
"""Plays the words of one event, and yields what follows from it."""


class Scene(NamedTuple):
    """A part of a script that begins with nothing."""

    title: str
    lines: list[str]


def scenes(name: str) -> list[Scene]:
    """Return the scenes of a script."""
    found: list[Scene] = []
    for scene in (FOLDER / name).read_text().split("\n== ")[1:]:
        title, _, lines = scene.partition("\n")
        found.append(Scene(title, [line for line in lines.splitlines() if line.strip()]))
    return found


def titles(name: str) -> list[str]:
    """Return the titles of a script's scenes, as ids of tests."""
    return [scene.title for scene in scenes(name)]


def played(scene: Scene, play: Player) -> list[str]:
    """Return the lines of a scene as they must be: each event, and what follows from it."""
    lines: list[str] = []
    for line in scene.lines:
        if not line.startswith("  "):
            lines += [line, *(f"  {what}" for what in play(line.split()))]
    return lines


def value(text: str) -> Any:
    """Return a word of a script: a number, a truth, or itself."""
    if text in {"", "no"}:
        return not text
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def said(words: Iterable[str]) -> dict[str, Any]:
    """Return what the words of a line say; a word alone is true."""
    return {name: value(text) for name, _, text in (word.partition("=") for word in words)}


def numbers(text: object) -> tuple[int, ...]:
    """Return the numbers of a list such as 0,1,2; none for a dash."""
    return () if text == "-" else tuple(int(number) for number in str(text).split(","))


def pairs(text: object) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a list such as 1:5,2:-."""
    for pair in str(text).split(",") if text != "-" else ():
        name, _, what = pair.partition(":")
        yield name, what


def shown(effect: object) -> str:
    """Return how a script tells an effect; an error as its kind and its text."""
    error = getattr(effect, "error", None)
    if isinstance(error, Exception):
        return f"{type(effect).__name__}({type(error).__name__}: {error})"
    return "nothing" if effect is None else str(effect)
