"""Durations of cells in the logs of earlier runs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from sysbench.command import Kind
from sysbench.log.outcomes import LASTING

MOST_LOGS = 200
"""Number of newest logs to read; older durations are irrelevant."""

MOST_BYTES = 32 * 1024 * 1024
"""Size limit; larger logs have thousands of cells and would take too long to read for a plan."""

_TELLING = re.compile(rb'\s*{\s*"event":\s*"(run_started|worker_ready|cell_started|cell_finished|run_resumed)"')


@dataclass
class Durations:
    """Durations of cells on the given devices, each from the newest log that contains the cell."""

    cells_s: dict[str, float] = field(default_factory=dict)
    """Seconds from the start of a cell to its end, by key."""
    predicted_s: dict[str, float] = field(default_factory=dict)
    """Predicted seconds for the steps of cells that have not run on these devices, by key."""
    beginnings_s: dict[Kind, list[float]] = field(default_factory=dict)
    """Seconds from the start of a run to its first cell, by command."""

    def beginning_s(self, kind: Kind) -> float:
        """Return the median seconds from the start of a run of this command to its first cell.

        If no run of this command is known, return the median over all commands, or 0.
        """
        every = self.beginnings_s.get(kind) or [one for each in self.beginnings_s.values() for one in each]
        return statistics.median(every) if every else 0.0


def measured_before(directory: Path, devices: Collection[str]) -> Durations:
    """Read the durations of cells on devices with these names, from the logs in and below a directory.

    Unreadable logs are skipped.
    """
    found = Durations()
    for path in sorted(_logs(directory), key=_age)[-MOST_LOGS:]:
        try:
            _read(path, devices, found)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _logs(directory: Path) -> Iterator[Path]:
    try:
        yield from (path for path in directory.rglob("*.jsonl") if path.is_file() and path.stat().st_size <= MOST_BYTES)
    except OSError:
        return


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path, devices: Collection[str], found: Durations) -> None:
    begun: tuple[Kind, float] | None = None
    started: dict[str, tuple[float, Any]] = {}
    with path.open("rb") as file:
        for line in file:
            if not (event := _TELLING.match(line)):
                continue
            said = from_json(line)
            if event[1] == b"run_started":
                begun = (said["kind"], said["at_s"])
            elif event[1] == b"run_resumed":
                begun = None
            elif event[1] == b"cell_started":
                started[said["cell"]] = (said["at_s"], said["device"]["name"])
                if begun is not None and said["device"]["name"] in devices:
                    found.beginnings_s.setdefault(begun[0], []).append(said["at_s"] - begun[1])
                begun = None
            elif event[1] == b"cell_finished" and said["cell"] in started and said["outcome"] in LASTING:
                since_s, device = started.pop(said["cell"])
                if device in devices:
                    found.cells_s[said["cell"]] = said["at_s"] - since_s
