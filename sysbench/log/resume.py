"""Resuming an earlier run from its log, and checks that the run may be resumed here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from sysbench.errors import LogError, UsageError
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    DeviceInfo,
    LineDamaged,
    PhaseSample,
    RunStarted,
    StepMeasured,
    ThreadsProbed,
    WorkerReady,
)
from sysbench.log.journal import read
from sysbench.log.outcomes import LASTING, Outcome
from sysbench.package import VERSION
from sysbench.spec.cell import RunCell, RunSpec
from sysbench.spec.options import flag_of


@lru_cache(maxsize=2**16)
def _key(cell: RunCell) -> str:
    """Return the key of a cell, cached because computing a key takes as long as reading a few lines."""
    return cell.key


@dataclass
class EarlierRun:
    """The parts of a log that are needed to continue its run."""

    path: Path
    started: RunStarted
    worker: WorkerReady | None = None
    threads_probe: ThreadsProbed | None = None
    """Choice of CPU threads, which a continued run keeps."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    devices: dict[str, DeviceInfo] = field(default_factory=dict)
    """Device of the last attempt, by cell."""
    steps_s: dict[str, list[float]] = field(default_factory=dict)
    """Times of the steps that attempts at a cell have measured."""

    def keeps(self, cell: RunCell) -> bool:
        """Whether the logged result of this cell is kept, so that the cell does not run again."""
        return self.outcome(cell) in LASTING

    def outcome(self, cell: RunCell) -> Outcome | None:
        """Return the outcome of the last finished attempt at this cell; None if there is none."""
        return self.outcomes.get(_key(cell))

    def measured_s(self, cell: RunCell, device: DeviceInfo) -> tuple[float, ...]:
        """Return the times of the steps with which a cell is continued; empty if it has to begin anew.

        Steps of a failed attempt do not count, nor those of another device.
        """
        before = self.devices.get(_key(cell))
        is_same = before is not None and _identity(before) == _identity(device)
        stopped = self.outcome(cell) in (None, "interrupted")
        return tuple(self.steps_s.get(_key(cell), ())) if cell.keeps_steps and is_same and stopped else ()

    def refuse_other_spec(self, spec: RunSpec) -> None:
        """Raise UsageError, naming every difference, if the log was recorded with another spec."""
        if self.started.kind != spec.kind:
            raise UsageError(
                f"--resume {self.path}: this is a log of `sysbench {self.started.kind}`, not of `sysbench {spec.kind}`"
            )
        here, there = spec.model_dump(mode="json"), self.started.spec
        differing = [name for name in {**there, **here} if here.get(name) != there.get(name)]
        if differing:
            listed = "; ".join(
                f"{flag_of(name)} {_format_value(there.get(name))} there, {_format_value(here.get(name))} here"
                for name in differing
            )
            raise UsageError(f"--resume {self.path}: the log was made with different options: {listed}")

    def refuse_other_code(self, digest: str) -> None:
        """Raise UsageError if the log was recorded with different source code of sysbench."""
        if self.started.source_digest != digest:
            raise UsageError(
                f"--resume {self.path}: the log was made by different code: sysbench {self.started.sysbench_version} "
                f"({self.started.source_digest[:8]}) there, {VERSION} ({digest[:8]}) here"
            )

    def refuse_other_machine(self, ready: WorkerReady, cells: Iterable[tuple[RunCell, DeviceInfo]]) -> None:
        """Raise UsageError if the version of torch, or the device of a kept cell, differs from the one in the log."""
        if self.worker is not None and self.worker.torch.torch != ready.torch.torch:
            raise UsageError(
                f"--resume {self.path}: the log was made with a different torch: {self.worker.torch.torch} there, "
                f"{ready.torch.torch} here"
            )
        for cell, here in cells:
            device = self.devices.get(_key(cell)) if self.keeps(cell) else None
            if device is not None and _identity(device) != _identity(here):
                raise UsageError(
                    f"--resume {self.path}: the log was made on a different device: {_device_title(device)} there, "
                    f"{_device_title(here)} here"
                )


def read_earlier_run(path: Path) -> EarlierRun:
    """Read the parts of a log that are needed to continue its run; raises LogError if the log cannot be read."""
    events = read(path)  # all of it: a damaged line in a cell makes the cell run again
    beginning = next(events, None)
    if not isinstance(beginning, RunStarted):
        raise LogError(f"{path} contains no run")
    earlier, current = EarlierRun(path, beginning), ""
    for event in events:
        match event:
            case WorkerReady():
                earlier.worker = event
            case ThreadsProbed():
                earlier.threads_probe = event
            case CellStarted():
                current = event.cell
                earlier.devices[event.cell] = event.device
                earlier.outcomes.pop(event.cell, None)
                if not event.keeps_steps:
                    earlier.steps_s[event.cell] = []
            case StepMeasured(warmup=False, step=PhaseSample(wall_s=float() as wall_s)):
                earlier.steps_s.setdefault(event.cell, []).append(wall_s)
            case LineDamaged():
                earlier.steps_s.pop(current, None)
            case CellFinished():
                earlier.outcomes[event.cell] = event.outcome
            case _:
                pass
    return earlier


def _identity(device: DeviceInfo) -> tuple[str, str, str | None]:
    return device.type, device.name, device.uuid


def _device_title(device: DeviceInfo) -> str:
    return f"{device.name} ({device.uuid})" if device.uuid else device.name


def _format_value(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
