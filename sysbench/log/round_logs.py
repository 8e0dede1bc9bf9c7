"""Paths of the logs of two arms that are measured in turns: `A/round-01.jsonl`, `B/round-01.jsonl`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Arm = Literal["A", "B"]
ARMS: tuple[Arm, ...] = get_args(Arm)

_ROUND = re.compile(r"round-(\d+)")


def log_name(number: int) -> str:
    """Name of the logs of a round, the same in the directory of each arm."""
    return f"round-{number:02d}"


@dataclass(frozen=True)
class Part:
    """The runs of one arm of an earlier comparison, by round number."""

    directory: Path
    arm: Arm
    files: Mapping[int, Path]


def part_of(files: Iterable[Path]) -> Part | None:
    """Return the arm to which all these files belong; None for any other files."""
    parts = parts_of(files)
    return next(iter(parts.values())) if len(parts) == 1 else None


def parts_of(files: Iterable[Path]) -> dict[Arm, Part]:
    """Return the arms of the single comparison that these files belong to; empty for other files or several ones."""
    found: dict[Arm, dict[int, Path]] = {}
    directories = set()
    for path in files:
        matched = _ROUND.fullmatch(path.stem)
        arm = next((arm for arm in ARMS if path.absolute().parent.name == arm), None)
        if matched is None or arm is None:
            return {}
        directories.add(path.absolute().parent.parent)
        found.setdefault(arm, {})[int(matched[1])] = path
    if len(directories) != 1:
        return {}
    (directory,) = directories
    return {arm: Part(directory, arm, found[arm]) for arm in ARMS if arm in found}
