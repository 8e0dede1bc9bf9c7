"""Durations of cells in the logs of earlier runs."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic_core import from_json

from sysbench.command import Kind
from sysbench.log.events import event_name
from sysbench.log.outcomes import LASTING

MAX_LOGS = 200

MAX_LOG_BYTES = 32 * 1024 * 1024
"""Size limit; larger logs have thousands of cells and would take too long to read for a plan."""

_NEEDED_EVENTS = ("run_started", "run_resumed", "cell_started", "cell_finished")


@dataclass
class Durations:
    """Durations of cells on the given devices, each from the newest log that contains the cell."""

    cells_s: dict[str, float] = field(default_factory=dict)
    """Seconds from the start of a cell to its end, by key."""
    predicted_s: dict[str, float] = field(default_factory=dict)
    """Predicted seconds for the steps of cells that have not run on these devices, by key."""
    not_predicted: tuple[str, ...] = ()
    """Names of the runs whose prediction would have taken too long for a plan."""
    startups_s: dict[Kind, list[float]] = field(default_factory=dict)
    """Seconds from the start of a run to its first cell, by command."""

    def startup_s(self, kind: Kind) -> float:
        """Return the median time in seconds from the start of a run of this command to its first cell."""
        every = self.startups_s.get(kind) or [one for startup_s in self.startups_s.values() for one in startup_s]
        return statistics.median(every) if every else 0.0


def earlier_durations(directory: Path, devices: Collection[str]) -> Durations:
    """Read the durations of cells on devices with these names, from the logs in a directory and its subdirectories."""
    durations = Durations()
    for path in sorted(_logs(directory), key=_modified_at)[-MAX_LOGS:]:
        try:
            _read(path, devices, durations)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return durations


def _logs(directory: Path) -> Iterator[Path]:
    try:
        yield from (
            path for path in directory.rglob("*.jsonl") if path.is_file() and path.stat().st_size <= MAX_LOG_BYTES
        )
    except OSError:
        return


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path, devices: Collection[str], durations: Durations) -> None:
    run_start: tuple[Kind, float] | None = None
    started: dict[str, tuple[float, str]] = {}
    with path.open("rb") as file:
        for line in file:
            if (event := event_name(line)) not in _NEEDED_EVENTS:
                continue
            fields = from_json(line)
            if event == "run_started":
                run_start = (fields["kind"], fields["at_s"])
            elif event == "run_resumed":
                run_start = None
            elif event == "cell_started":
                started[fields["cell"]] = (fields["at_s"], fields["device"]["name"])
                if run_start is not None and fields["device"]["name"] in devices:
                    durations.startups_s.setdefault(run_start[0], []).append(fields["at_s"] - run_start[1])
                run_start = None
            elif event == "cell_finished" and fields["cell"] in started and fields["outcome"] in LASTING:
                started_s, device = started.pop(fields["cell"])
                if device in devices:
                    durations.cells_s[fields["cell"]] = fields["at_s"] - started_s
