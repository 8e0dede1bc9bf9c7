"""Admission of cells: the device must support the cell and have enough free memory for it.

A cell that is at least as large as one that did not fit is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sysbench import units
from sysbench.engine.plan import PlacedCell
from sysbench.log.events import DeviceInfo, MemoryForeseen
from sysbench.log.outcomes import REASONS, Outcome, Reason
from sysbench.spec.run import RunOptions

UNCERTAIN_SHARES = (0.5, 1.5)
"""Limits of the predicted memory as a share of the free memory. Outside them, the memory formula decides. Between them,
cells are simulated, because the formula does not include the allocator's rounding and fragmentation, or the copies that
autocast keeps.
"""


@dataclass(frozen=True)
class Refusal:
    """Why a cell is not started."""

    reason: Reason
    detail: str

    @property
    def outcome(self) -> Outcome:
        """The outcome of the cell: `invalid` if it is not available here, otherwise `skipped`."""
        return "invalid" if self.reason == REASONS["invalid"] else "skipped"


class Admission:
    """Decides which cells are started; remembers cells that did not fit, either when run or when simulated."""

    def __init__(self, options: RunOptions, free_bytes: Callable[[DeviceInfo], int | None]) -> None:
        self._options = options
        self._free_bytes = free_bytes
        self._too_large: list[tuple[PlacedCell, str]] = []
        """Cells that do not fit, each with the reason."""
        self._simulations: dict[str, MemoryForeseen] = {}
        """Simulation results by cell key."""

    def remember_too_large(self, placed: PlacedCell) -> None:
        """Record that this cell ran out of memory."""
        self._too_large.append((placed, "ran out of memory"))

    def remember_simulation(self, placed: PlacedCell, result: MemoryForeseen) -> None:
        """Record the simulation result of this cell."""
        self._simulations[placed.cell.key] = result
        if result.fits is False:
            self._too_large.append((placed, "does not fit according to a simulation"))

    def uncertain_cells(self, cells: Sequence[PlacedCell]) -> Iterator[tuple[PlacedCell, int]]:
        """Yield the cells that must be simulated to decide whether they fit, each with the free memory in bytes.

        Pass each simulation result to `remember_simulation` before taking the next cell: if a cell does not fit, later
        cells that are at least as large are left out.
        """
        for placed in cells:
            if not self._can_be_simulated(placed) or self._larger_than_failed_cell(placed) is not None:
                continue
            free_bytes = self._free_bytes(placed.device)
            if free_bytes is None:
                continue
            share = (placed.predicted_bytes or 0) / max(1, free_bytes)
            if UNCERTAIN_SHARES[0] <= share <= UNCERTAIN_SHARES[1]:
                yield placed, free_bytes

    def refusal(self, placed: PlacedCell) -> Refusal | None:
        """Return why the cell should not be started; None if it should be started."""
        unavailable = placed.cell.unavailable(placed.device.type)
        if unavailable is not None:
            return Refusal("unavailable", unavailable)
        if placed.cell.simulated:
            return None  # the simulation uses no device memory, and itself reports what does not fit
        if (larger := self._larger_than_failed_cell(placed)) is not None:
            return Refusal("larger-than-failed", larger)
        exceeding = self._exceeds_free_memory(placed)
        return Refusal("exceeds-memory", exceeding) if exceeding is not None else None

    def _can_be_simulated(self, placed: PlacedCell) -> bool:
        cell, device = placed.cell, placed.device
        return (
            device.type == "cuda"
            and cell.step is not None
            and cell.step.execution == "eager"
            and not (self._options.force or cell.simulated or cell.runs_despite_oom)
            and cell.unavailable(device.type) is None
        )

    def _larger_than_failed_cell(self, placed: PlacedCell) -> str | None:
        if self._options.no_skip:
            return None
        for failed, failure in self._too_large:
            comparable = (
                placed.cell.memory_dimensions
                and _comparison_key(placed) == _comparison_key(failed)
                and failed.cell.key != placed.cell.key
            )
            if comparable and all(
                a >= b for a, b in zip(placed.cell.memory_dimensions, failed.cell.memory_dimensions, strict=True)
            ):
                return f"at least as large as {failed.cell.title}, which {failure} (--no-skip runs it anyway)"
        return None

    def _exceeds_free_memory(self, placed: PlacedCell) -> str | None:
        if self._options.force or (placed.cell.runs_despite_oom and placed.device.type == "cuda"):
            return None
        free_bytes = self._free_bytes(placed.device)
        needed_bytes = placed.predicted_bytes
        if free_bytes is None or needed_bytes is None:
            return None
        simulation = self._simulations.get(placed.cell.key)
        if simulation is not None and simulation.fits is not None:
            shortfall = f" ({units.size(simulation.lacking_bytes)} short)" if simulation.lacking_bytes else ""
            reason = f"simulated: {simulation.detail}{shortfall}; {units.size(simulation.free_bytes)} are free"
            return None if simulation.fits else f"{reason} (--force starts it anyway)"
        if needed_bytes <= free_bytes:
            return None
        return (
            f"needs about {units.size(needed_bytes)}, but {units.size(free_bytes)} are free (--force starts it anyway)"
        )


def _comparison_key(placed: PlacedCell) -> tuple[str, ...]:
    return (*placed.cell.comparability_key, placed.device.torch_name)
