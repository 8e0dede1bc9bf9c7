"""Admission of cells: the device must support the cell and have enough free memory for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sysbench import units
from sysbench.engine.plan import PlacedCell
from sysbench.errors import Refusal
from sysbench.log.events import DeviceInfo
from sysbench.log.outcomes import REASONS, Outcome, Reason
from sysbench.spec.run import RunOptions

HOPELESS_SHARE = 1.5
"""On a GPU, where running out of memory is a result, a cell is started unless the formula, which is biased high, says
that it needs more than this share of the free memory."""


@dataclass(frozen=True)
class NotStarted:
    """Why a cell is not started."""

    reason: Reason
    refusal: Refusal

    @property
    def outcome(self) -> Outcome:
        """The outcome of the cell: `invalid` if it is not available here, otherwise `skipped`."""
        return "invalid" if self.reason == REASONS["invalid"] else "skipped"


class Admission:
    """Decides which cells are started; remembers cells that ran out of memory."""

    def __init__(self, options: RunOptions, free_bytes: Callable[[DeviceInfo], int | None]) -> None:
        self._options = options
        self._free_bytes = free_bytes
        self._too_large: list[PlacedCell] = []

    def remember_too_large(self, placed: PlacedCell) -> None:
        """Record that this cell ran out of memory."""
        self._too_large.append(placed)

    def refusal(self, placed: PlacedCell) -> NotStarted | None:
        """Return why the cell should not be started; None if it should be started."""
        unavailable = placed.cell.unavailable(placed.device.type)
        if unavailable is not None:
            return NotStarted("unavailable", unavailable)
        if placed.cell.simulated:
            return None  # the simulation uses no device memory, and itself reports what does not fit
        if (larger := self._larger_than_failed_cell(placed)) is not None:
            return NotStarted("larger-than-failed", larger)
        exceeding = self._exceeds_free_memory(placed)
        return NotStarted("exceeds-memory", exceeding) if exceeding is not None else None

    def _larger_than_failed_cell(self, placed: PlacedCell) -> Refusal | None:
        sizes = placed.cell.memory_dimensions
        if self._options.force or not sizes:
            return None
        for failed in self._too_large:
            comparable = _comparison_key(placed) == _comparison_key(failed) and failed.cell.key != placed.cell.key
            if comparable and all(a >= b for a, b in zip(sizes, failed.cell.memory_dimensions, strict=True)):
                larger = f"at least as large as {failed.cell.title}, which ran out of memory"
                return Refusal(larger, "--force starts it anyway")
        return None

    def _exceeds_free_memory(self, placed: PlacedCell) -> Refusal | None:
        on_gpu = placed.device.type == "cuda"
        if self._options.force or (placed.cell.runs_despite_oom and on_gpu):
            return None
        free_bytes = self._free_bytes(placed.device)
        needed_bytes = placed.predicted_bytes
        if free_bytes is None or needed_bytes is None or needed_bytes <= free_bytes * (HOPELESS_SHARE if on_gpu else 1):
            return None
        too_much = f"needs about {units.size(needed_bytes)}, but {units.size(free_bytes)} are free"
        return Refusal(too_much, "--force starts it anyway")


def _comparison_key(placed: PlacedCell) -> tuple[str, ...]:
    return (*placed.cell.comparability_key, placed.device.torch_name)
