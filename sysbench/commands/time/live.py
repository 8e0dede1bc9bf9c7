"""Progress of a timing run: the dashboard as one renderable, or plain lines if there is no terminal.

The dashboard arranges the blocks that fit. Blocks of variable height are below those of fixed height, so that nothing
moves as steps arrive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time import blocks
from sysbench.commands.time.live_state import (
    LiveState,
    Step,
    TimedCell,
    advance,
    cell_remaining_s,
    expected_steps,
    run_remaining_s,
)
from sysbench.log.events import Event, WorkerReady
from sysbench.log.predictions import MARK
from sysbench.render import theme
from sysbench.render.dashboard.cell_lines import CellLines, label
from sysbench.render.dashboard.cell_screen import ALWAYS_LABELLED
from sysbench.render.dashboard.lines import Block, Lines, remaining_text, round_remaining, side_by_side
from sysbench.render.dashboard.live import DashboardView, share_while_timed
from sysbench.render.dashboard.run_state import mean_and_deviation

TWO_COLUMN_WIDTH = 128
"""Smallest width for two columns: the running cell, and all cells."""

LEFT_WIDTH = 74

GAP = 4

MIN_MARGIN_WIDTH = 40
"""Smallest width for a left margin."""

STEPS = 10
"""Largest number of steps listed, regardless of the height of the terminal."""

FEW_STEPS = 3
"""Number of steps to list before the board gets more lines."""

SLOW_RUN_S = 30.0
"""Shortest run on the CPU that triggers a warning."""

SLOW_STEP_S = 10.0
"""A first step this long shows that the run is slow, even though later steps will be faster."""

_FIXED_BLOCKS = ("stage", "title", "memory", "trend", "notice", "hardware", "clocks", "shares")
"""Blocks of fixed height, the most important first; each is a method of `_Layout`."""

_HEADER_LINES = {"board": 3, "finished": 2, "steps": 3}
"""Lines that blocks of variable height need besides their rows: headings, and the mean below the steps."""

_BLOCKS_BY_IMPORTANCE = (*_FIXED_BLOCKS[:-2], "steps", "board", *_FIXED_BLOCKS[-2:], "finished")
"""Blocks by importance; a terminal with few lines shows only the first of them."""

_BLOCK_GROUPS = (
    ("title", "hardware"),
    ("notice",),
    ("stage", "trend", "shares", "memory", "clocks"),
    ("board",),
    ("finished",),
    ("steps",),
)
"""Groups of blocks from top to bottom, separated by empty lines if there is room."""


def slow_without_gpu(state: LiveState, now_s: float) -> tuple[str, str] | None:
    """Return a warning about a long run on a machine without a GPU, and its remedy; None if no warning is needed.

    The duration is estimated after two steps, or after one very slow step. The warning disappears after the first cell,
    because the user has seen it by then.
    """
    now = state.current_cell
    without_gpu = bool(state.devices) and all(device.type == "cpu" for device in state.devices)
    if not without_gpu or state.host is None or now is None or not now.steps or state.ended:
        return None
    if len(now.steps) == 1 and now.steps[0].total_s < SLOW_STEP_S:
        return None
    left_s = run_remaining_s(state)
    estimated_s = now_s - state.started_s + (left_s or 0.0)
    if left_s is None or estimated_s < SLOW_RUN_S:
        return None
    cores = state.host.physical_cores or state.host.logical_cores
    quicker_options = "--size tiny" if now.cell.size != "tiny" else "fewer --steps, or a shorter --ctx,"
    return (
        f"No GPU here: timing on the CPU ({cores} core{'' if cores == 1 else 's'}). "
        f"The first step took {units.seconds(now.steps[0].total_s)}, "
        f"so this needs about {units.duration(round_remaining(estimated_s))}.",
        f"{quicker_options} for a quick look, or --simulate a100-80gb to predict times on a GPU you do not have",
    )


@dataclass(frozen=True)
class Screen:
    """The dashboard at one moment, laid out when it is printed; it never exceeds the size of the terminal."""

    state: LiveState
    now_s: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield each line, followed by a line end."""
        for line in self.lines(console, options):
            yield from line
            yield Segment.line()

    def lines(self, console: Console, options: ConsoleOptions) -> Lines:
        """Return the lines of the screen, without line ends; blocks that do not fit are left out."""
        margin = 1 if options.max_width >= MIN_MARGIN_WIDTH else 0
        width = max(1, options.max_width - margin - 1)
        height = max(1, options.height or options.size.height)
        layout = _Layout(self.state, self.now_s, console, options)
        lines = layout.wide(width, height) if width >= TWO_COLUMN_WIDTH else layout.narrow(width, height)
        return [[Segment(" " * margin), *line] for line in lines]


@dataclass(frozen=True)
class _Layout:
    state: LiveState
    now_s: float
    console: Console
    options: ConsoleOptions

    @property
    def encoding(self) -> str:
        return self.options.encoding

    def narrow(self, width: int, height: int) -> Lines:
        """Return a single column with all blocks that fit."""
        parts = {name: self.lines(name, width) for name in _FIXED_BLOCKS}
        layout, steps = blocks.layout(self.state.planned), 0
        if self.state.current_cell is not None and self.state.current_cell.steps:
            steps = min(STEPS, self.state.current_cell.step_count)
        wanted = {"board": len(layout.row_values) if layout else 0, "finished": len(self.state.ended), "steps": steps}
        heights = {name: len(lines) for name, lines in parts.items()}
        heights |= {name: _HEADER_LINES[name] + 1 if wanted[name] else 0 for name in ("board", "steps")}
        chosen = _choose_blocks(heights, height)
        gaps = max(0, sum(any(name in chosen for name in group) for group in _BLOCK_GROUPS) - 1)
        spare = height - gaps - sum(heights[name] for name in chosen)
        rows = _distribute_rows(wanted, chosen, spare)
        parts |= {name: self.lines(name, width, count) for name, count in rows.items()}
        return _stack_blocks(parts, {*chosen, *rows}, height)

    def wide(self, width: int, height: int) -> Lines:
        """Return two columns: the running cell, and the board with the most recently finished cells."""
        heading = [*self.lines("title", width), *self.lines("hardware", width), []][: max(0, height - 2)]
        room, right_width = height - len(heading), width - LEFT_WIDTH - GAP
        running = {name: self.lines(name, LEFT_WIDTH) for name in _FIXED_BLOCKS if name not in _BLOCK_GROUPS[0]}
        running["steps"] = self.lines("steps", LEFT_WIDTH, rows=STEPS)
        overview = {"board": self.lines("board", right_width, rows=max(1, room // 2 - _HEADER_LINES["board"]))}
        spare = room - len(overview["board"]) - 1 - _HEADER_LINES["finished"]
        overview["finished"] = self.lines("finished", right_width, rows=spare) if spare > 0 else []
        columns = []
        for parts in (running, overview):
            heights = {name: len(lines) for name, lines in parts.items()}
            columns.append(_stack_blocks(parts, set(_choose_blocks(heights, room)), room))
        return [*heading, *side_by_side(columns[0], columns[1], LEFT_WIDTH, GAP)][:height]

    def lines(self, name: str, width: int, rows: int = 1) -> Lines:
        """Return the lines of the named block, with at most `rows` rows in a table; empty if nothing is known."""
        block: Block | None = getattr(self, name)(width, rows)
        return block.lines(self.console, self.options, width) if block else []

    def title(self, width: int, rows: int) -> Block:
        state = self.state
        left_s = run_remaining_s(state) if len(state.planned) > 1 else None
        remaining = remaining_text(round_remaining(left_s)) if left_s else ""
        index = list(state.planned).index(state.current_key) if state.current_key else len(state.ended)
        count = len(state.planned)
        return blocks.title(state.current_cell, min(index + 1, count), count, remaining, width, self.encoding)

    def hardware(self, width: int, rows: int) -> Block:
        state = self.state
        return blocks.hardware(state.device, state.torch, state.host, state.current_cell, width, self.encoding)

    def notice(self, width: int, rows: int) -> Block | None:
        warning = slow_without_gpu(self.state, self.now_s)
        return blocks.notice(*warning, width, self.encoding) if warning else None

    def stage(self, width: int, rows: int) -> Block:
        state, now = self.state, self.state.current_cell
        if now is None or (not state.worker_ready and len(state.ended) < len(state.planned)):
            name = "preparing" if state.worker_ready else "starting the worker"
            return self._waiting(name, state.worker_since_s, width)
        if now.outcome is not None:
            count = len(now.measured)
            texts = [(_step_time_text(now) if count else now.detail or "", "bold")]
            name = "done" if now.outcome == "ok" else str(now.outcome)
            return blocks.progress(name, count, count, texts, width, self.encoding)
        if now.stage in (None, "building", "compiling"):
            return self._waiting(now.stage or "building", now.stage_since_s, width)
        warming_up, left_s = now.stage == "warming-up", cell_remaining_s(now)
        completed = len(now.steps) if warming_up else len(now.measured)
        total = now.cell.warmup if warming_up else expected_steps(now)
        texts = [
            (f"{completed}/{total}", ""),
            (_step_time_text(now), "bold"),
            (remaining_text(left_s) if left_s is not None else "", theme.QUIET),
            (f"until {units.share(now.cell.until)}" if now.cell.until and not warming_up else "", theme.QUIET),
        ]
        return blocks.progress(str(now.stage).replace("-", " "), completed, total, texts, width, self.encoding)

    def _waiting(self, name: str, since_s: float, width: int) -> Block:
        waited = units.duration(max(0.0, self.now_s - since_s))
        return blocks.progress(name, 0, 0, ((waited, ""),), width, self.encoding)

    @property
    def all_steps(self) -> tuple[Step, ...]:
        return self.state.current_cell.steps if self.state.current_cell else ()

    def trend(self, width: int, rows: int) -> Block:
        return blocks.trend(self.all_steps, width, self.encoding) if self.all_steps else blocks.empty_line()

    def shares(self, width: int, rows: int) -> Block:
        measured = any(not step.warmup for step in self.all_steps)
        return blocks.shares(self.all_steps, width, self.encoding) if measured else blocks.empty_line()

    def memory(self, width: int, rows: int) -> Block | None:
        state, reading = self.state, self.state.reading
        if reading is None or state.host is None or state.device is None:
            return None
        peak = state.current_cell.peak_bytes if state.current_cell else None
        if state.device.type == "cuda" and reading.device_used_bytes is not None:
            used, total, suffix = reading.device_used_bytes, state.device.memory_bytes, ""
        elif reading.host_rss_bytes is not None:
            used, total, suffix = reading.host_rss_bytes, state.host.memory_bytes, "used by the worker"
        else:
            return None
        return blocks.memory(used, peak, total, suffix, width, self.encoding)

    def clocks(self, width: int, rows: int) -> Block | None:
        return blocks.clocks(self.state.reading, width, self.encoding) if self.state.reading else None

    def board(self, width: int, rows: int) -> Block | None:
        state = self.state
        if blocks.layout(state.planned) is None:
            return None
        return blocks.board(state.planned, state.ended, state.running, rows, width, self.encoding)

    def finished(self, width: int, rows: int) -> Block | None:
        ended = self.state.ended
        return blocks.finished(self.state.planned, ended, rows, width, self.encoding) if ended else None

    def steps(self, width: int, rows: int) -> Block | None:
        every = self.all_steps
        return blocks.steps(every, min(STEPS, rows), width, self.encoding) if every else None


def _step_time_text(now: TimedCell) -> str:
    """Return the mean step time so far with its deviation, or the latest step if fewer than two are measured."""
    if len(now.measured) > 1:
        return units.seconds_with_deviation(*mean_and_deviation([step.total_s for step in now.measured]))
    return units.seconds(now.steps[-1].total_s) if now.steps else ""


def _choose_blocks(heights: dict[str, int], height: int) -> list[str]:
    """Return the names of the blocks that fit, the most important first."""
    chosen: list[str] = []
    for name in _BLOCKS_BY_IMPORTANCE:
        if 0 < heights.get(name, 0) <= height - sum(heights[other] for other in chosen):
            chosen.append(name)
    return chosen


def _distribute_rows(wanted: dict[str, int], chosen: Sequence[str], spare: int) -> dict[str, int]:
    """Distribute spare lines among the blocks of variable height, and return the number of rows of each block.

    Spare lines go first to a few steps, then to the board, to more steps, and to finished cells if enough lines remain.
    """
    rows = {name: 1 for name in ("board", "steps") if name in chosen}
    for name, limit in (("steps", FEW_STEPS), ("board", wanted["board"]), ("steps", wanted["steps"])):
        if name in rows:
            more = max(0, min(wanted[name], limit, rows[name] + spare) - rows[name])
            rows[name] += more
            spare -= more
    left = spare - 1 - _HEADER_LINES["finished"]
    return rows | ({"finished": min(wanted["finished"], left)} if wanted["finished"] and left >= FEW_STEPS else {})


def _stack_blocks(parts: dict[str, Lines], chosen: Collection[str], height: int) -> Lines:
    """Return the chosen blocks from top to bottom; empty lines separate groups if there is room."""
    groups = [[line for name in group if name in chosen for line in parts[name]] for group in _BLOCK_GROUPS]
    filled = [group for group in groups if group]
    spare = height - sum(len(group) for group in filled)
    stacked: Lines = []
    for number, group in enumerate(filled):
        if 0 < number <= spare:
            stacked.append([])
        stacked += group
    return stacked[:height]


class TimeLines(CellLines):
    """Progress lines: the device, each finished cell, and a warning if the run will be slow without a GPU."""

    initial = LiveState()
    advance = staticmethod(advance)
    _warned = False

    def format_event(self, event: Event, before: LiveState) -> Iterator[str]:
        """Yield the lines for this event."""
        if isinstance(event, WorkerReady) and not before.devices:
            yield device_line(self.state)
            return
        yield from super().format_event(event, before)
        may_warn = not self._warned and (self._overall is None or self._overall.number <= 1)
        if may_warn and (slow := slow_without_gpu(self.state, event.at_s)):
            self._warned = True
            yield f"{slow[0]} → {slow[1]}"

    def label_of(self, cell: TimedCell) -> str:
        """Return the label of the cell within its run, including its simulated GPU."""
        return label(cell, self.state, (*ALWAYS_LABELLED, *(("simulate",) if cell.cell.simulate else ())))

    @staticmethod
    def result(cell: TimedCell) -> str:
        """Return the result of a cell in a few words: `step 105.6 ± 0.2 ms`."""
        if cell.outcome == "ok" and cell.predicted:
            low, high = units.seconds(cell.predicted.low_s), units.seconds(cell.predicted.high_s)
            return f"PREDICTED step {units.seconds(cell.predicted.point_s)} ({low} to {high})"
        if cell.outcome == "ok" and cell.step:
            return f"step {units.seconds_with_deviation(*cell.step)}"
        return CellLines.result(cell)


def device_line(state: LiveState) -> str:
    """Return the device (for predictions, a mark instead) and the version of torch: `NVIDIA H200 · torch 2.13.0`."""
    torch, device = state.torch, state.device
    name = device.name if device else "no device"
    if any(each.cell.simulate for each in state.planned.values()):
        name = MARK
    elif device is not None and device.type == "cpu" and torch:
        counts = dict.fromkeys(each.cell.threads or torch.threads for each in state.planned.values())
        *others, last = counts or (torch.threads,)
        name = f"{name} ({''.join(f'{count}, ' for count in others)}{axes.phrase('threads', last)})"
    return f"{name} · torch {torch.torch}" if torch else name


TIME = DashboardView(LiveState(), advance, Screen, share_while_timed, lambda state, _: run_remaining_s(state))
