"""What the dashboard consists of: each block is a pure function of the part of the state that it shows.

All of them are `remembered`: a block whose part of the state stays as it was is not laid out again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from sysbench import cells as axes
from sysbench import formulas, units
from sysbench.commands.time.live_state import Current, Done, Planned, Step, phase_means
from sysbench.log.events import DeviceInfo, HostInfo, Reading, TorchInfo
from sysbench.render import terminal, theme
from sysbench.render.dashboard.lines import Block, OneLine, Row, pieces_that_fit, remembered
from sysbench.render.table import NOTHING, Cell, Column, Measure, Table, Tone, Word

LABEL = 9
"""Width of the names of the lines that begin with one."""

LONGEST_BAR = 48

LONGEST_PHASES = 32

LEAST_SHARE = 0.005
"""A phase that takes less of the step than this is not worth a word."""

NARROW = 32
"""Below this width lines have no name in front: their values would lose their units for it."""

_WARMING_UP: Tone = "quiet"
_COUNTED: Tone = "plain"

NOISE = 0.05
"""A sparkline spans at least this share of its smallest value, so that noise does not look like an event."""

PHASE_IMPORTANCE = {"forward": 1, "backward": 1, "optimizer": 2, "zero_grad": 4, "loss": 3}


def line(text: Text) -> Block:
    """One line that is never broken."""
    text.end = ""
    return Block(OneLine(text))


@remembered
def title(current: Current | None, cells: int, done: int, left: str, width: int, encoding: str) -> Block:
    """What runs, and how far the whole run is."""
    position = min(current.index + 1 if current else done + 1, cells)
    right = Text(theme.fitted(f"cell {position} of {cells}" if cells > 1 else "", encoding), "bold", end="")
    if left:
        right.append(theme.fitted(f"{' · ' if right.plain else ''}{left}", encoding), theme.QUIET)
    kind = Text("time  ", theme.ACCENT, end="")
    pieces = []
    if current:
        named = axes.subject([current.cell.model_dump()])
        pieces += [
            (theme.fitted(piece, encoding), theme.TITLE if number < 4 else "") for number, piece in enumerate(named)
        ]
    room = width - right.cell_len
    if room < 24:
        right, room = Text(), width
    said = pieces_that_fit(pieces, room - kind.cell_len - 2, theme.fitted(" · ", encoding))
    return Block(Row(((kind, kind.cell_len), (said, room - kind.cell_len), (right, right.cell_len))))


@remembered
def hardware(
    device: DeviceInfo | None,
    torch: TorchInfo | None,
    host: HostInfo | None,
    current: Current | None,
    width: int,
    encoding: str,
) -> Block:
    """On what it runs, and what the model is."""
    names = [device.name if device else host.cpu if host else ""]
    if current and current.parameters:
        shape, cell = current.cell.model, current.cell
        names.append(f"{units.count(current.parameters)} parameters")
        names.append(f"{units.flops(formulas.forward_flops(shape, cell.ctx, cell.batch))} forward")
    if torch:
        names.append(f"torch {torch.torch}")
    if device and device.type == "cpu" and torch:
        names.append(axes.phrase("threads", (current and current.cell.threads) or torch.threads))
    pieces = [(theme.fitted(name, encoding), theme.QUIET) for name in names if name]
    return line(pieces_that_fit(pieces, width, theme.fitted(" · ", encoding)))


def progress(
    name: str, completed: int, total: int, texts: Sequence[tuple[str, str]], width: int, encoding: str
) -> Block:
    """The stage with its bar and what is known so far; of the texts as many as fit, the first ones first.

    A `total` of 0 is one that nobody knows, and has no bar.
    """
    said = [(theme.fitted(text, encoding), style) for text, style in texts if text]
    if width < NARROW and total:
        return line(pieces_that_fit(said, width, " "))
    label = Text(theme.fitted(name, encoding), theme.ACCENT, end="")
    room = width - label.cell_len - 1
    after = pieces_that_fit(said, room, "   ")
    bar_width = min(LONGEST_BAR, room - after.cell_len - 2)
    parts: list[tuple[RenderableType, int]] = [(label, label.cell_len + 1)]
    if total and bar_width >= 6:
        bar = ProgressBar(total=total, completed=completed, width=bar_width, complete_style="cyan")
        parts += [(bar, bar_width + 2)]
    return Block(Row((*parts, (after, after.cell_len))))


@remembered
def nothing() -> Block:
    """An empty line, in the place of something that is not known yet."""
    return line(Text(""))


@remembered
def steps(every: tuple[Step, ...], rows: int, width: int, encoding: str) -> Block:
    """The last steps phase by phase, and the mean of those that count."""
    shown, measured = every[-rows:], [step for step in every if not step.warmup]
    names = list(dict.fromkeys(name for step in shown for name, _ in step.phases))
    columns = (
        Column("step", "step"),
        *(Column(name, name, "s", importance=PHASE_IMPORTANCE.get(name, 1)) for name in names),
        Column("whole", "whole step", "s"),
    )
    body = [_step_row(step, names) for step in shown]
    if measured:
        means = {name: mean for name, mean, _ in phase_means(measured)}
        strong = tuple(Measure(means[name], tone="strong") if name in means else None for name in (*names, "step"))
        body.append(("mean", *strong))
    found = terminal.fit(Table("steps", "", columns, tuple(body)), width, encoding)
    return Block(terminal.grid(found))


def _step_row(step: Step, names: Sequence[str]) -> tuple[Cell, ...]:
    """One step; one that only warms up steps back."""
    phases, tone = dict(step.phases), _WARMING_UP if step.warmup else _COUNTED
    name = f"warm-up {step.index + 1}" if step.warmup else str(step.index + 1)
    measures = (Measure(phases[name], tone=tone) if name in phases else None for name in names)
    return (Word(name, tone), *measures, Measure(step.total_s, tone=tone, aside=step.warmup))


@remembered
def trend(recent: tuple[Step, ...], width: int, encoding: str) -> Block:
    """A sparkline of the last steps, the first of all left out: it would flatten the others."""
    text = _label("step", width, encoding)
    shown = (recent[1:] or recent)[-(width - text.cell_len) :]
    low, high = min(step.total_s for step in shown), max(step.total_s for step in shown)
    span = max(high - low, NOISE * low)
    for step in shown:
        level = int((step.total_s - low) / span * (len(theme.SPARKS) - 1) + 0.5) if span else 0
        text.append(theme.fitted(theme.SPARKS[level], encoding), theme.QUIET if step.warmup else "cyan")
    return line(text)


@remembered
def shares(every: tuple[Step, ...], width: int, encoding: str) -> Block:
    """Where the steps that count go: their phases as one bar, and in words; the smallest are left out first."""
    means = [(name, mean) for name, mean, _ in phase_means(step for step in every if not step.warmup)]
    whole = sum(mean for name, mean in means if name != "step")
    parts = [(name, mean / whole) for name, mean in means if name != "step" and mean / whole >= LEAST_SHARE]
    text, separator = _label("phases", width, encoding), theme.fitted(" · ", encoding)
    room = width - text.cell_len
    named = list(parts)
    while len(named) > 1 and len(separator.join(_share(*part) for part in named)) > room:
        named.remove(min(named, key=lambda part: part[1]))
    legend = pieces_that_fit([(_share(*part), theme.PHASE_STYLES.get(part[0], "")) for part in named], room, separator)
    bar = min(LONGEST_PHASES, room - legend.cell_len - 2)
    if bar >= 8:
        text.append_text(_phase_bar(parts, bar, encoding)).append("  ")
    return line(text.append_text(legend))


def _share(name: str, part: float) -> str:
    return f"{name} {units.share(part)}"


def _phase_bar(parts: Sequence[tuple[str, float]], width: int, encoding: str) -> Text:
    """Every phase as long as its share; where there are no blocks to draw with, by its first letter."""
    bar, reached = Text(), 0.0
    mark = theme.fitted("█", encoding)
    for name, part in parts:
        reached += part
        cells = round(reached * width) - bar.cell_len
        bar.append((mark if mark == "█" else name[0]) * cells, theme.PHASE_STYLES.get(name, ""))
    return bar


@remembered
def memory(used: int, peak: int | None, total: int | None, what: str, width: int, encoding: str) -> Block:
    """Used of total as a bar, and the peak so far."""
    scale = units.shared_scale("bytes", [total or used])
    of_total = f" of {scale.digits(total, 1)}" if total else ""
    texts = [f"{scale.digits(used, 1)}{of_total} {scale.symbol} {what}".rstrip()]
    texts += [f"peak {scale.digits(peak, 1)} {scale.symbol}"] if peak else []
    pieces = [(theme.fitted(text, encoding), "") for text in texts]
    label = _label("memory", width, encoding)
    room = width - label.cell_len
    after = pieces_that_fit(pieces, room, theme.fitted(" · ", encoding))
    bar = min(24, room - after.cell_len - 2)
    parts: list[tuple[RenderableType, int]] = [(label, label.cell_len)]
    if total and bar >= 6:
        style = theme.BAD if used > 0.95 * total else "cyan"
        parts.append((ProgressBar(total=total, completed=used, width=bar, complete_style=style), bar + 2))
    return Block(Row((*parts, (after, after.cell_len))))


@remembered
def clocks(reading: Reading, width: int, encoding: str) -> Block | None:
    """What the device is doing, as seen from outside; None where there is nothing to say."""
    pieces = [(text, "") for text in _device(reading)]
    if reading.throttle_reasons:
        pieces.append((f"held back: {', '.join(reading.throttle_reasons)}", theme.WARNING))
    if reading.host_cpu_share is not None and reading.host_cpu_share >= 0.05:
        pieces.append((f"other programs use {units.share(reading.host_cpu_share)} of the CPU", theme.WARNING))
    if not pieces:
        return None
    fitted = [(theme.fitted(text, encoding), style) for text, style in pieces]
    text = _label("device" if reading.device_utilisation is not None else "host", width, encoding)
    return line(text.append_text(pieces_that_fit(fitted, width - text.cell_len, theme.fitted(" · ", encoding))))


def _device(reading: Reading) -> Iterator[str]:
    if reading.device_utilisation is not None:
        yield f"{units.share(reading.device_utilisation)} busy"
    if reading.sm_clock_hz is not None:
        yield units.frequency(reading.sm_clock_hz)
    if reading.power_w is not None:
        yield f"{reading.power_w:.0f} W"
    if reading.temperature_c is not None:
        yield f"{reading.temperature_c:.0f} °C"


@remembered
def notice(text: str, remedy: str, width: int, encoding: str) -> Block:
    """Something that the person at the terminal should know now, and what to do about it."""
    lines = [
        Text(theme.fitted(text, encoding), theme.WARNING),
        Text(theme.fitted(f"→ {remedy}", encoding), theme.ACCENT),
    ]
    return Block(Group(*lines))


def _label(name: str, width: int, encoding: str) -> Text:
    """The name of a line, as wide as all of them; nothing where there is no room for one."""
    return Text(theme.fitted(name.ljust(LABEL), encoding) if width >= NARROW else "", theme.QUIET, end="")


# --- all cells of a run: those that are done with their times, the one that runs, and those that wait

_WAITING, _RUNNING = Word("…", "quiet"), Word("▶", "strong")


@dataclass(frozen=True)
class Layout:
    """How the cells of a run stand on the board: one axis across, every combination of the others down."""

    across: str
    down: tuple[str, ...]
    heads: tuple[Any, ...]
    rows: tuple[tuple[Any, ...], ...]
    places: dict[str, tuple[int, int]]
    """Row and column of every cell, by its key."""


@remembered
def layout(planned: tuple[Planned, ...]) -> Layout | None:
    """Contexts across where they differ, else the last axis that does; None for a single cell."""
    specs = {each.key: each.cell.model_dump() for each in planned}
    differing = axes.varying(list(specs.values()))
    if not differing:
        return None
    across = "ctx" if "ctx" in differing else differing[-1]
    down = tuple(axis for axis in differing if axis != across)
    heads = list(dict.fromkeys(spec[across] for spec in specs.values()))
    rows = list(dict.fromkeys(tuple(spec[axis] for axis in down) for spec in specs.values()))
    columns, lines = ({value: number for number, value in enumerate(values)} for values in (heads, rows))
    places = {key: (lines[tuple(spec[axis] for axis in down)], columns[spec[across]]) for key, spec in specs.items()}
    return Layout(across, down, tuple(heads), tuple(rows), places)


@remembered
def board(
    planned: tuple[Planned, ...], done: tuple[Done, ...], running: str, rows: int, width: int, encoding: str
) -> Block:
    """The mean step of every cell in its place, in at most `rows` lines below the headings.

    Of a board that is too large the part around the running cell is shown, and the rest is counted.
    """
    found = layout(planned)
    if found is None:
        return Block(Text(""))
    cells = _filled(found, done, running)
    row, column = found.places.get(running, found.places[done[-1].key] if done else (0, 0))
    shown = range(len(found.rows)) if len(found.rows) <= rows else _window(len(found.rows), max(1, rows - 1), row)
    count = min(len(found.heads), max(1, width // 6))
    while True:
        heads = _window(len(found.heads), count, column)
        fit = terminal.fit(_table(found, cells, shown, heads), width, encoding)
        if not fit.stacked or count == 1:
            break
        count -= 1
    if fit.stacked:
        return line(Text(theme.fitted(_counted(found.places.values(), cells), encoding), theme.QUIET))
    parts: list[RenderableType] = [terminal.grid(fit)]
    outside = [place for place in found.places.values() if place[0] not in shown or place[1] not in heads]
    if outside and len(shown) < rows:
        summary = f"and {len(outside)} more: {_counted(outside, cells)}"
        parts.append(OneLine(Text(theme.fitted(summary, encoding), theme.QUIET, end="")))
    return Block(Group(*parts))


@remembered
def finished(
    planned: tuple[Planned, ...], done: tuple[Done, ...], rows: int, width: int, encoding: str
) -> Block | None:
    """The cells that finished last, phase by phase; None where there is no room for a table."""
    found, by_key = layout(planned), {each.key: each for each in planned}
    named = (*found.down, found.across) if found else ("size", "ctx")
    last = [each for each in done if each.key in by_key][-rows:]
    phases = list(dict.fromkeys(name for each in last for name, _, _ in each.phases if name != "step"))
    columns = (
        *axes.columns(named),
        *(Column(name, name, "s", importance=PHASE_IMPORTANCE.get(name, 1)) for name in phases),
        Column("step", "whole step", "s"),
        Column("", "achieved", "flops_per_s", importance=3),
    )
    body = tuple(
        (*axes.values(by_key[each.key].cell.model_dump(), named), *_row(each, by_key[each.key], phases))
        for each in last
    )
    fit = terminal.fit(Table("finished", "", columns, body, len(named)), width, encoding)
    return None if fit.stacked else Block(terminal.grid(fit))


def _row(done: Done, planned: Planned, phases: Sequence[str]) -> list[Cell]:
    if done.step is None:
        return [*([NOTHING] * len(phases)), _outcome(done), NOTHING]
    by_name = {name: Measure(mean, deviation) for name, mean, deviation in done.phases}
    return [*(by_name.get(name) for name in phases), by_name["step"], Measure(planned.step_flops / done.step[0])]


def _filled(found: Layout, done: Sequence[Done], running: str) -> dict[tuple[int, int], Cell]:
    cells: dict[tuple[int, int], Cell] = {
        found.places[each.key]: Measure(*each.step) if each.step and each.outcome == "ok" else _outcome(each)
        for each in done
        if each.key in found.places
    }
    if running in found.places:
        cells[found.places[running]] = _RUNNING
    return cells


def _outcome(done: Done) -> Word:
    return Word(done.outcome, "quiet" if done.outcome == "skipped" else "bad")


def _table(found: Layout, cells: dict[tuple[int, int], Cell], rows: Sequence[int], heads: Sequence[int]) -> Table:
    planned = set(found.places.values())
    columns = (
        *axes.columns(found.down),
        *(Column(str(head), str(found.heads[head]), "s", f"step by {axes.TITLES[found.across]}") for head in heads),
    )
    body = tuple(
        (
            *found.rows[row],
            *(cells.get((row, head), _WAITING if (row, head) in planned else NOTHING) for head in heads),
        )
        for row in rows
    )
    return Table("board", "", columns, body, len(found.down))


def _window(count: int, size: int, around: int) -> range:
    """`size` consecutive numbers of `count`, with `around` among them and what comes before it in sight."""
    first = min(max(0, around - size // 2), max(0, count - size))
    return range(first, min(count, first + size))


def _counted(places: Collection[tuple[int, int]], cells: dict[tuple[int, int], Cell]) -> str:
    """Cells by what has become of them: `3 ok, 1 oom, 4 waiting`."""
    over = [cells[place] for place in places if place in cells and cells[place] is not _RUNNING]
    words = Counter(cell.text for cell in over if isinstance(cell, Word))
    ok, waiting = len(over) - words.total(), len(places) - len(over)
    counted = [(ok, "ok"), *((count, word) for word, count in words.items()), (waiting, "to go")]
    return ", ".join(f"{count} {word}" for count, word in counted if count)
