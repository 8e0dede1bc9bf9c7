"""Live state of a run of `sysbench memory`, and the slots of its dashboard: memory by category and phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.text import Text

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.memory.figures import COLOURS
from sysbench.commands.memory.record import (
    CandidateTried,
    LargestFound,
    PeakMeasured,
    PhaseMemoryMeasured,
    VerdictReached,
)
from sysbench.commands.memory.spec import MemoryCell, search_goal
from sysbench.log.events import GpuSimulated
from sysbench.log.outcomes import stage_phrase
from sysbench.render import theme
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.canvas import Canvas
from sysbench.render.dashboard.run_state import RunState, cell_handler
from sysbench.render.dashboard.screen import DETAILS, MODEL_AXES, CellScreen, Progress, Slot, fixed


@dataclass(frozen=True)
class CellState(run_state.CellState):
    """State of one cell during the run."""

    cell: MemoryCell
    gpu: GpuSimulated | None = None
    phases: tuple[PhaseMemoryMeasured, ...] = ()
    peak: PeakMeasured | None = None
    verdict: VerdictReached | None = None
    tried: tuple[CandidateTried, ...] = ()
    found: LargestFound | None = None

    @property
    def capacity_bytes(self) -> int | None:
        if self.gpu is not None:
            return self.gpu.memory_bytes
        return self.device.memory_bytes if self.device is not None else None


@dataclass(frozen=True)
class MemoryState(RunState[CellState]):
    """State of a run."""

    last_reported: str | None = None
    """Key of the cell whose phases were reported last."""

    @property
    def reported_cell(self) -> CellState | None:
        """Cell whose phases were reported last. A simulation reports all phases only when it ends."""
        last = dict(self.cells).get(self.last_reported) if self.last_reported is not None else None
        return last if last is not None and last.phases else None


def _phase_measured(state: MemoryState, event: PhaseMemoryMeasured) -> Any:
    add = cell_handler(lambda cell, measured: replace(cell, phases=(*cell.phases, measured)))
    return replace(add(state, event), last_reported=event.cell)


_HANDLERS = run_state.handlers(
    MemoryState,
    CellState,
    {
        GpuSimulated: cell_handler(lambda cell, event: replace(cell, gpu=event)),
        PhaseMemoryMeasured: _phase_measured,
        PeakMeasured: cell_handler(lambda cell, event: replace(cell, peak=event)),
        VerdictReached: cell_handler(lambda cell, event: replace(cell, verdict=event)),
        CandidateTried: cell_handler(lambda cell, event: replace(cell, tried=(*cell.tried, event))),
        LargestFound: cell_handler(lambda cell, event: replace(cell, found=event)),
    },
)

advance = partial(run_state.advance, _HANDLERS)
"""Return the state after another event; the state is unchanged if the event affects nothing on screen."""


MAX_BAR_WIDTH = 60
LABEL_WIDTH = 11
"""Width of phase names."""

_CATEGORY_LETTERS = dict(zip(COLOURS, "pouwiagct", strict=True))
"""Letters that replace colours: the first letter of each category, or another letter if the first is taken."""


class MemoryScreen(CellScreen[MemoryState]):
    """The display of a run: a bar for each phase."""

    initial = MemoryState()
    advance = staticmethod(advance)
    times_steps = False

    @staticmethod
    def result(cell: CellState) -> str:
        return result(cell)

    @classmethod
    def labelled(cls, cell: CellState) -> tuple[str, ...]:
        """Return the axes that name a cell, without the axis of its search: the result names the value."""
        return tuple(axis for axis in MODEL_AXES if axis != cell.cell.find)

    def where(self, cell: CellState) -> str:
        return f"simulated for {cell.gpu.title}" if cell.gpu is not None else super().where(cell)

    def progress(self, cell: CellState) -> Progress:
        if not cell.tried or cell.found is not None:
            return Progress()
        last = cell.tried[-1]
        return Progress(texts=((f"{last.axis} {last.value} {'fits' if last.fits else 'does not fit'}", "bold"),))

    def details(self, canvas: Canvas) -> Iterator[Slot]:
        if lines := self._phases(canvas.width, canvas.plain):
            yield fixed(DETAILS, [*lines, Text()], gap=True)

    def _phases(self, width: int, plain: bool) -> list[Text]:
        cell = self.state.reported_cell
        if cell is None:
            return []
        highest = max(phase.allocated_peak_bytes for phase in cell.phases)
        capacity = cell.capacity_bytes if cell.gpu or (cell.device and cell.device.type == "cuda") else None
        full_scale_bytes = max(capacity or 0, highest)
        bar_width = min(MAX_BAR_WIDTH, width - LABEL_WIDTH - 12)
        lines = [Text(self.label(cell, self.state), "bold")] if len(self.state.cells) > 1 else []
        for phase in cell.phases:
            line = Text(phase.phase.ljust(LABEL_WIDTH), theme.QUIET)
            if bar_width >= 8:
                line.append_text(
                    bar(phase.by_category, phase.allocated_peak_bytes, full_scale_bytes, bar_width, plain)
                ).append("  ")
            lines.append(line.append(units.size(phase.allocated_peak_bytes), "bold"))
        present = [name for name in COLOURS if any(phase.by_category.get(name) for phase in cell.phases)]
        lines += [Text(), *_legend(present, width, plain)]
        if cell.verdict is not None:
            lines.append(Text(result(cell), theme.GOOD if cell.verdict.fits else theme.BAD))
        return lines


def _legend(names: Sequence[str], width: int, plain: bool) -> list[Text]:
    lines = [Text()]
    for name in names:
        mark = f"{_CATEGORY_LETTERS[name] if plain else '■'} {name}"
        if lines[-1].plain and lines[-1].cell_len + 2 + len(mark) > width:
            lines.append(Text())
        lines[-1].append("  " if lines[-1].plain else "").append(mark, "" if plain else COLOURS[name])
    return lines


def bar(by_category: Mapping[str, int], total_bytes: int, full_scale_bytes: int, width: int, plain: bool) -> Text:
    """Return a stacked bar of categories, dotted beyond the last; `full_scale_bytes` would fill the whole `width`."""
    text, cumulative = Text(), 0.0
    parts = [(name, by_category[name]) for name in COLOURS if by_category.get(name)] or [("unknown", total_bytes)]
    for name, size in parts:
        cumulative += size
        cells = round(cumulative / max(full_scale_bytes, 1) * width) - text.cell_len
        text.append((_CATEGORY_LETTERS[name] if plain else "█") * cells, "" if plain else COLOURS[name])
    return text.append("·" * (width - text.cell_len), theme.QUIET)


def result(cell: CellState) -> str:
    """Return the result of a cell as text: `simulated peak 61.9 GiB, fits, 13.9 GiB left`."""
    if cell.verdict is None and cell.peak is None:
        return f"{cell.outcome}: {cell.detail}" if cell.detail else str(cell.outcome)
    mark = "simulated " if cell.gpu is not None else ""
    words = [f"{mark}peak {units.size(cell.peak.allocated_peak_bytes)}"] if cell.peak is not None else []
    if cell.verdict is not None and cell.verdict.fits:
        words.append("fits")
        margin = cell.verdict.margin_bytes
        words += [f"{units.size(margin)} left"] if margin is not None else []
    elif cell.verdict is not None:
        words = [*_shortage_words(cell, cell.verdict)]
    if cell.found is not None:
        fits = "fit" if cell.found.axis == "ranks" else "fits"
        words.append(f"{search_goal(cell.found.axis)} that {fits}: {cell.found.answer if cell.found.value else 'none'}")
    return ", ".join(words)


def _shortage_words(cell: CellState, verdict: VerdictReached) -> Iterator[str]:
    searched_value = (
        f" with {axes.phrase(cell.found.axis, cell.found.beyond)}" if cell.found and cell.found.beyond else ""
    )
    yield f"{'simulated: ' if cell.gpu is not None else ''}does not fit{searched_value}"
    reached = {phase.phase: phase.allocated_peak_bytes for phase in cell.phases}.get(str(verdict.failed_phase))
    yield f"runs out{f' at {units.size(reached)}' if reached is not None else ''} {stage_phrase(verdict.failed_phase)}"
    if verdict.margin_bytes is not None:
        yield f"needs {units.size(-verdict.margin_bytes)} more"
