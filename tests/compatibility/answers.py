"""The recorded answers: one file per group, in it every command line with what it answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

ANSWERS = Path(__file__).with_name("answers")
_HEADING = "$ "
"""In front of a command line; in front of lines of answers that begin like this stands a backslash."""


def recorded(group: str) -> dict[str, str]:
    """The answers of a group by command line; none if it was never recorded."""
    path = ANSWERS / f"{group}.txt"
    found: dict[str, str] = {}
    text = path.read_bytes().decode() if path.exists() else ""  # bytes: the ends of lines as they are
    for block in f"\n{text}".split(f"\n{_HEADING}")[1:]:
        heading, _, answer = block.partition("\n")
        found[heading] = answer.replace(f"\n\\{_HEADING}", f"\n{_HEADING}")
    return found


def record(group: str, answers: Mapping[str, str]) -> None:
    """Write the answers of a group."""
    ANSWERS.mkdir(exist_ok=True)
    blocks = (
        f"{_HEADING}{text}\n" + answer.replace(f"\n{_HEADING}", f"\n\\{_HEADING}") for text, answer in answers.items()
    )
    (ANSWERS / f"{group}.txt").write_bytes("\n".join(blocks).encode())


LIBRARIES = Path(__file__).with_name("libraries.json")
"""Versions of the libraries that pictures and help come from, when the answers were recorded."""


def record_libraries() -> None:
    """Write down the versions that are installed."""
    versions = {name: metadata.version(name) for name in ("matplotlib", "rich", "typer")}
    LIBRARIES.write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")


def other_libraries() -> dict[str, str]:
    """Those that are installed in another version than the answers were recorded with."""
    versions: dict[str, str] = json.loads(LIBRARIES.read_text(encoding="utf-8"))
    return {name: now for name, then in versions.items() if (now := metadata.version(name)) != then}
