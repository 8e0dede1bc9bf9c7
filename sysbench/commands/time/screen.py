"""The dashboard as one renderable: which blocks there is room for, and where they stand.

What changes in height stands below what does not, so that nothing jumps while steps come in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment

from sysbench import units
from sysbench.commands.time import blocks
from sysbench.commands.time.live_state import Current, LiveState, cell_left_s, expected_steps, run_left_s
from sysbench.render import theme
from sysbench.render.dashboard.lines import Block, Lines, beside
from sysbench.render.dashboard.run_state import mean_and_deviation

WIDE = 128
"""From this width on there are two columns: the running cell, and all cells."""

LEFT_WIDTH = 74

GAP = 4

ROOMY = 40
"""From this width on there is a margin to the left."""

STEPS = 10
"""No more of the last steps are listed, however high the terminal is."""

FEW_STEPS = 3
"""As many are listed before the board gets more room."""

SLOW_RUN_S = 30.0
"""A run on the CPU that takes longer deserves a word about it."""

SLOW_STEP_S = 10.0
"""Of a first step this long the others are long enough too."""

_FIXED = ("stage", "title", "memory", "trend", "notice", "hardware", "clocks", "shares")
"""Blocks whose height does not depend on the room there is, the most important ones first."""

_HEADS = {"board": 3, "finished": 2, "steps": 3}
"""Lines of the blocks with rows beside those: headings, and the mean below the steps."""

_RANKS = (*_FIXED[:-2], "steps", "board", *_FIXED[-2:], "finished")
"""What a low terminal shows first."""

_GROUPS = (
    ("title", "hardware"),
    ("notice",),
    ("stage", "trend", "shares", "memory", "clocks"),
    ("board",),
    ("finished",),
    ("steps",),
)
"""What stands together, from top to bottom, with an empty line between where there is room."""


def draw(state: LiveState, now_s: float) -> Screen:
    """The dashboard at one moment; pure, and laid out for the terminal only when it is printed."""
    return Screen(state, now_s)


def slow_without_gpu(state: LiveState, now_s: float) -> tuple[str, str] | None:
    """What to know about a long run on a machine without a GPU, and what to do about it; None where it is none.

    It is known from the second step on: the first one is slower than the others, and only a long one says enough. Once
    a cell is finished, it has been said.
    """
    current = state.current
    if not state.without_gpu or state.host is None or current is None or not current.steps or state.done:
        return None
    if len(current.steps) == 1 and current.steps[0].total_s < SLOW_STEP_S:
        return None
    left_s = run_left_s(state)
    whole_s = now_s - state.started_s + (left_s or 0.0)
    if left_s is None or whole_s < SLOW_RUN_S:
        return None
    cores = state.host.physical_cores or state.host.logical_cores
    quick = "--size tiny" if current.cell.size != "tiny" else "fewer --steps, or a shorter --ctx,"
    return (
        f"No GPU here: timing on the CPU ({cores} core{'' if cores == 1 else 's'}). "
        f"The first step took {units.seconds(current.steps[0].total_s)}, "
        f"so this needs about {units.duration(_coarse(whole_s))}.",
        f"{quick} for a quick look, or --plan --simulate a100-80gb for memory on a GPU you do not have",
    )


@dataclass(frozen=True)
class Screen:
    """Lays the state out for the terminal it is printed on, and is never wider or higher than that is."""

    state: LiveState
    now_s: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Every line cut to the width; the blocks that there is no room for are left out."""
        for line in self.lines(console, options):
            yield from line
            yield Segment.line()

    def lines(self, console: Console, options: ConsoleOptions) -> Lines:
        """The lines of the screen, without their ends."""
        margin = 1 if options.max_width >= ROOMY else 0
        width = max(1, options.max_width - margin - 1)
        height = max(1, options.height or options.size.height)
        layout = _Layout(self.state, self.now_s, console, options)
        lines = layout.wide(width, height) if width >= WIDE else layout.narrow(width, height)
        return [[Segment(" " * margin), *line] for line in lines]


@dataclass(frozen=True)
class _Layout:
    """Blocks of one state as lines for one terminal."""

    state: LiveState
    now_s: float
    console: Console
    options: ConsoleOptions

    @property
    def encoding(self) -> str:
        return self.options.encoding

    def narrow(self, width: int, height: int) -> Lines:
        """Everything below each other."""
        parts = {name: self.lines(name, width) for name in _FIXED}
        wanted = self._rows_wanted()
        heights = {name: len(lines) for name, lines in parts.items()}
        heights |= {name: _HEADS[name] + 1 if wanted[name] else 0 for name in ("board", "steps")}
        taken = _chosen(heights, height)
        spare = height - _gaps(taken) - sum(heights[name] for name in taken)
        rows = _shared_out(wanted, taken, spare)
        parts |= {name: self.lines(name, width, count) for name, count in rows.items()}
        return _stacked(parts, {*taken, *rows}, height)

    def wide(self, width: int, height: int) -> Lines:
        """The running cell to the left, and to the right all cells and those that finished last."""
        heading = [*self.lines("title", width), *self.lines("hardware", width), []][: max(0, height - 2)]
        room, right_width = height - len(heading), width - LEFT_WIDTH - GAP
        left = {name: self.lines(name, LEFT_WIDTH) for name in _FIXED if name not in _GROUPS[0]}
        left["steps"] = self.lines("steps", LEFT_WIDTH, rows=STEPS)
        right = {"board": self.lines("board", right_width, rows=max(1, room // 2 - _HEADS["board"]))}
        spare = room - len(right["board"]) - 1 - _HEADS["finished"]
        right["finished"] = self.lines("finished", right_width, rows=spare) if spare > 0 else []
        columns = []
        for parts in (left, right):
            heights = {name: len(lines) for name, lines in parts.items()}
            columns.append(_stacked(parts, set(_chosen(heights, room)), room))
        return [*heading, *beside(columns[0], columns[1], LEFT_WIDTH, GAP)][:height]

    def _rows_wanted(self) -> dict[str, int]:
        """The rows there are to show in each block that has rows; of steps, as many as there will be."""
        state, current = self.state, self.state.current
        places = blocks.layout(state.planned)
        steps = min(STEPS, current.cell.warmup + current.cell.steps) if current and current.steps else 0
        return {"board": len(places.rows) if places else 0, "finished": len(state.done), "steps": steps}

    def lines(self, name: str, width: int, rows: int = 1) -> Lines:
        """One block at a width, with at most `rows` rows where it has rows; no lines where there is nothing to show."""
        block = _BLOCKS[name](self, width, rows)
        return block.lines(self.console, self.options, width) if block else []

    def title(self, width: int, rows: int) -> Block:
        state = self.state
        left_s = run_left_s(state) if len(state.planned) > 1 else None
        left = _left(_coarse(left_s)) if left_s else ""
        return blocks.title(state.current, len(state.planned), len(state.done), left, width, self.encoding)

    def hardware(self, width: int, rows: int) -> Block:
        state = self.state
        return blocks.hardware(state.device, state.torch, state.host, state.current, width, self.encoding)

    def notice(self, width: int, rows: int) -> Block | None:
        said = slow_without_gpu(self.state, self.now_s)
        return blocks.notice(*said, width, self.encoding) if said else None

    def stage(self, width: int, rows: int) -> Block:
        state, current = self.state, self.state.current
        if current is None or (state.worker == "starting" and len(state.done) < len(state.planned)):
            name = "starting the worker" if state.worker == "starting" else "preparing"
            return self._waiting(name, state.worker_since_s, width)
        if current.outcome is not None:
            return self._over(current, width)
        if current.stage in ("building", "compiling"):
            return self._waiting(current.stage, current.stage_since_s, width)
        return self._measuring(current, width)

    def _waiting(self, name: str, since_s: float, width: int) -> Block:
        waited = units.duration(max(0.0, self.now_s - since_s))
        return blocks.progress(name, 0, 0, ((waited, ""),), width, self.encoding)

    def _over(self, current: Current, width: int) -> Block:
        count = len(current.measured)
        texts = [(_estimate(current) if count else current.detail or "", "bold")]
        return blocks.progress(
            "done" if current.outcome == "ok" else str(current.outcome), count, count, texts, width, self.encoding
        )

    def _measuring(self, current: Current, width: int) -> Block:
        warming_up, left_s = current.stage == "warming-up", cell_left_s(current)
        completed = len(current.steps) if warming_up else len(current.measured)
        total = current.cell.warmup if warming_up else expected_steps(current)
        texts = [
            (f"{completed}/{total}", ""),
            (_estimate(current), "bold"),
            (_left(left_s) if left_s is not None else "", theme.QUIET),
            (f"until {units.share(current.cell.until)}" if current.cell.until and not warming_up else "", theme.QUIET),
        ]
        return blocks.progress(current.stage.replace("-", " "), completed, total, texts, width, self.encoding)

    def trend(self, width: int, rows: int) -> Block:
        every = self.state.current.steps if self.state.current else ()
        return blocks.trend(every, width, self.encoding) if every else blocks.nothing()

    def shares(self, width: int, rows: int) -> Block:
        every = self.state.current.steps if self.state.current else ()
        measured = any(not step.warmup for step in every)
        return blocks.shares(every, width, self.encoding) if measured else blocks.nothing()

    def memory(self, width: int, rows: int) -> Block | None:
        state, reading = self.state, self.state.reading
        if reading is None or state.host is None or state.device is None:
            return None
        peak = state.current.peak_bytes if state.current else None
        if state.device.type == "cuda" and reading.device_used_bytes is not None:
            used, total, whose = reading.device_used_bytes, state.device.memory_bytes, ""
        elif reading.host_rss_bytes is not None:
            used, total, whose = reading.host_rss_bytes, state.host.memory_bytes, "used by the worker"
        else:
            return None
        return blocks.memory(used, peak, total, whose, width, self.encoding)

    def clocks(self, width: int, rows: int) -> Block | None:
        return blocks.clocks(self.state.reading, width, self.encoding) if self.state.reading else None

    def board(self, width: int, rows: int) -> Block | None:
        state = self.state
        if blocks.layout(state.planned) is None:
            return None
        return blocks.board(state.planned, state.done, state.running, rows, width, self.encoding)

    def finished(self, width: int, rows: int) -> Block | None:
        done = self.state.done
        return blocks.finished(self.state.planned, done, rows, width, self.encoding) if done else None

    def steps(self, width: int, rows: int) -> Block | None:
        every = self.state.current.steps if self.state.current else ()
        return blocks.steps(every, min(STEPS, rows), width, self.encoding) if every else None


_BLOCKS: dict[str, Callable[[_Layout, int, int], Block | None]] = {
    "title": _Layout.title,
    "hardware": _Layout.hardware,
    "notice": _Layout.notice,
    "stage": _Layout.stage,
    "trend": _Layout.trend,
    "shares": _Layout.shares,
    "memory": _Layout.memory,
    "clocks": _Layout.clocks,
    "board": _Layout.board,
    "finished": _Layout.finished,
    "steps": _Layout.steps,
}


def _estimate(current: Current) -> str:
    """The running mean with its deviation; before any step counts, the latest one."""
    if len(current.measured) > 1:
        return units.seconds_with_deviation(*mean_and_deviation([step.total_s for step in current.measured]))
    return units.seconds(current.steps[-1].total_s) if current.steps else ""


def _left(left_s: float) -> str:
    return f"{units.duration(left_s)} left" if left_s >= 1 else "under 1 s left"


def _coarse(value_s: float) -> float:
    """Rounded so that a forecast does not change with every step."""
    return value_s if value_s < 20 else round(value_s / 10) * 10


def _chosen(heights: dict[str, int], height: int) -> list[str]:
    """The parts that fit, in the order of their importance."""
    taken: list[str] = []
    for name in _RANKS:
        if 0 < heights.get(name, 0) <= height - sum(heights[other] for other in taken):
            taken.append(name)
    return taken


def _shared_out(wanted: dict[str, int], taken: Sequence[str], spare: int) -> dict[str, int]:
    """Rows for each of the taken blocks, which have one already: some steps, all of the board, all steps, the list."""
    rows = {name: 1 for name in ("board", "steps") if name in taken}
    for name, limit in (("steps", FEW_STEPS), ("board", wanted["board"]), ("steps", wanted["steps"])):
        if name in rows:
            more = max(0, min(wanted[name], limit, rows[name] + spare) - rows[name])
            rows[name] += more
            spare -= more
    left = spare - 1 - _HEADS["finished"]
    return rows | ({"finished": min(wanted["finished"], left)} if wanted["finished"] and left >= FEW_STEPS else {})


def _gaps(taken: Sequence[str]) -> int:
    return max(0, sum(any(name in taken for name in group) for group in _GROUPS) - 1)


def _stacked(parts: dict[str, Lines], taken: Collection[str], height: int) -> Lines:
    """The chosen parts from top to bottom, their groups apart where that does not cost a line of them."""
    groups = [[line for name in group if name in taken for line in parts[name]] for group in _GROUPS]
    filled = [group for group in groups if group]
    spare = height - sum(len(group) for group in filled)
    stacked: Lines = []
    for number, group in enumerate(filled):
        if 0 < number <= spare:
            stacked.append([])
        stacked += group
    return stacked[:height]
