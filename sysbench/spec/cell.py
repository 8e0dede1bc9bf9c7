"""What the engine has to know of a cell, whatever its command measures."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from sysbench.spec.axes import texts

if TYPE_CHECKING:
    from sysbench.commands.time.spec import TimeCell
    from sysbench.spec.model import ModelCell, Phase, Precision

DeviceType = Literal["cpu", "cuda", "mps"]

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def devices(value: object) -> tuple[str, ...]:
    """Names of devices, comma-separated; raises ValueError for what is none."""
    names = texts(value)
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise ValueError(f"{name or '(nothing)'} is not a device. (auto, cpu, mps, cuda, cuda:0, cuda:1, …)")
    return names


class RunCell(BaseModel):
    """One thing that a worker is asked to do; a command's own cell adds what it is, with `kind` saying whose."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)

    if TYPE_CHECKING:  # a field of every command's own cell, where its value is the default

        @property
        def kind(self) -> str:
            """The command that it is of."""

    device: str

    @property
    def key(self) -> str:
        """A short name that is the same for the same cell in every run: what resume and compare match on."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def simulated(self) -> str | None:
        """The GPU that this is a simulation for; None when a device of this machine is measured."""
        return None

    @property
    def against_ceiling(self) -> Precision | None:
        """The precision of the matrix product that results are held against, which has to be measured first."""
        return None

    @property
    def needs_fresh_worker(self) -> bool:
        """Whether what an earlier cell leaves in a process (high-water marks, workspaces) would spoil this one."""
        return False

    @property
    def timed_first(self) -> TimeCell | None:
        """The cell that is measured before this one, in a process of its own; None for most."""
        return None

    @property
    def worth_failing(self) -> bool:
        """Whether running out of memory on a GPU is a result of its own, with the history that led to it."""
        return False

    @property
    def step(self) -> ModelCell | None:
        """The training step of a Transformer that this is about; None where it is about none."""
        return None

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of that step that are run, in order."""
        return self.step.phases if self.step is not None else ()

    @property
    def extent(self) -> tuple[int, ...]:
        """Everything that makes a cell need more memory when it grows; nothing where cells do not grow."""
        return ()

    @property
    def likeness(self) -> tuple[str, ...]:
        """Everything in which two cells must agree for their extents to be comparable."""
        return ()

    @property
    def title(self) -> str:
        """The cell in a few words: what its memory depends on most."""
        return self.key

    def problem(self, device: DeviceType | None) -> str | None:
        """Why this cell cannot run, in one line, or None when it can.

        `device` is the kind of device it would run on; None while that is not known, and then only what is wrong
        on every device is named.
        """
        return None

    def unavailable(self, device: DeviceType) -> str | None:
        """Why this combination does not exist, or None when it does.

        Unlike `problem`, this makes one cell of a sweep `invalid` and lets the others run.
        """
        return None


class RunSpec(BaseModel):
    """What one run is asked for; a command's own spec adds its axes, with `kind` saying whose."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, validate_default=True, allow_inf_nan=False)

    if TYPE_CHECKING:  # a field of every command's own spec, where its value is the default

        @property
        def kind(self) -> str:
            """The command that it is of."""

    def cells(self) -> Iterator[Any]:
        """Every cell of the run, in the order in which it is measured."""
        raise NotImplementedError
