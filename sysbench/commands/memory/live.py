"""Live state of a run of `sysbench memory`, and the chart of its dashboard: memory by category and phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from rich.console import Console
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
from sysbench.render.dashboard.run_state import RunState, cell_handler
from sysbench.render.dashboard.screen import MODEL_AXES, CellScreen, Progress


@dataclass(frozen=True)
class CellState(run_state.CellState):
    """State of one cell during the run."""

    cell: MemoryCell
    gpu: GpuSimulated | None = None
    phases: Mapping[str, PhaseMemoryMeasured] = field(default_factory=dict)
    peak: PeakMeasured | None = None
    verdict: VerdictReached | None = None
    tried: CandidateTried | None = None
    found: LargestFound | None = None

    @property
    def capacity_bytes(self) -> int | None:
        """Memory of the GPU; None for other devices, which share the host's."""
        if self.gpu is not None:
            return self.gpu.memory_bytes
        return self.device.memory_bytes if self.device is not None and self.device.type == "cuda" else None


MemoryState = RunState[CellState]

_HANDLERS = run_state.handlers(
    MemoryState,
    CellState,
    {
        GpuSimulated: cell_handler(lambda cell, event: replace(cell, gpu=event)),
        PhaseMemoryMeasured: cell_handler(
            lambda cell, event: replace(cell, phases={**cell.phases, event.phase: event})
        ),
        PeakMeasured: cell_handler(lambda cell, event: replace(cell, peak=event)),
        VerdictReached: cell_handler(lambda cell, event: replace(cell, verdict=event)),
        CandidateTried: cell_handler(lambda cell, event: replace(cell, tried=event)),
        LargestFound: cell_handler(lambda cell, event: replace(cell, found=event)),
    },
)

advance = partial(run_state.advance, _HANDLERS)
"""Return the state after another event; the state is unchanged if the event affects nothing on screen."""


MAX_BAR_WIDTH = 60
PHASE_WIDTH = 11
"""Width of phase names."""


class MemoryScreen(CellScreen[CellState]):
    """The display of a run: a bar for each phase."""

    initial = MemoryState()
    advance = staticmethod(advance)
    times_steps = False

    @staticmethod
    def result(cell: CellState) -> str:
        """Return the result of a cell as text: `simulated peak 61.9 GiB, fits, 13.9 GiB left`."""
        verdict, found, simulated = cell.verdict, cell.found, "simulated" if cell.gpu is not None else ""
        if verdict is None and cell.peak is None:
            return CellScreen.result(cell)
        words = []
        if cell.peak is not None and (verdict is None or verdict.fits):
            words.append(f"{simulated} peak {units.size(cell.peak.allocated_peak_bytes)}".lstrip())
        if verdict is not None and verdict.fits:
            left = f", {units.size(verdict.margin_bytes)} left" if verdict.margin_bytes is not None else ""
            words.append(f"fits{left}")
        elif verdict is not None:
            searched = f" with {axes.phrase(found.axis, found.beyond)}" if found and found.beyond else ""
            reached = cell.phases.get(str(verdict.failed_phase))
            at = f" at {units.size(reached.allocated_peak_bytes)}" if reached is not None else ""
            words.append(f"{simulated}: does not fit{searched}".removeprefix(": "))
            words.append(f"runs out{at} {stage_phrase(verdict.failed_phase)}")
            words += [f"needs {units.size(-verdict.margin_bytes)} more"] if verdict.margin_bytes is not None else []
        if found is not None:
            fits = "fit" if found.axis == "ranks" else "fits"
            words.append(f"{search_goal(found.axis)} that {fits}: {found.answer if found.value else 'none'}")
        return ", ".join(words)

    @classmethod
    def labelled(cls, cell: CellState) -> tuple[str, ...]:
        """Return the axes that name a cell, without the axis of its search: the result names the value."""
        return tuple(axis for axis in MODEL_AXES if axis != cell.cell.find)

    def where(self, cell: CellState) -> str:
        return f"simulated for {cell.gpu.title}" if cell.gpu is not None else super().where(cell)

    def progress(self, cell: CellState) -> Progress:
        last = cell.tried
        if last is None or cell.found is not None:
            return Progress()
        return Progress(texts=((f"{last.axis} {last.value} {'fits' if last.fits else 'does not fit'}", "bold"),))

    def chart(self, console: Console, width: int) -> Iterator[Text]:
        # A simulation reports its phases only when it ends.
        cell = next((cell for _, cell in reversed(self.state.cells) if cell.phases), None)
        if cell is None:
            return
        highest = max(phase.allocated_peak_bytes for phase in cell.phases.values())
        full_scale_bytes = max(cell.capacity_bytes or 0, highest)
        has_colours = console.color_system is not None and not console.no_color
        bar_width = min(MAX_BAR_WIDTH, width - PHASE_WIDTH - 12) if has_colours else 0
        if len(self.state.cells) > 1:
            yield Text.assemble((self.label(cell, self.state), "bold"))
        for name, phase in cell.phases.items():
            line = Text.assemble((name.ljust(PHASE_WIDTH), theme.QUIET))
            if bar_width >= 8:
                sizes = phase.by_category or {"unknown": phase.allocated_peak_bytes}
                line.append_text(bar(sizes, full_scale_bytes, bar_width)).append("  ")
            yield line.append(units.size(phase.allocated_peak_bytes), "bold")
        if bar_width >= 8:
            present = [name for name in COLOURS if any(phase.by_category.get(name) for phase in cell.phases.values())]
            for names in theme.wrap_phrases((f"■ {name}" for name in present), width, "  "):
                line = Text(names)
                for name in present:
                    line.highlight_regex(rf"■ {name}\b", COLOURS[name])
                yield line
        if cell.verdict is not None:
            yield Text.assemble((self.result(cell), theme.GOOD if cell.verdict.fits else theme.BAD))
        yield Text()


def bar(by_category: Mapping[str, int], full_scale_bytes: int, width: int) -> Text:
    """Return a stacked bar of categories, dotted beyond the last; `full_scale_bytes` would fill the whole `width`."""
    text, cumulative = Text(), 0
    for name in COLOURS:
        cumulative += by_category.get(name, 0)
        text.append("█" * (round(cumulative / max(full_scale_bytes, 1) * width) - text.cell_len), COLOURS[name])
    return text.append("·" * (width - text.cell_len), theme.QUIET)
