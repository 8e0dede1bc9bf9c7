"""One way of computing a training step against another, in sentences: precision, compilation, attention, …"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sysbench import units
from sysbench.analysis.time_findings import Compared, Comparison, comparison, gains_along, paced_by_launches, paybacks
from sysbench.analysis.time_series import arms
from sysbench.records import TimeCellRecord
from sysbench.views.said import Namer, Said, counted, multiple, namer, together_named, with_interval
from sysbench.views.tables import axes

COMPARED_AXES: Final = ("device", "precision", "execution", "attention", "optimizer")
"""Choices that are held against each other, the first of the run against each other one."""


def said(cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    """A sentence for each arm that was measured on something that the first one was measured on too."""
    for axis in COMPARED_AXES:
        values = arms(cells, axis)
        phase = "optimizer" if axis == "optimizer" else "step"
        for arm in values[1:]:
            found = comparison(cells, axis, values[0], arm, phase)
            if found is not None and len(found.decided(-1)) == len(found.each):
                # What is slower everywhere is what the other one is faster than.
                found = comparison(cells, axis, arm, values[0], phase)
            if found is not None:
                rests = tuple(cell for each in found.each for cell in (each.pair.base, each.pair.other))
                yield Said(_comparison(found, cells), rests)
                yield from _paid(found, cells)


def _comparison(found: Comparison, cells: Sequence[TimeCellRecord]) -> str:
    name = namer(cells, (found.axis,))
    of = "" if found.phase == "step" else f"{found.phase}: "
    arm, base = (axes.phrase(found.axis, value) for value in (found.arm, found.base))
    if len(found.each) == 1:
        (only,) = found.each
        if only.effect.direction == 0:
            return f"{of}{arm} and {base} cannot be told apart: {with_interval(only.effect.ratio)}."
        return f"{of}{arm} is {with_interval(only.effect.ratio)} as fast as {base}."
    undecided = found.decided(0)
    if len(undecided) == len(found.each):
        values = [each.effect.ratio.value for each in found.each]
        return (
            f"{of}{arm} and {base} cannot be told apart in {counted(len(found.each))}: "
            f"{units.ratio(values[0])} to {units.ratio(values[-1])}."
        )
    if found.common is not None and not undecided:
        return f"{of}{arm} is {multiple(found.common)} as fast as {base} in {counted(len(found.each))}."
    said_of_all = _most_and_least(found, name, arm, base)
    return f"{of}{said_of_all}{_by_phase(found, cells)}{_trends(found)}{_doubts(found)}{_why(found)}."


def _most_and_least(found: Comparison, name: Namer, arm: str, base: str) -> str:
    least, most = found.each[0], found.each[-1]
    return (
        f"{arm} is {units.ratio(most.effect.ratio.value)} as fast as {base} at {name(most.pair.base)} and "
        f"{units.ratio(least.effect.ratio.value)} at {name(least.pair.base)}, {units.ratio(found.mean)} in the "
        f"geometric mean of {len(found.each)} cells"
    )


def _by_phase(found: Comparison, cells: Sequence[TimeCellRecord]) -> str:
    """`; forward 1.50 to 2.51×, backward 1.81 to 2.58×`."""
    parts_ = []
    for phase in ("forward", "backward") if found.phase == "step" else ():
        of_phase = comparison(cells, found.axis, found.base, found.arm, phase)
        if of_phase is not None and "backward" in of_phase.each[0].pair.base.phases:
            low, high = (of_phase.each[end].effect.ratio.value for end in (0, -1))
            parts_.append(f"{phase} {low:.2f} to {units.ratio(high)}")
    return f" ({', '.join(parts_)})" if parts_ else ""


def _trends(found: Comparison) -> str:
    """`; the larger the model and the longer the context, the more`."""
    words = [words for axis, words in _MORE.items() if gains_along(found, axis)]
    return f"; {' and '.join(words)}, the more" if words else ""


_MORE: Final = {"size": "the larger the model", "ctx": "the longer the context"}


def _doubts(found: Comparison) -> str:
    slower, same = found.decided(-1), found.decided(0)
    text = ""
    if slower and found.decided(1):
        text += f"; it is slower at {_at(slower, found)}"
    if same:
        text += f"; the two cannot be told apart at {_at(same, found)}"
    return text


def _at(some: Sequence[Compared], found: Comparison) -> str:
    everything = [each.pair.base for each in found.each]
    return together_named([each.pair.base for each in some], everything, (found.axis,))


def _why(found: Comparison) -> str:
    """Where the arm gains least, what was seen to hold it back; nothing where that holds back what gains most too."""
    if found.axis not in ("precision", "attention"):
        return ""
    cells = [cell for each in found.each for cell in (each.pair.base, each.pair.other)]
    waiting = {cell.key for cell in paced_by_launches(_unique(cells))}
    if found.each[0].pair.other.key not in waiting or found.each[-1].pair.other.key in waiting:
        return ""
    held = [each.pair.other for each in found.each if each.pair.other.key in waiting]
    return f": launching kernels, not arithmetic, sets the pace of {together_named(held, cells, (found.axis,))}"


def _unique(cells: Iterable[TimeCellRecord]) -> list[TimeCellRecord]:
    return list({cell.key: cell for cell in cells}.values())


def _paid(found: Comparison, cells: Sequence[TimeCellRecord]) -> Iterator[Said]:
    """After how many steps compiling was worth it."""
    paid = paybacks(found)
    if not paid:
        return
    name = namer(cells, (found.axis,))
    low, high = paid[0], paid[-1]
    if len(paid) == 1:
        taken = units.seconds(low.compile_s)
        text = f"compiling takes {taken}, which faster steps make up for after {low.steps:.0f} of them"
    else:
        ends = sorted(each.compile_s for each in paid)
        text = (
            f"compiling takes {units.seconds(ends[0])} to {units.seconds(ends[-1])}, which faster steps make up for "
            f"after {low.steps:.0f} ({name(low.cell)}) to {high.steps:.0f} of them ({name(high.cell)})"
        )
    yield Said(f"{text}.", tuple(each.cell for each in paid))
