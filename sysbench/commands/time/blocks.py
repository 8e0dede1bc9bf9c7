"""Blocks of the dashboard, each a pure function of some part of the run's state.

Most blocks are `memoized`: they are laid out again only when their part of the state changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from sysbench import cells as axes
from sysbench import formulas, units
from sysbench.commands.time.live_state import Cells, Step, TimedCell, phase_means
from sysbench.log.events import DeviceInfo, HostInfo, Reading, TorchInfo
from sysbench.render import terminal, theme
from sysbench.render.dashboard.lines import Block, OneLine, Row, memoized, pieces_that_fit
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Table, Tone, Word

LABEL_WIDTH = 9
"""Width of the label at the start of a line."""

MAX_BAR_WIDTH = 48

MAX_PHASE_BAR_WIDTH = 32

MIN_PHASE_SHARE = 0.005
"""Smallest share of the step for which a phase is shown."""

MIN_LABEL_WIDTH = 32
"""Width below which lines have no label, so that values keep their units."""

MIN_SPARKLINE_SPAN = 0.05
"""Smallest span of a sparkline as a share of its lowest value, so that noise does not look like an event."""

PHASE_IMPORTANCE = {"forward": 1, "backward": 1, "optimizer": 2, "zero_grad": 4, "loss": 3}


def line(text: Text) -> Block:
    """Return a line that is never wrapped."""
    text.end = ""
    return Block(OneLine(text))


@memoized
def title(now: TimedCell | None, position: int, cells: int, left: str, width: int, encoding: str) -> Block:
    """Return the title: the current cell, its position in the run, and the remaining time."""
    right = Text(theme.terminal_line(f"cell {position} of {cells}" if cells > 1 else "", encoding), "bold", end="")
    if left:
        right.append(theme.terminal_line(f"{' · ' if right.plain else ''}{left}", encoding), theme.QUIET)
    kind = Text("time  ", theme.ACCENT, end="")
    pieces = []
    if now:
        named = axes.subject([now.cell.model_dump()])
        pieces += [
            (theme.terminal_line(piece, encoding), theme.TITLE if number < 4 else "")
            for number, piece in enumerate(named)
        ]
    room = width - right.cell_len
    if room < 24:
        right, room = Text(), width
    subject = pieces_that_fit(pieces, room - kind.cell_len - 2, theme.terminal_line(" · ", encoding))
    return Block(Row(((kind, kind.cell_len), (subject, room - kind.cell_len), (right, right.cell_len))))


@memoized
def hardware(
    device: DeviceInfo | None,
    torch: TorchInfo | None,
    host: HostInfo | None,
    now: TimedCell | None,
    width: int,
    encoding: str,
) -> Block:
    """Return a line with the device, the size of the model, and the version of torch."""
    names = [device.name if device else host.cpu if host else ""]
    if now and now.parameters:
        shape, cell = now.cell.shape, now.cell
        names.append(f"{units.count(now.parameters)} parameters")
        if shape is not None:
            names.append(f"{units.flops(formulas.forward_flops(shape, cell.ctx, cell.batch))} forward")
    if torch:
        names.append(f"torch {torch.torch}")
    if device and device.type == "cpu" and torch:
        names.append(axes.phrase("threads", (now and now.cell.threads) or torch.threads))
    pieces = [(theme.terminal_line(name, encoding), theme.QUIET) for name in names if name]
    return line(pieces_that_fit(pieces, width, theme.terminal_line(" · ", encoding)))


def progress(
    name: str, completed: int, total: int, texts: Sequence[tuple[str, str]], width: int, encoding: str
) -> Block:
    """Return the stage, its progress bar unless `total` is 0 (unknown), and as many of `texts` as fit."""
    styled_texts = [(theme.terminal_line(text, encoding), style) for text, style in texts if text]
    if width < MIN_LABEL_WIDTH and total:
        return line(pieces_that_fit(styled_texts, width, " "))
    label = Text(theme.terminal_line(name, encoding), theme.ACCENT, end="")
    room = width - label.cell_len - 1
    after = pieces_that_fit(styled_texts, room, "   ")
    bar_width = min(MAX_BAR_WIDTH, room - after.cell_len - 2)
    parts: list[tuple[RenderableType, int]] = [(label, label.cell_len + 1)]
    if total and bar_width >= 6:
        bar = ProgressBar(total=total, completed=completed, width=bar_width, complete_style="cyan")
        parts += [(bar, bar_width + 2)]
    return Block(Row((*parts, (after, after.cell_len))))


@memoized
def empty_line() -> Block:
    """Return an empty line as a placeholder for a value that is not known yet."""
    return line(Text(""))


@memoized
def steps(all_steps: tuple[Step, ...], rows: int, width: int, encoding: str) -> Block:
    """Return a table of the most recent steps by phase, followed by the mean of all measured steps."""
    shown, measured = all_steps[-rows:], [step for step in all_steps if not step.warmup]
    names = list(dict.fromkeys(name for step in shown for name, _ in step.phases))
    columns = (
        Column("step", "step"),
        *(Column(name, name, "s", importance=PHASE_IMPORTANCE.get(name, 1)) for name in names),
        Column("whole", "whole step", "s"),
    )
    body: list[tuple[Cell, ...]] = []
    for step in shown:
        phases: dict[str, float] = dict(step.phases)
        tone: Tone = "quiet" if step.warmup else "plain"
        cells = (Measure(phases[name], tone=tone) if name in phases else None for name in names)
        label = f"warm-up {step.index + 1}" if step.warmup else str(step.index + 1)
        body.append((Word(label, tone), *cells, Measure(step.total_s, tone=tone, excluded=step.warmup)))
    if measured:
        means = {name: mean for name, mean, _ in phase_means(measured)}
        mean_cells = tuple(Measure(means[name], tone="strong") if name in means else None for name in (*names, "step"))
        body.append(("mean", *mean_cells))
    found = terminal.fit(Table("steps", "", columns, tuple(body)), width, encoding)
    return Block(terminal.grid(found))


@memoized
def trend(recent: tuple[Step, ...], width: int, encoding: str) -> Block:
    """Return a sparkline of recent steps; the very first step is omitted because it would flatten the others."""
    text = _label("step", width, encoding)
    shown = (recent[1:] or recent)[-(width - text.cell_len) :]
    low, high = min(step.total_s for step in shown), max(step.total_s for step in shown)
    span = max(high - low, MIN_SPARKLINE_SPAN * low)
    for step in shown:
        level = int((step.total_s - low) / span * (len(theme.SPARKS) - 1) + 0.5) if span else 0
        text.append(theme.terminal_line(theme.SPARKS[level], encoding), theme.QUIET if step.warmup else "cyan")
    return line(text)


@memoized
def shares(all_steps: tuple[Step, ...], width: int, encoding: str) -> Block:
    """Return the share of each phase in the mean step, as a bar and as text; the smallest shares are omitted first."""
    means = [(name, mean) for name, mean, _ in phase_means(step for step in all_steps if not step.warmup)]
    whole = sum(mean for name, mean in means if name != "step")
    parts = [(name, mean / whole) for name, mean in means if name != "step" and mean / whole >= MIN_PHASE_SHARE]
    text, separator = _label("phases", width, encoding), theme.terminal_line(" · ", encoding)
    room = width - text.cell_len
    labels = [(f"{name} {units.share(part)}", name, part) for name, part in parts]
    while len(labels) > 1 and len(separator.join(label for label, _, _ in labels)) > room:
        labels.remove(min(labels, key=lambda each: each[2]))
    legend = pieces_that_fit([(label, theme.PHASE_STYLES.get(name, "")) for label, name, _ in labels], room, separator)
    longest = min(MAX_PHASE_BAR_WIDTH, room - legend.cell_len - 2)
    if longest >= 8:
        bar, cumulative_share = Text(), 0.0
        mark = theme.terminal_line("█", encoding)
        for name, part in parts:
            cumulative_share += part
            cells = round(cumulative_share * longest) - bar.cell_len
            # Without block characters, the bar consists of the phases' first letters.
            bar.append((mark if mark == "█" else name[0]) * cells, theme.PHASE_STYLES.get(name, ""))
        text.append_text(bar).append("  ")
    return line(text.append_text(legend))


@memoized
def memory(used: int, peak: int | None, total: int | None, what: str, width: int, encoding: str) -> Block:
    """Return used and total memory, as a bar and as text, and the peak so far."""
    scale = units.shared_scale("bytes", [total or used])
    of_total = f" of {scale.digits(total, 1)}" if total else ""
    texts = [f"{scale.digits(used, 1)}{of_total} {scale.symbol} {what}".rstrip()]
    texts += [f"peak {scale.digits(peak, 1)} {scale.symbol}"] if peak else []
    pieces = [(theme.terminal_line(text, encoding), "") for text in texts]
    label = _label("memory", width, encoding)
    room = width - label.cell_len
    after = pieces_that_fit(pieces, room, theme.terminal_line(" · ", encoding))
    bar = min(24, room - after.cell_len - 2)
    parts: list[tuple[RenderableType, int]] = [(label, label.cell_len)]
    if total and bar >= 6:
        style = theme.BAD if used > 0.95 * total else "cyan"
        parts.append((ProgressBar(total=total, completed=used, width=bar, complete_style=style), bar + 2))
    return Block(Row((*parts, (after, after.cell_len))))


@memoized
def clocks(reading: Reading, width: int, encoding: str) -> Block | None:
    """Return sensor readings, taken outside the worker; None if there are none to show."""
    pieces = []
    if reading.device_utilisation is not None:
        pieces.append((f"{units.share(reading.device_utilisation)} busy", ""))
    if reading.sm_clock_hz is not None:
        pieces.append((units.frequency(reading.sm_clock_hz), ""))
    if reading.power_w is not None:
        pieces.append((f"{reading.power_w:.0f} W", ""))
    if reading.temperature_c is not None:
        pieces.append((f"{reading.temperature_c:.0f} °C", ""))
    if reading.throttle_reasons:
        pieces.append((f"throttled: {', '.join(reading.throttle_reasons)}", theme.WARNING))
    if reading.host_cpu_share is not None and reading.host_cpu_share >= 0.05:
        pieces.append((f"other processes use {units.share(reading.host_cpu_share)} of the CPU", theme.WARNING))
    if not pieces:
        return None
    fitted = [(theme.terminal_line(text, encoding), style) for text, style in pieces]
    text = _label("device" if reading.device_utilisation is not None else "host", width, encoding)
    return line(text.append_text(pieces_that_fit(fitted, width - text.cell_len, theme.terminal_line(" · ", encoding))))


@memoized
def notice(text: str, remedy: str, width: int, encoding: str) -> Block:
    """Return a warning and its remedy."""
    lines = [
        Text(theme.terminal_line(text, encoding), theme.WARNING),
        Text(theme.terminal_line(f"→ {remedy}", encoding), theme.ACCENT),
    ]
    return Block(Group(*lines))


def _label(name: str, width: int, encoding: str) -> Text:
    """Return the label of a line, padded to `LABEL_WIDTH` characters; empty on a narrow terminal."""
    return Text(
        theme.terminal_line(name.ljust(LABEL_WIDTH), encoding) if width >= MIN_LABEL_WIDTH else "", theme.QUIET, end=""
    )


# --- all cells of a run: finished ones with their times, the running one, and waiting ones

_WAITING, _RUNNING = Word("…", "quiet"), Word("▶", "strong")


@dataclass(frozen=True)
class Layout:
    """Positions of the cells on the board: values of one axis in columns, combinations of the other axes in rows."""

    column_axis: str
    row_axes: tuple[str, ...]
    column_values: tuple[Any, ...]
    row_values: tuple[tuple[Any, ...], ...]
    positions: dict[str, tuple[int, int]]
    """Row and column of each cell, by cell key."""


@memoized
def layout(planned: Cells) -> Layout | None:
    """Arrange the cells, with contexts (or else the last axis that varies) in columns; None if no axis varies."""
    specs = {key: each.cell.model_dump() for key, each in planned.items()}
    varying = axes.varying(list(specs.values()))
    if not varying:
        return None
    column_axis = "ctx" if "ctx" in varying else varying[-1]
    row_axes = tuple(axis for axis in varying if axis != column_axis)
    column_values = list(dict.fromkeys(spec[column_axis] for spec in specs.values()))
    row_values = list(dict.fromkeys(tuple(spec[axis] for axis in row_axes) for spec in specs.values()))
    columns, lines = ({value: number for number, value in enumerate(values)} for values in (column_values, row_values))
    positions = {
        key: (lines[tuple(spec[axis] for axis in row_axes)], columns[spec[column_axis]]) for key, spec in specs.items()
    }
    return Layout(column_axis, row_axes, tuple(column_values), tuple(row_values), positions)


@memoized
def board(planned: Cells, ended: Cells, running: str, rows: int, width: int, encoding: str) -> Block:
    """Return a grid of mean step times, one entry per cell, in at most `rows` lines below the headings.

    If the grid is too large, only the part around the running cell is shown; other cells are counted by outcome.
    """
    found = layout(planned)
    if found is None:
        return Block(Text(""))
    cells: dict[tuple[int, int], Cell] = {
        found.positions[key]: Measure(*each.step) if each.step and each.outcome == "ok" else _outcome(each)
        for key, each in ended.items()
        if key in found.positions
    }
    if running in found.positions:
        cells[found.positions[running]] = _RUNNING
    row, column = found.positions.get(running, found.positions[list(ended)[-1]] if ended else (0, 0))
    shown = (
        range(len(found.row_values))
        if len(found.row_values) <= rows
        else _window(len(found.row_values), max(1, rows - 1), row)
    )
    count = min(len(found.column_values), max(1, width // 6))
    while True:
        columns = _window(len(found.column_values), count, column)
        fit = terminal.fit(_table(found, cells, shown, columns), width, encoding)
        if not fit.stacked or count == 1:
            break
        count -= 1
    if fit.stacked:
        return line(
            Text(theme.terminal_line(_count_by_outcome(found.positions.values(), cells), encoding), theme.QUIET)
        )
    parts: list[RenderableType] = [terminal.grid(fit)]
    outside = [place for place in found.positions.values() if place[0] not in shown or place[1] not in columns]
    if outside and len(shown) < rows:
        summary = f"and {len(outside)} more: {_count_by_outcome(outside, cells)}"
        parts.append(OneLine(Text(theme.terminal_line(summary, encoding), theme.QUIET, end="")))
    return Block(Group(*parts))


@memoized
def finished(planned: Cells, ended: Cells, rows: int, width: int, encoding: str) -> Block | None:
    """Return a table of the most recently finished cells by phase; None if it does not fit."""
    found = layout(planned)
    axis_names = (*found.row_axes, found.column_axis) if found else ("size", "ctx")
    recent = list(ended.values())[-rows:]
    phases = list(dict.fromkeys(name for each in recent for name, _, _ in each.phases if name != "step"))
    columns = (
        *axes.columns(axis_names),
        *(Column(name, name, "s", importance=PHASE_IMPORTANCE.get(name, 1)) for name in phases),
        Column("step", "whole step", "s"),
        Column("", "achieved", "flops_per_s", importance=3),
    )
    body: list[tuple[Cell, ...]] = []
    for each in recent:
        numbers: list[Cell] = [*([EMPTY_CELL] * len(phases)), _outcome(each), EMPTY_CELL]
        if each.step is not None:
            by_name = {name: Measure(mean, deviation) for name, mean, deviation in each.phases}
            achieved = Measure(each.step_flops / each.step[0]) if each.cell.own is None else EMPTY_CELL
            numbers = [*(by_name.get(name) for name in phases), by_name["step"], achieved]
        body.append((*axes.values(each.cell.model_dump(), axis_names), *numbers))
    fit = terminal.fit(Table("finished", "", columns, tuple(body), len(axis_names)), width, encoding)
    return None if fit.stacked else Block(terminal.grid(fit))


def _outcome(ended: TimedCell) -> Word:
    return Word(str(ended.outcome), "quiet" if ended.outcome == "skipped" else "bad")


def _table(layout: Layout, cells: Mapping[tuple[int, int], Cell], rows: Sequence[int], shown: Sequence[int]) -> Table:
    planned = set(layout.positions.values())
    columns = (
        *axes.columns(layout.row_axes),
        *(
            Column(str(head), str(layout.column_values[head]), "s", f"step by {axes.TITLES[layout.column_axis]}")
            for head in shown
        ),
    )
    body = tuple(
        (
            *layout.row_values[row],
            *(cells.get((row, head), _WAITING if (row, head) in planned else EMPTY_CELL) for head in shown),
        )
        for row in rows
    )
    return Table("board", "", columns, body, len(layout.row_axes))


def _window(count: int, size: int, around: int) -> range:
    """Return `size` consecutive numbers below `count`, with `around` near the middle."""
    first = min(max(0, around - size // 2), max(0, count - size))
    return range(first, min(count, first + size))


def _count_by_outcome(places: Collection[tuple[int, int]], cells: Mapping[tuple[int, int], Cell]) -> str:
    """Count cells by outcome: `3 ok, 1 oom, 4 to go`."""
    entries = [cells[place] for place in places if place in cells and cells[place] is not _RUNNING]
    words = Counter(cell.text for cell in entries if isinstance(cell, Word))
    ok, waiting = len(entries) - words.total(), len(places) - len(entries)
    counted = [(ok, "ok"), *((count, word) for word, count in words.items()), (waiting, "to go")]
    return ", ".join(f"{count} {word}" for count, word in counted if count)
