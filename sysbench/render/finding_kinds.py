"""Kinds of findings that several commands have: the numbers with their cells, and one sentence for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from sysbench import cells as axes
from sysbench.log.records import AnyCell
from sysbench.render.findings import Statement, join_words

# --- where memory ends


@dataclass(frozen=True)
class Limit(Generic[AnyCell]):
    """Where memory ends along an axis."""

    axis: str
    row: Sequence[AnyCell]
    """Cells that differ only in this axis, in ascending order."""
    fits: AnyCell | None
    """The last cell that fits; None if none fits."""
    beyond: AnyCell | None
    """The first cell that does not fit; None if all fit."""

    @property
    def untried(self) -> tuple[int, ...]:
        """Values between `fits` and `beyond` for which it is unknown whether they fit."""
        start = self.row.index(self.fits) + 1 if self.fits is not None else 0
        end = self.row.index(self.beyond) if self.beyond is not None else len(self.row)
        return tuple(cell.axis_value(self.axis) for cell in self.row[start:end] if cell.outcome != "ok")

    def describe(self) -> str:
        """Return `ctx 512 fits, ctx 1024 does not`; empty if all fit, or if memory ends for another reason.

        If a cell beyond the first that does not fit fits, the axis is not why memory ran out.
        """
        if self.beyond is None:
            return ""
        beyond = axes.phrase(self.axis, self.beyond.axis_value(self.axis))
        if self.fits is None:
            return f"{beyond} does not fit"
        if self.row.index(self.fits) > self.row.index(self.beyond):
            return ""
        return f"{axes.phrase(self.axis, self.fits.axis_value(self.axis))} fits, {beyond} does not"


def limits(
    cells: Iterable[AnyCell], axis: str, fits: Callable[[AnyCell], bool], exceeds: Callable[[AnyCell], bool]
) -> list[Limit[AnyCell]]:
    """Return the limit of every row along `axis` in which a cell is known to fit or to exceed the memory."""
    found = []
    for row in axes.group_ignoring(cells, axis):
        ordered = sorted(row, key=lambda cell: int(cell.axis_value(axis)))
        fitting, beyond = list(filter(fits, ordered)), list(filter(exceeds, ordered))
        if fitting or beyond:
            found.append(Limit(axis, ordered, fitting[-1] if fitting else None, beyond[0] if beyond else None))
    return found


def limit_findings(
    found: Iterable[Limit[AnyCell]],
    name: Callable[[Sequence[AnyCell]], str],
    shortage: Callable[[Sequence[AnyCell]], str] = lambda _: "",
) -> Iterator[Statement]:
    """Yield `small and medium: ctx 512 fits, ctx 1024 does not.`; rows with the same limit share a sentence.

    `name` and `shortage` describe the cells that do not fit.
    """
    axis, alike = "", dict[tuple[str, tuple[int, ...]], list[tuple[AnyCell | None, AnyCell]]]()
    for limit in found:
        axis = limit.axis
        if (text := limit.describe()) and limit.beyond is not None:
            alike.setdefault((text, limit.untried), []).append((limit.fits, limit.beyond))
    for (text, untried), ends in alike.items():
        beyond = [cell for _, cell in ends]
        values = f"{axes.AXES[axis].short_title} {join_words(list(map(str, untried)))}" if untried else ""
        unknown = f" Whether {values} {'fits' if len(untried) == 1 else 'fit'} is unknown." if untried else ""
        basis = tuple(cell for pair in ends for cell in pair if cell is not None)
        yield Statement(f"{name(beyond)}: {text}{shortage(beyond)}.{unknown}", basis, about="memory")
