"""What the engine's tests put in place of torch and of the machine: a scripted worker, a made-up sampler."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from sysbench.commands.time.spec import TimeSpec
from sysbench.engine.process import Launcher
from sysbench.engine.provisions import Surroundings
from sysbench.engine.sensors.sampler import Sampler
from sysbench.engine.session import Session, run
from sysbench.log.events import CellFinished, DeviceInfo, Event, Reading, ReadingsLost
from sysbench.log.journal import read
from sysbench.spec.run import RunOptions
from tests.engine import scripted_worker

CPU = {"name": "Made-up CPU", "type": "cpu"}
GPU = {"name": "Made-up GPU", "type": "cuda", "uuid": "GPU-1", "memory_bytes": 2**30}

AnyEvent = TypeVar("AnyEvent")


class ScriptedLauncher(Launcher):
    """Starts `scripted_worker.py`; by context length, `cells` says what becomes of a cell, on each rank."""

    def __init__(self, cells: Mapping[int, str | list[str]] | None = None, **script: Any) -> None:
        super().__init__()
        self.script = {"devices": [CPU], "cells": {str(ctx): act for ctx, act in (cells or {}).items()}, **script}

    def command(self) -> list[str]:
        return [sys.executable, scripted_worker.__file__]

    def environment(self) -> dict[str, str]:
        return {**os.environ, scripted_worker.SCRIPT_VARIABLE: json.dumps(self.script)}


class FakeSampler(Sampler):
    """A machine with as much memory as the test wants, looked at 20 times a second."""

    driver: str | None = None

    def __init__(self, free_bytes: int | None = None) -> None:
        self.interval_s = 0.05
        self.watched: list[tuple[int, ...]] = []
        self.used: list[DeviceInfo | None] = []
        self.used_by_other_ranks: list[DeviceInfo] = []
        self.closed = False
        self._free_bytes = free_bytes
        self._failures = [ReadingsLost(at_s=0, source="nvml", detail="Driver/library version mismatch")]

    def watch(self, *pids: int) -> None:
        self.watched.append(pids)

    def use(self, device: DeviceInfo | None, others: Sequence[DeviceInfo] = ()) -> None:
        self.used.append(device)
        self.used_by_other_ranks += others

    def read(self, at_s: float) -> Reading:
        return Reading(at_s=at_s, host_rss_bytes=1)

    def failures(self) -> list[ReadingsLost]:
        failures, self._failures = self._failures, []
        return failures

    def count_other_processes(self) -> int | None:
        return 2

    def free_bytes(self, device: DeviceInfo) -> int | None:
        return self._free_bytes

    def close(self) -> None:
        self.closed = True


def spec_of(ctx: Iterable[int] = (16,), **fields: Any) -> TimeSpec:
    """Cells that differ in context length, which is what the scripted worker goes by."""
    return TimeSpec(
        **{"size": "tiny", "d_model": 32, "layers": 1, "mode": "forward", "device": "cpu", "ctx": tuple(ctx), **fields}
    )


def start(
    spec: TimeSpec,
    out: Path,
    launcher: ScriptedLauncher | None = None,
    sampler: FakeSampler | None = None,
    **options: Any,
) -> Session:
    surroundings = {field.name: options.pop(field.name) for field in fields(Surroundings) if field.name in options}
    return run(
        spec,
        RunOptions(out=out, **options),
        launcher=launcher or ScriptedLauncher(),
        sampler=sampler or FakeSampler(),
        surroundings=Surroundings(**surroundings),
    )


def carry_out(
    spec: TimeSpec,
    out: Path,
    launcher: ScriptedLauncher | None = None,
    sampler: FakeSampler | None = None,
    **options: Any,
) -> list[Event]:
    """A whole run, from start to end."""
    with start(spec, out, launcher, sampler, **options) as session:
        return list(session)


def of_kind(events: Iterable[Event], kind: type[AnyEvent]) -> list[AnyEvent]:
    return [event for event in events if isinstance(event, kind)]


def verdicts(spec: TimeSpec, events: Iterable[Event]) -> dict[int, CellFinished]:
    """By context length, how the cells ended; of several attempts the last."""
    ctx = {cell.key: cell.ctx for cell in spec.cells()}
    return {ctx[event.cell]: event for event in of_kind(events, CellFinished)}


def outcomes(spec: TimeSpec, events: Iterable[Event]) -> dict[int, str]:
    return {ctx: finished.outcome for ctx, finished in verdicts(spec, events).items()}


def only_log(out: Path) -> list[Event]:
    (path,) = out.glob("*.jsonl")
    return list(read(path))
