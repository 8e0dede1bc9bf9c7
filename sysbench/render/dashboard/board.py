"""All cells of a run: those that are done with their times, the one that runs, and those that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sysbench import cells as axes
from sysbench.render import terminal, theme
from sysbench.render.dashboard.blocks import PHASE_IMPORTANCE, line
from sysbench.render.dashboard.lines import Block, OneLine, remembered
from sysbench.render.dashboard.state import Done, Planned
from sysbench.render.table import NOTHING, Cell, Column, Measure, Table, Word

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
