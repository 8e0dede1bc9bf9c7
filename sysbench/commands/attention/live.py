"""Live state of a run of `sysbench attention`, and its dashboard: a grid per implementation that fills cell by cell.

Rows are head dimensions and columns are sequence lengths. The colour of a time shows its ratio to the best time on the
same input.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from sysbench import cells as axes
from sysbench import formulas as attention_costs
from sysbench import units
from sysbench.commands.attention.record import AttentionMemory, AttentionPredicted, AttentionTimed
from sysbench.commands.attention.spec import AttentionCell
from sysbench.log.events import CellFinished, Event
from sysbench.log.predictions import PredictedPhase
from sysbench.render import theme
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.cell_lines import CellLines
from sysbench.render.dashboard.lines import encodable_text, pieces_that_fit, remaining_text, round_remaining
from sysbench.render.dashboard.live import DashboardView, share_while_timed
from sysbench.render.dashboard.run_state import RunState, cell_handler
from sysbench.units import Unit


@dataclass(frozen=True)
class CellState(run_state.CellState):
    """State of one cell during the run."""

    cell: AttentionCell
    forward_s: tuple[float, ...] = ()
    """Times of the measured calls, in order."""
    backward_s: tuple[float, ...] = ()
    calls: int = 0
    """Number of calls so far, including warm-up calls."""
    saved_bytes: int | None = None
    predicted: tuple[PredictedPhase, ...] = ()
    took_s: float | None = None

    @property
    def forward(self) -> float | None:
        """Median forward time so far, in seconds."""
        return statistics.median(self.forward_s) if self.forward_s else None

    @property
    def backward(self) -> float | None:
        """Median backward time so far, in seconds."""
        return statistics.median(self.backward_s) if self.backward_s else None

    @property
    def expected_calls(self) -> int:
        """Number of calls of both phases, including warm-up."""
        return 2 * (self.cell.warmup + self.cell.repeats)


AttentionState = RunState[CellState]
"""State of a run."""


def folded(events: Iterable[Event]) -> AttentionState:
    """Return the state after these events."""
    return reduce(advance, events, AttentionState())


def left_s(state: AttentionState, now_s: float) -> float | None:
    """Return the remaining seconds of the run, estimated from finished cells; None if there are none yet.

    It is also None while a cell takes longer than expected, or compiles as no cell before it.

    The time of a cell is modelled as a constant part plus a part that grows with the FLOPs of its calls.
    """
    over = [cell for _, cell in state.cells if cell.outcome == "ok" and cell.took_s]
    waiting = [cell for _, cell in state.cells if cell.outcome is None]
    if not over or not waiting:
        return None if waiting else 0.0
    total = 0.0
    for cell in waiting:
        expected_s = _expected_s(cell, over)
        if cell.started_s is not None:
            is_new = all(each.cell.implementation != cell.cell.implementation for each in over)
            expected_s -= now_s - cell.started_s
            if expected_s < 0 or (cell.stage == "compiling" and is_new):
                return None
        total += expected_s
    return total


def _expected_s(cell: CellState, finished: list[CellState]) -> float:
    """Return the expected duration of a cell in seconds: the time of its calls, plus a constant part.

    The calls are assumed to take as long per FLOP as those of the most similar finished cell; the constant part is the
    median over finished cells.
    """
    similar = [each for each in finished if each.cell.implementation == cell.cell.implementation] or finished
    work = _work(cell)
    nearest = min(similar, key=lambda each: (abs(_work(each).bit_length() - work.bit_length()), -_work(each)))
    constant_s = statistics.median(max(0.0, (each.took_s or 0.0) - _calls_s(each)) for each in similar)
    return constant_s + _calls_s(nearest) * work / max(_work(nearest), 1)


def _calls_s(cell: CellState) -> float:
    """Return the time of all calls, including warm-up calls and the untimed forward call before each backward call."""
    measured = 2 * sum(cell.forward_s) + sum(cell.backward_s)
    return measured * (1 + cell.cell.warmup / cell.cell.repeats)


def _work(cell: CellState) -> int:
    return attention_costs.flops(cell.cell, "forward") * (cell.cell.repeats + cell.cell.warmup)


def _timed(cell: CellState, event: AttentionTimed) -> CellState:
    sample = event.sample
    seconds = sample.device_s if sample.device_s is not None else sample.wall_s
    counted = replace(cell, calls=cell.calls + 1)
    if event.warmup or seconds is None:
        return counted
    if event.phase == "forward":
        return replace(counted, forward_s=(*cell.forward_s, seconds))
    return replace(counted, backward_s=(*cell.backward_s, seconds))


def _cell_finished(cell: CellState, event: CellFinished) -> CellState:
    took_s = event.at_s - cell.started_s if cell.started_s is not None else None
    return replace(cell, outcome=event.outcome, detail=event.detail, took_s=took_s)


_HANDLERS = run_state.handlers(
    AttentionState,
    CellState,
    {
        AttentionTimed: cell_handler(_timed),
        AttentionMemory: cell_handler(lambda cell, event: replace(cell, saved_bytes=event.saved_bytes)),
        AttentionPredicted: cell_handler(lambda cell, event: replace(cell, predicted=tuple(event.phases))),
        CellFinished: cell_handler(_cell_finished),
    },
)

advance = partial(run_state.advance, _HANDLERS)
"""Return the state after another event; the state is unchanged if the event affects nothing on screen."""


Shown = Literal["forward", "backward", "saved"]

COLUMN_WIDTH = 9
"""Width of a column of a grid, including the space before it."""

GAP = 3
MAX_BAR_WIDTH = 40
CLOSE, FAR = 1.05, 2.0
"""Times up to `CLOSE` × the best time are coloured as good; times of at least `FAR` × the best time, as bad."""

_TITLES: dict[Shown, str] = {"forward": "forward", "backward": "backward", "saved": "kept for backward"}
_OUTCOME_TEXTS = {"oom": "oom", "skipped": "skipped", "invalid": "n/a", "crashed": "crashed", "timeout": "timeout"}
_SETTING = ("device", "threads", "precision", "batch", "heads", "simulate", "causal")
_NAMED = ("implementation", "dim", "seq")


@dataclass(frozen=True)
class AttentionScreen:
    """The dashboard at one moment; it never exceeds the size of the terminal."""

    state: AttentionState
    now_s: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the title, the device, the running cell, and as many grids as fit."""
        width = max(8, options.max_width - 2)
        height = max(1, (options.height or options.size.height) - 1)
        plain = console.color_system is None or bool(console.no_color)
        lines = [self._title(width), self._device(width), Text(), self._running(width)]
        running = self.state.current_cell.cell.implementation if self.state.current_cell is not None else None
        lines += _layout(self._sections(plain, width), running, width, height - len(lines))
        for line in lines[:height]:
            line.truncate(width, overflow="ellipsis")
            yield Text(" ").append_text(encodable_text(line, options.encoding))

    def _title(self, width: int) -> Text:
        state = self.state
        count = len(state.cells)
        now = state.current_cell
        position = min(state.done + (now is None or now.outcome is None), count)
        remaining = left_s(state, self.now_s)
        ending = f"cell {position} of {count}" if count > 1 else ""
        ending += f"{' · ' if ending else ''}{remaining_text(round_remaining(remaining))}" if remaining else ""
        shown = now or (state.cells[0][1] if state.cells else None)
        pieces = [("attention", theme.ACCENT)]
        if shown is not None:
            cell = shown.cell
            words = [f"batch {cell.batch}", axes.phrase("heads", cell.heads), *(["causal"] * cell.causal)]
            pieces += [(word, theme.TITLE) for word in (*words, cell.precision)]
        title = pieces_that_fit(pieces, max(1, width - len(ending) - 2))
        return title.append(" " * max(1, width - title.cell_len - len(ending))).append(ending, theme.QUIET)

    def _device(self, width: int) -> Text:
        state, now = self.state, self.state.current_cell
        device = state.device
        names = []
        if now is not None and now.cell.simulate is not None:
            names.append(f"simulated for {now.cell.simulate}")
        elif device is not None:
            names.append(device.name)
        if state.torch is not None:
            names.append(f"torch {state.torch.torch}")
            if device is not None and device.type == "cpu" and (now is None or not now.cell.simulated):
                names.append(axes.phrase("threads", (now and now.cell.threads) or state.torch.threads))
        if not names:
            names = ["starting the worker"]
        if state.reading is not None and state.reading.host_rss_bytes is not None:
            names.append(f"worker {units.size(state.reading.host_rss_bytes)}")
        return pieces_that_fit([(name, theme.QUIET) for name in names], width)

    def _running(self, width: int) -> Text:
        """Return the line for the running cell: its stage, a progress bar, and the results so far."""
        now = self.state.current_cell
        if now is None:
            return Text("waiting for the first cell", theme.QUIET)
        line = Text(axes.label(now.cell.model_dump(), _NAMED), "bold")
        if now.outcome is not None:
            if now.outcome == "ok":
                return line.append(f"  {_estimate(now, width - line.cell_len - 2)}", theme.QUIET)
            return line.append(f"  {result(now)}", theme.BAD)
        line.append(f"  {now.stage or 'preparing'} ", theme.ACCENT)
        count = f"{min(now.calls, now.expected_calls)}/{now.expected_calls}"
        estimate = _estimate(now, width - line.cell_len - len(count) - 3)
        if now.calls:
            room = min(MAX_BAR_WIDTH, width - line.cell_len - len(count) - cell_len(estimate) - 5)
            if room >= 6:
                filled = min(room, room * now.calls // max(now.expected_calls, 1))
                line.append("█" * filled, "cyan").append("·" * (room - filled), theme.QUIET).append(" ")
            line.append(count)
        else:
            line.append(units.duration(max(0.0, self.now_s - now.stage_since_s)), theme.QUIET)
        return line.append(f"   {estimate}" if estimate else "", "bold")

    def _sections(self, plain: bool, width: int) -> list[Section]:
        """Return a section per quantity with a grid per implementation, limited to the setting of the running cell."""
        cells = [cell for _, cell in self.state.cells]
        if cells:
            like = (self.state.current_cell or cells[0]).cell
            cells = [
                each for each in cells if all(getattr(each.cell, axis) == getattr(like, axis) for axis in _SETTING)
            ]
        by_name: dict[str, list[CellState]] = {}
        for cell in cells:
            by_name.setdefault(cell.cell.implementation, []).append(cell)
        simulated = bool(cells) and all(cell.cell.simulated for cell in cells)
        kinds: tuple[Shown, ...] = ("saved",) if simulated else ("forward", "backward")
        label = max((len(name) for name in by_name), default=0)
        lengths = _window(
            sorted({cell.cell.seq for cell in cells}), self.state.current_cell, (width - label) // COLUMN_WIDTH
        )
        sections = []
        for kind in kinds:
            best = _best(cells, kind)
            grids = {
                name: _grid(each, kind, lengths, best, self.state.current_cell, label, plain)
                for name, each in by_name.items()
            }
            heading = Text(f"{_TITLES[kind]}: rows d, columns N", theme.QUIET)
            if best:
                heading.append("   ").append("* best" if plain else "best", "" if plain else "bold green")
            if best and not plain:
                heading.append("  up to 2 ×", "yellow").append("  2 × or more", "red")
            sections.append(Section(heading, grids))
        return sections


@dataclass(frozen=True)
class Section:
    """One quantity: its heading, and the grids of all implementations."""

    heading: Text
    grids: dict[str, list[Text]]


def _window(lengths: list[int], now: CellState | None, max_lengths: int) -> list[int]:
    """Return as many consecutive sequence lengths as fit, including that of the running cell."""
    max_lengths = max(1, max_lengths)
    running = lengths.index(now.cell.seq) if now is not None and now.cell.seq in lengths else 0
    first = min(max(0, running - max_lengths + 1), max(0, len(lengths) - max_lengths))
    return lengths[first : first + max_lengths]


def _estimate(cell: CellState, width: int) -> str:
    """Return the medians so far, with short names if there is little room."""
    known = [(name, value) for name, value in (("forward", cell.forward), ("backward", cell.backward)) if value]
    whole = "  ".join(f"{name} {units.seconds(value)}" for name, value in known)
    return whole if len(whole) <= width else "  ".join(f"{name[0]}wd {units.seconds(value)}" for name, value in known)


Best = dict[tuple[int, int], float]


def _value(cell: CellState, kind: Shown) -> float | None:
    if kind == "saved":
        return cell.saved_bytes
    return cell.forward if kind == "forward" else cell.backward


def _best(cells: Iterable[CellState], kind: Shown) -> Best:
    """Return the smallest value for each d and N; empty if there is only one implementation."""
    cells = list(cells)
    if len({cell.cell.implementation for cell in cells}) < 2:
        return {}
    best: Best = {}
    for cell in cells:
        found = _value(cell, kind)
        if found is not None and cell.outcome == "ok":
            place = (cell.cell.dim, cell.cell.seq)
            best[place] = min(found, best.get(place, found))
    return best


def _grid(
    cells: Sequence[CellState],
    kind: Shown,
    lengths: Sequence[int],
    best: Best,
    now: CellState | None,
    label: int,
    plain: bool,
) -> list[Text]:
    """Return a heading with the implementation and the sequence lengths, followed by a line per head dimension."""
    places = {(cell.cell.dim, cell.cell.seq): cell for cell in cells}
    heading = Text(cells[0].cell.implementation.ljust(label), "bold")
    lines = [heading.append("".join(str(n).rjust(COLUMN_WIDTH) for n in lengths), theme.QUIET)]
    for dim in sorted({cell.cell.dim for cell in cells}):
        line = Text(str(dim).rjust(label), theme.QUIET)
        for n in lengths:
            text, style = _format_value(places.get((dim, n)), kind, best.get((dim, n)), now, plain)
            line.append(" " * (COLUMN_WIDTH - len(text))).append(text, style)
        lines.append(line)
    return lines


def _format_value(
    cell: CellState | None, kind: Shown, best: float | None, now: CellState | None, plain: bool
) -> tuple[str, str]:
    if cell is None:
        return "", ""
    found = _value(cell, kind)
    unit: Unit = "bytes" if kind == "saved" else "s"
    if cell.outcome is None:
        if cell is not now:
            return "·", theme.QUIET
        return (f"▶{_short_quantity(unit, found)}" if found is not None else "▶"), "bold cyan"
    if found is None or cell.outcome != "ok":
        return _OUTCOME_TEXTS.get(cell.outcome, cell.outcome), theme.QUIET if cell.outcome != "oom" else theme.BAD
    text = _short_quantity(unit, found)
    if best is None:
        return text, ""
    share = found / best if best else 1.0
    if share <= CLOSE:
        return (f"*{text}" if plain else text), "bold green"
    return text, "red" if share >= FAR else "yellow"


def _short_quantity(unit: Unit, value: float) -> str:
    """Return a quantity in at most seven characters: `12.3 ms`, `64.0 M`."""
    return units.short(unit, value).replace("iB", "")


def _layout(sections: Sequence[Section], running: str | None, width: int, height: int) -> list[Text]:
    """Return the lines of the sections that fit, and at least the grid of the running implementation."""
    lines: list[Text] = []
    hidden = 0
    for number, section in enumerate(sections):
        grids = list(section.grids.items())
        grid_width = max((line.cell_len for _, grid in grids for line in grid), default=1)
        grids_per_row = max(1, (width + GAP) // (grid_width + GAP))
        rows = [grids[first : first + grids_per_row] for first in range(0, len(grids), grids_per_row)]
        room = height - len(lines) - 2  # 2: an empty line and the heading
        fitting = _fitting(rows, running, room if number == 0 or _height(rows) <= room else 0)
        hidden += sum(len(row) for row in rows) - sum(len(row) for row in fitting)
        if not fitting:
            continue
        lines += [Text(), section.heading]
        has_gaps = _height(fitting) + len(fitting) - 1 <= room
        for position, row in enumerate(fitting):
            lines += [Text()] * bool(position and has_gaps)
            lines += _side_by_side([grid for _, grid in row])
    if hidden and len(lines) < height:
        lines.append(Text(f"{hidden} more in a larger terminal", theme.QUIET))
    return lines[:height]


Row = list[tuple[str, list[Text]]]
"""Grids side by side, with their names."""


def _height(rows: Sequence[Row]) -> int:
    return sum(max(len(grid) for _, grid in row) for row in rows)


def _fitting(rows: list[Row], running: str | None, room: int) -> list[Row]:
    """Return as many consecutive rows as fit, including the row with the running implementation."""
    last = next((number for number, row in enumerate(rows) if any(name == running for name, _ in row)), 0)
    first = end = last
    while end < len(rows) and _height(rows[first : end + 1]) <= room:
        end += 1
    while first > 0 and _height(rows[first - 1 : end]) <= room:
        first -= 1
    return rows[first:end]


def _side_by_side(grids: Sequence[list[Text]]) -> list[Text]:
    width = max(line.cell_len for grid in grids for line in grid)
    lines = []
    for number in range(max(map(len, grids))):
        line = Text()
        for position, grid in enumerate(grids):
            line.append(" " * (position * (width + GAP) - line.cell_len))
            line.append_text(grid[number] if number < len(grid) else Text())
        lines.append(line)
    return lines


def result(cell: CellState) -> str:
    """Return the result of a cell: `forward 12.3 ms, backward 24.1 ms, keeps 64.0 MiB`."""
    if cell.outcome != "ok":
        return f"{cell.outcome}: {cell.detail}" if cell.detail else str(cell.outcome)
    words = [
        f"{name} {units.seconds(value)}"
        for name, value in (("forward", cell.forward), ("backward", cell.backward))
        if value is not None
    ]
    words += [
        f"PREDICTED {each.name} {units.seconds(each.point_s)} "
        f"({units.seconds(each.low_s)} to {units.seconds(each.high_s)})"
        for each in cell.predicted
    ]
    mark = "simulated: " if cell.cell.simulated else ""
    if cell.saved_bytes is not None:
        words.append(f"{mark}keeps {units.size(cell.saved_bytes)} for backward")
    return ", ".join(words) or "ok"


class AttentionLines(CellLines):
    """Progress lines for use without a terminal: one for each finished cell."""

    initial = AttentionState()
    always_labelled = _NAMED
    result = staticmethod(result)
    advance = staticmethod(advance)


ATTENTION = DashboardView(AttentionState(), advance, AttentionScreen, share_while_timed, left_s)
