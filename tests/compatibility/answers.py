"""The recorded answers: one file per group, in it every command line with what it answered."""

from __future__ import annotations

from collections.abc import Mapping
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
