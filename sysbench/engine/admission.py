"""Whether a cell is worth starting: it exists on this device, fits, and is smaller than those that did not."""

from __future__ import annotations

from collections.abc import Callable

from sysbench import formulas, units
from sysbench.engine.plan import PlacedCell
from sysbench.events import DeviceInfo
from sysbench.outcomes import Outcome
from sysbench.specs.run import RunOptions


class Admission:
    """Decides before each cell; cells that ran out of memory are remembered."""

    def __init__(self, options: RunOptions, free_bytes: Callable[[DeviceInfo], int | None]) -> None:
        self._options = options
        self._free_bytes = free_bytes
        self._too_large: list[PlacedCell] = []

    def remember_too_large(self, placed: PlacedCell) -> None:
        """This one ran out of memory."""
        self._too_large.append(placed)

    def refusal(self, placed: PlacedCell) -> tuple[Outcome, str] | None:
        """How this cell ends without being started, and why; None when it should be started."""
        unavailable = placed.cell.unavailable(placed.device.type)
        if unavailable is not None:
            return "invalid", unavailable
        if placed.cell.simulated:
            return None  # it takes none of the memory that it is about, and says itself what does not fit
        why = self._larger_than_one_that_failed(placed) or self._does_not_fit(placed)
        return ("skipped", why) if why is not None else None

    def _larger_than_one_that_failed(self, placed: PlacedCell) -> str | None:
        if self._options.no_skip:
            return None
        failed = next((each for each in self._too_large if _at_least_as_large(placed, each)), None)
        if failed is None:
            return None
        return f"no smaller than {failed.cell.title}, which ran out of memory (--no-skip runs it anyway)"

    def _does_not_fit(self, placed: PlacedCell) -> str | None:
        free_bytes = self._free_bytes(placed.device)
        needed_bytes = formulas.predicted_bytes(placed.cell)
        if self._options.force or free_bytes is None or needed_bytes is None or needed_bytes <= free_bytes:
            return None
        return f"needs about {units.size(needed_bytes)}, {units.size(free_bytes)} are free (--force starts it anyway)"


def _at_least_as_large(placed: PlacedCell, other: PlacedCell) -> bool:
    sizes, other_sizes = placed.cell.extent, other.cell.extent
    if not sizes or _kind(placed) != _kind(other):
        return False
    return all(a >= b for a, b in zip(sizes, other_sizes, strict=True))


def _kind(placed: PlacedCell) -> tuple[str, ...]:
    """Everything in which two cells must agree for their sizes to be comparable."""
    return (*placed.cell.likeness, placed.device.torch_name)
