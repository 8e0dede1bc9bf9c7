"""Progress of a timing run: the slots that its dashboard adds to those of all commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from sysbench import cells as axes
from sysbench import formulas, units
from sysbench.commands.time.live_state import (
    LiveState,
    Step,
    TimedCell,
    advance,
    cell_remaining_s,
    expected_steps,
    phase_means,
    run_remaining_s,
)
from sysbench.log.predictions import MARK
from sysbench.render import theme
from sysbench.render.axis_columns import axis_columns, axis_values
from sysbench.render.dashboard.board import Quantity, outcome_word
from sysbench.render.dashboard.canvas import Canvas, Piece, remaining_text, round_remaining
from sysbench.render.dashboard.run_state import mean_and_deviation
from sysbench.render.dashboard.screen import (
    BELOW,
    DETAILS,
    MODEL_AXES,
    RECENT,
    SENSORS,
    CellScreen,
    Progress,
    Slot,
    differing_axes,
    fixed,
)
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Table, Tone, Word

MAX_STEPS = 10
"""Largest number of steps listed, regardless of the height of the terminal."""

STEPS_HEADING_LINES = 3
"""Lines of the table of steps besides the steps: titles, units, and the mean."""

FEW_STEPS = 3
"""Number of steps to list before the board gets more lines."""

SLOW_RUN_S = 30.0
"""Shortest run on the CPU that triggers a warning."""

SLOW_STEP_S = 10.0
"""A first step this long shows that the run is slow, even though later steps will be faster."""

MAX_PHASE_BAR_WIDTH = 32

MIN_PHASE_SHARE = 0.005
"""Smallest share of the step for which a phase is shown."""

MIN_SPARKLINE_SPAN = 0.05
"""Smallest span of a sparkline as a share of its lowest value, so that noise does not look like an event."""

PHASE_IMPORTANCE = {"forward": 1, "backward": 1, "optimizer": 2, "zero_grad": 4, "loss": 3}


class TimeScreen(CellScreen[LiveState]):
    """The display of a timing run: steps by phase, and a board of step times."""

    initial = LiveState()
    advance = staticmethod(advance)

    @staticmethod
    def result(cell: TimedCell) -> str:
        """Return the result of a cell in a few words: `step 105.6 ± 0.2 ms`."""
        if cell.outcome == "ok" and cell.predicted:
            low, high = units.seconds(cell.predicted.low_s), units.seconds(cell.predicted.high_s)
            return f"PREDICTED step {units.seconds(cell.predicted.point_s)} ({low} to {high})"
        if cell.outcome == "ok" and cell.step:
            return f"step {units.seconds_with_deviation(*cell.step)}"
        return CellScreen.result(cell)

    @classmethod
    def labelled(cls, cell: TimedCell) -> tuple[str, ...]:
        return (*MODEL_AXES, *(["simulate"] if cell.cell.simulate else []))

    @staticmethod
    def device_line(state: LiveState) -> str:
        torch, device = state.torch, state.device
        name = device.name if device else "no device"
        if any(each.cell.simulate for each in state.planned.values()):
            name = MARK
        elif device is not None and device.type == "cpu" and torch:
            counts = dict.fromkeys(each.cell.threads or torch.threads for each in state.planned.values())
            *others, last = counts or (torch.threads,)
            name = f"{name} ({''.join(f'{count}, ' for count in others)}{axes.phrase('threads', last)})"
        return f"{name} · torch {torch.torch}" if torch else name

    def quantities(self) -> Sequence[Quantity]:
        return (Quantity("step", "s", lambda cell: Measure(*cell.step) if cell.step else None),)

    def remaining_s(self) -> float | None:
        return run_remaining_s(self.state)

    def notice(self) -> tuple[str, str] | None:
        return slow_without_gpu(self.state, self.now_s)

    def facts(self, cell: TimedCell) -> Iterable[str]:
        if cell.parameters:
            yield f"{units.count(cell.parameters)} parameters"
            if (shape := cell.cell.shape_with_formulas) is not None:
                yield f"{units.flops(formulas.forward_flops(shape, cell.cell.ctx, cell.cell.batch))} forward"

    def progress(self, cell: TimedCell) -> Progress:
        if cell.stage in (None, "building", "compiling"):
            return Progress()
        warming_up, left_s = cell.stage == "warming-up", cell_remaining_s(cell)
        completed = len(cell.steps) if warming_up else len(cell.measured)
        total = cell.cell.warmup if warming_up else expected_steps(cell)
        texts = (
            (f"{completed}/{total}", ""),
            (_step_time(cell), "bold"),
            (remaining_text(left_s) if left_s is not None else "", theme.QUIET),
            (f"until {units.share(cell.cell.until)}" if cell.cell.until and not warming_up else "", theme.QUIET),
        )
        return Progress(completed, total, texts)

    def details(self, canvas: Canvas) -> Iterator[Slot]:
        steps = self.state.current_cell.steps if self.state.current_cell else ()
        yield fixed(DETAILS, [trend(canvas, steps) if steps else Text()])
        measured = [step for step in steps if not step.warmup]
        yield fixed(SENSORS, [phase_shares(canvas, measured) if measured else Text()])

    def recent(self, canvas: Canvas) -> Slot | None:
        ended = list(self.state.ended.values())
        if not ended:
            return None
        axis_names = differing_axes(self.state.planned) or ("size", "ctx")
        return Slot(
            RECENT,
            lambda height: canvas.table(_finished(ended[-(height - 2) :], axis_names)) or [],
            2 + min(FEW_STEPS, len(ended)),
            2 + len(ended),
            gap=True,
        )

    def below(self, canvas: Canvas) -> Iterator[Slot]:
        steps = self.state.current_cell.steps if self.state.current_cell else ()
        if steps:
            yield Slot(
                BELOW,
                lambda height: canvas.table(_steps(steps, min(MAX_STEPS, height - STEPS_HEADING_LINES))) or [],
                STEPS_HEADING_LINES + FEW_STEPS,
                STEPS_HEADING_LINES + MAX_STEPS,
                gap=True,
            )


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


def trend(canvas: Canvas, steps: Sequence[Step]) -> Text:
    """Return a sparkline of recent steps; the very first step is omitted because it would flatten the others."""
    line = canvas.label("step")
    shown = (steps[1:] or steps)[-(canvas.width - line.cell_len) :]
    low, high = min(step.total_s for step in shown), max(step.total_s for step in shown)
    span = max(high - low, MIN_SPARKLINE_SPAN * low)
    for step in shown:
        level = int((step.total_s - low) / span * (len(theme.SPARKS) - 1) + 0.5) if span else 0
        mark = theme.terminal_line(theme.SPARKS[level], canvas.encoding)
        line.append(mark, theme.QUIET if step.warmup else "cyan")
    return line


def phase_shares(canvas: Canvas, measured: Sequence[Step]) -> Text:
    """Return the share of each phase in the mean step, as a bar and as text; the smallest shares are omitted first."""
    means = [(name, mean) for name, mean, _ in phase_means(measured) if name != "step"]
    whole = sum(mean for _, mean in means)
    parts = [(name, mean / whole) for name, mean in means if mean / whole >= MIN_PHASE_SHARE]
    line = canvas.label("phases")
    room = canvas.width - line.cell_len
    labels = [(f"{name} {units.share(part)}", name, part) for name, part in parts]
    while len(labels) > 1 and len(" · ".join(label for label, _, _ in labels)) > room:
        labels.remove(min(labels, key=lambda each: each[2]))
    pieces: list[Piece] = [(label, theme.PHASE_STYLES.get(name, "")) for label, name, _ in labels]
    legend = canvas.join(pieces, room)
    longest = min(MAX_PHASE_BAR_WIDTH, room - legend.cell_len - 2)
    if longest >= 8:
        bar, cumulative_share = Text(), 0.0
        mark = theme.terminal_line("█", canvas.encoding)
        for name, part in parts:
            cumulative_share += part
            cells = round(cumulative_share * longest) - bar.cell_len
            # Without block characters, the bar consists of the phases' first letters.
            bar.append((mark if mark == "█" else name[0]) * cells, theme.PHASE_STYLES.get(name, ""))
        line.append_text(bar).append("  ")
    return line.append_text(legend)


def _step_time(cell: TimedCell) -> str:
    if len(cell.measured) > 1:
        return units.seconds_with_deviation(*mean_and_deviation([step.total_s for step in cell.measured]))
    return units.seconds(cell.steps[-1].total_s) if cell.steps else ""


def _phase_columns(names: Iterable[str]) -> list[Column]:
    return [Column(name, name, "s", importance=PHASE_IMPORTANCE.get(name, 1)) for name in names]


def _steps(steps: Sequence[Step], rows: int) -> Table:
    shown, measured = steps[-rows:], [step for step in steps if not step.warmup]
    names = list(dict.fromkeys(name for step in shown for name, _ in step.phases))
    columns = (Column("step", "step"), *_phase_columns(names), Column("whole", "whole step", "s"))
    body: list[tuple[Cell, ...]] = []
    for step in shown:
        phases = dict(step.phases)
        tone: Tone = "quiet" if step.warmup else "plain"
        cells = (Measure(phases[name], tone=tone) if name in phases else None for name in names)
        label = f"warm-up {step.index + 1}" if step.warmup else str(step.index + 1)
        body.append((Word(label, tone), *cells, Measure(step.total_s, tone=tone, excluded=step.warmup)))
    if measured:
        means = {name: mean for name, mean, _ in phase_means(measured)}
        body.append(
            ("mean", *(Measure(means[name], tone="strong") if name in means else None for name in (*names, "step")))
        )
    return Table("steps", "", columns, tuple(body))


def _finished(cells: Sequence[TimedCell], axis_names: Sequence[str]) -> Table:
    phases = list(dict.fromkeys(name for each in cells for name, _, _ in each.phases if name != "step"))
    columns = (
        *axis_columns(axis_names),
        *_phase_columns(phases),
        Column("step", "whole step", "s"),
        Column("", "achieved", "flops_per_s", importance=3),
    )
    body: list[tuple[Cell, ...]] = []
    for each in cells:
        numbers: list[Cell] = [*([EMPTY_CELL] * len(phases)), outcome_word(each), EMPTY_CELL]
        if each.step is not None:
            by_name = {name: Measure(mean, deviation) for name, mean, deviation in each.phases}
            achieved = Measure(each.step_flops / each.step[0]) if each.cell.shape_with_formulas else EMPTY_CELL
            numbers = [*(by_name.get(name) for name in phases), by_name["step"], achieved]
        body.append((*axis_values(each.cell, axis_names), *numbers))
    return Table("finished", "", columns, tuple(body), len(axis_names))
