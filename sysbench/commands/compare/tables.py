"""Tables of a comparison: differences, verdicts, phases, predictions, memory, and cells that only one side has."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from sysbench import units
from sysbench.command import runnable
from sysbench.commands.compare.cells import Axes, value_text, varying_axes
from sysbench.commands.compare.comparison import (
    AmountComparison,
    CellComparison,
    Comparison,
    GateRecord,
    GeometricMean,
    SideRecord,
    TimeComparison,
    amount_text,
    has_failed_in_b,
    is_gated,
)
from sysbench.commands.compare.sources import (
    SOURCE_COLUMNS,
    MemorySource,
    memory_label,
    memory_source,
    title_with_source,
    with_source_marks,
)
from sysbench.errors import UsageError, unknown
from sysbench.log.predictions import INTERVAL, MARK, PredictedTime
from sysbench.render.declared import build_tables
from sysbench.render.remarks import outcome_word
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Remark, Sheet, Table, Tone, Word, sentence
from sysbench.render.theme import elided
from sysbench.spec.axis import declared_fields
from sysbench.statistics.verdict import Verdict

Tables = list[Table]

TONES: Mapping[Verdict, Tone] = {"FASTER": "good", "SLOWER": "bad", "SAME": "plain", "AMBIGUOUS": "quiet"}

MAX_CELLS_WITH_PHASES = 12
"""Largest number of cells for which phases are shown by default."""

MAX_DETAIL_LENGTH = 200

MAX_LISTED = 8
"""The largest number of gate failures to list one by one."""


def sheet(comparison: Comparison, names: Iterable[str] = ()) -> Sheet:
    return Sheet(
        subject=subject(comparison), tables=tuple(tables_for(comparison, names)), remarks=tuple(_remarks(comparison))
    )


def subject(comparison: Comparison) -> tuple[str, ...]:
    sides = zip((comparison.a, comparison.b), _sources(comparison.cells), strict=True)
    titles = (title_with_source(_side_title(side), source) for side, source in sides)
    return ("compare", *(f"{arm} {title}" for arm, title in zip("AB", titles, strict=True)))


def _side_title(side: SideRecord) -> str:
    return side.name if side.runs == 1 else f"{side.name} ({side.runs} runs)"


def _sources(cells: Iterable[CellComparison]) -> tuple[MemorySource, MemorySource]:
    simulated = [(cell.a_simulated, cell.b_simulated) for cell in cells]
    return memory_source([a for a, _ in simulated]), memory_source([b for _, b in simulated])


def refuse_unknown_tables(names: Iterable[str]) -> None:
    for name in names:
        if name not in TABLES:
            raise UsageError(f"--tables {unknown(name, 'a table', TABLES)}")


def tables_for(comparison: Comparison, names: Iterable[str] = ()) -> Tables:
    """Return the tables called `names`; by default, all except `cells`.

    The default includes phases only if there are few cells, and memory only where it changed.
    """
    chosen = tuple(names)
    if not chosen:
        phases = parts_table(comparison) if len(comparison.cells) <= MAX_CELLS_WITH_PHASES else []
        return [
            *differences_table(comparison),
            *verdicts_table(comparison),
            *phases,
            *predictions_table(comparison),
            *memory_table(comparison, changed=True),
            *amounts_table(comparison, changed=True),
            *left_over_table(comparison),
        ]
    return build_tables(TABLES, comparison, chosen, what="this comparison")


def differences_table(comparison: Comparison) -> Tables:
    if not comparison.differences:
        return []
    columns = (Column("what", ""), Column("a", "A", elastic=True), Column("b", "B", elastic=True))
    rows = tuple((each.name, each.a, each.b) for each in comparison.differences)
    return [Table("differences", "differences", columns, rows, 1)]


def verdicts_table(comparison: Comparison) -> Tables:
    return [table for kind in _kinds(comparison) for table in _time_tables(comparison, kind, headline=True)]


def parts_table(comparison: Comparison) -> Tables:
    return [table for kind in _kinds(comparison) for table in _time_tables(comparison, kind, headline=False)]


def _kinds(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(cell.kind for cell in comparison.cells))


def _time_tables(comparison: Comparison, kind: str, *, headline: bool) -> Tables:
    cells = [cell for cell in comparison.cells if cell.kind == kind]
    axes = varying_axes([cell.axes for cell in cells])
    rows: list[tuple[Cell, ...]] = []
    excluded: set[int] = set()
    for cell in cells:
        times = [_time_row(time) for time in cell.times if time.headline == headline]
        if headline and not times and (cell.a_outcome, cell.b_outcome) != ("ok", "ok"):
            a, b = outcome_word(cell.a_outcome), outcome_word(cell.b_outcome)
            times = [(EMPTY_CELL, a, b, EMPTY_CELL, EMPTY_CELL)]
        excluded |= {len(rows) + number for number in range(len(times)) if cell.excluded_by}
        rows += [(*_axis_values(cell.axes, axes), *row) for row in times]
    if not rows:
        return []
    title = kind if headline else f"{kind}: phases of a step"
    rounds = any(time.repeated == "rounds" for cell in comparison.cells for time in cell.times)
    what = "medians over rounds, and the mean of each round's B / A" if rounds else "medians, and B / A"
    margin = _percent(comparison.margin)
    note = f"{what} with its 99% interval; below 1, B is faster; SAME: they differ by less than {margin}"
    columns = (
        *_axis_columns(axes),
        Column("quantity", "time"),
        *_time_columns(note if headline else "", wide=not headline),
    )
    name = "verdicts" if headline else "parts"
    return [Table(name, title, columns, tuple(rows), len(axes) + 1, excluded=frozenset(excluded))]


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def _time_columns(note: str = "", *, wide: bool = False) -> tuple[Column, ...]:
    return (
        Column("a", "A", "s", wide_range=wide),
        Column("b", "B", "s", wide_range=wide),
        Column("b_over_a", "B / A, < 1 faster", "ratio", note=note),
        Column("verdict", "verdict"),
    )


def _time_row(time: TimeComparison) -> tuple[Cell, ...]:
    tone = TONES[time.verdict]
    ratio = Measure(time.ratio, low=time.low, high=time.high, tone=tone)
    return (time.quantity, Measure(time.a_s), Measure(time.b_s), ratio, Word(time.verdict, tone))


def predictions_table(comparison: Comparison) -> Tables:
    """Return the predicted times of both sides, in one table per command; without verdicts, as nothing was measured."""

    def rows(cell: CellComparison) -> Iterator[tuple[Cell, ...]]:
        for each in cell.predictions:
            ratio = Measure(each.ratio, low=each.low, high=each.high)
            yield (each.quantity, _interval(each.a), _interval(each.b), ratio)

    note = f"{INTERVAL}; B / A: errors common to both predictions, such as that of the same host, cancel"
    columns = (
        Column("quantity", "time"),
        Column("a_predicted", "A", "s"),
        Column("b_predicted", "B", "s"),
        Column("b_over_a", "B / A, < 1 faster", "ratio", note=note),
    )
    tables = (
        _table_of_kind(comparison, kind, Table("predictions", f"{kind}: {MARK}", columns, (), 1), rows)
        for kind in _kinds(comparison)
    )
    return [table for table in tables if table.rows]


def _table_of_kind(
    comparison: Comparison, kind: str, table: Table, rows: Callable[[CellComparison], Iterable[tuple[Cell, ...]]]
) -> Table:
    cells = [cell for cell in comparison.cells if cell.kind == kind]
    axes = varying_axes([cell.axes for cell in cells])
    return replace(
        table,
        columns=(*_axis_columns(axes), *table.columns),
        rows=tuple((*_axis_values(cell.axes, axes), *row) for cell in cells for row in rows(cell)),
        axes=len(axes) + table.axes,
    )


def _interval(time: PredictedTime) -> Measure:
    return Measure(time.point_s, low=time.low_s, high=time.high_s)


def memory_table(comparison: Comparison, *, changed: bool = False) -> Tables:
    """Return the memory of both sides; `changed` omits equal and sampled values."""
    return _amount_tables(comparison, "memory", changed)


def amounts_table(comparison: Comparison, *, changed: bool = False) -> Tables:
    """Return the other numbers of both sides; `changed` as for memory."""
    return _amount_tables(comparison, "amounts", changed)


def _amount_tables(comparison: Comparison, name: Literal["memory", "amounts"], changed: bool) -> Tables:
    """Return a table for each command and unit; the unit of memory is bytes."""
    is_memory, tables = name == "memory", []
    amounts = ((cell.kind, each.unit) for cell in comparison.cells for each in cell.amounts)
    for kind, unit in dict.fromkeys(each for each in amounts if (each[1] == "bytes") == is_memory):
        columns = (
            Column("quantity", "memory" if is_memory else "quantity"),
            Column("a_memory", "A", unit),
            Column("b_memory", "B", unit),
            Column("difference", "difference", unit, signed=True),
            Column("change", "change", "share", signed=True),
        )

        def rows(cell: CellComparison, unit: units.Unit = unit) -> Iterator[tuple[Cell, ...]]:
            return _number_rows([each for each in cell.amounts if each.unit == unit], changed)

        title = f"{kind}: memory" if is_memory and kind != "memory" else kind
        table = _table_of_kind(comparison, kind, Table(name, title, columns, (), 1), rows)
        sources = _sources(cell for cell in comparison.cells if cell.kind == kind)
        tables.append(with_source_marks(table, *sources) if is_memory else table)
    return [table for table in tables if table.rows]


def _number_rows(numbers: Iterable[AmountComparison], changed: bool) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each number; `changed` omits equal and sampled ones."""
    return (_number_row(each) for each in numbers if not changed or (each.exact and each.a != each.b))


def _number_row(number: AmountComparison) -> tuple[Cell, ...]:
    difference = number.b - number.a
    is_better = (difference < 0) == (number.better == "lower")
    tone: Tone = "plain" if not is_gated(number) or not difference else "good" if is_better else "bad"
    name = number.quantity.replace("_", " ") + ("" if number.exact else " (sampled)")
    is_plain = number.unit == "number"
    return (
        name,
        *(Measure(value, text=amount_text("number", value) if is_plain else None) for value in (number.a, number.b)),
        Measure(difference, tone=tone, text=f"{difference:+.3g}" if is_plain else None),
        Measure(difference / abs(number.a), tone=tone) if number.a else EMPTY_CELL,
    )


def left_over_table(comparison: Comparison) -> Tables:
    if not comparison.left_over:
        return []
    axes = _left_over_axes(comparison)
    several = len({each.kind for each in comparison.left_over}) > 1
    columns = (
        Column("only_in", "only in"),
        *((Column("kind", "command"),) if several else ()),
        *_axis_columns(axes),
        Column("outcome", "outcome"),
    )
    rows = tuple(
        (
            each.arm,
            *((each.kind,) if several else ()),
            *_axis_values(each.axes, axes),
            outcome_word(each.outcome),
        )
        for each in comparison.left_over
    )
    return [Table("left-over", "not compared", columns, rows, 1)]


def _left_over_axes(comparison: Comparison) -> tuple[str, ...]:
    left_over = [each.axes for each in comparison.left_over]
    kinds = {each.kind for each in comparison.left_over}
    every_cell = [*left_over, *(cell.axes for cell in comparison.cells if cell.kind in kinds)]
    # Compared cells lack the axes that differ between the sides.
    common = set.intersection(*map(set, every_cell))
    telling = {
        *varying_axes(left_over),
        *varying_axes([{axis: cell[axis] for axis in common} for cell in every_cell]),
    }
    return tuple(axis for axis in declared_fields() if axis in telling)


def cells_table(comparison: Comparison) -> Tables:
    axes = varying_axes([{**cell.axes, "kind": cell.kind} for cell in comparison.cells])
    marked = any(cell.a_simulated or cell.b_simulated for cell in comparison.cells)
    amount_columns = Column("a_amount", "A", "number"), Column("b_amount", "B", "number"), Column("unit", "unit")
    has_amounts = any(each.unit != "bytes" for cell in comparison.cells for each in cell.amounts)
    columns = (
        Column("kind", "command"),
        *_axis_columns(axes),
        *(SOURCE_COLUMNS if marked else ()),
        Column("quantity", "quantity"),
        Column("a_outcome", "outcome of A"),
        Column("b_outcome", "outcome of B"),
        *_time_columns(),
        Column("a_memory", "A", "bytes"),
        Column("b_memory", "B", "bytes"),
        *(amount_columns if has_amounts else ()),
    )
    rows = [
        (
            cell.kind,
            *_axis_values(cell.axes, axes),
            *(_sources([cell]) if marked else ()),
            row[0],
            cell.a_outcome,
            cell.b_outcome,
            *row[1 : None if has_amounts else -3],
        )
        for cell in comparison.cells
        for row in _long_rows(cell)
    ]
    return [Table("cells", "cells", columns, tuple(rows), len(axes) + 2 + 2 * marked)] if rows else []


def _long_rows(cell: CellComparison) -> Iterator[tuple[Cell, ...]]:
    empty = (EMPTY_CELL,) * 4
    yield from ((*_time_row(time), *empty, EMPTY_CELL) for time in cell.times)
    for each in cell.amounts:
        values = Measure(each.a), Measure(each.b)
        placed = (*values, *empty[:3]) if each.unit == "bytes" else (*empty[:2], *values, each.unit)
        yield (each.quantity, *empty, *placed)
    if not cell.times and not cell.amounts:
        yield ("", *empty, *empty, EMPTY_CELL)


TABLES: Mapping[str, Callable[[Comparison], Tables]] = {
    "differences": differences_table,
    "verdicts": verdicts_table,
    "parts": parts_table,
    "predictions": predictions_table,
    "memory": memory_table,
    "amounts": amounts_table,
    "left-over": left_over_table,
    "cells": cells_table,
}
"""All tables of a comparison, by name."""


def _axis_columns(axes: Sequence[str]) -> tuple[Column, ...]:
    declared = declared_fields()
    return tuple(Column(axis, declared[axis].short_title) for axis in axes)


def _axis_values(cell: Axes, axes: Sequence[str]) -> tuple[Cell, ...]:
    values = (cell.get(axis, "") for axis in axes)
    return tuple(value if type(value) is int else value_text(value) for value in values)


# --- sentences


def _remarks(comparison: Comparison) -> Iterator[Remark]:
    yield from (Remark("finding", each) for each in _time_findings(comparison))
    yield from (Remark("finding", finding) for finding in _prediction_findings(comparison))
    yield from (Remark("finding", finding) for finding in _number_findings(comparison))
    yield from _outcome_changes(comparison)
    yield from _incomparable_notes(comparison)
    yield from (Remark("caution", caution) for caution in comparison.cautions)
    if not comparison.differences:
        yield Remark("note", _describe_sameness(comparison))
    yield from _gate_remarks(comparison)


def _time_findings(comparison: Comparison) -> Iterator[str]:
    yield from map(_describe_mean, comparison.geometric_means)
    for kind in _kinds(comparison):
        excluded = [(name, cell) for name, cell in comparison.named_cells if cell.kind == kind and cell.excluded_by]
        if not excluded:
            continue
        codes = ", ".join(sorted({code for _, cell in excluded for code in cell.excluded_by}))
        if any(mean.kind == kind for mean in comparison.geometric_means):
            which = "; ".join(_first_sentences([name for name, _ in excluded], MAX_LISTED))
            yield f"excluded from this because of cautions ({codes}): {which}"
        else:
            many = {1: "the only cell", 2: "both cells"}.get(len(excluded), f"all {len(excluded)} cells")
            yield f"{kind}: whether A or B is faster cannot be decided: cautions exclude {many} ({codes})"


def _describe_sameness(comparison: Comparison) -> str:
    code = f", same file of {', '.join(comparison.same_code)}" if comparison.same_code else ""
    unknown_code = [
        *(["modules that it imports"] if code else []),
        *(["the code of the program"] if set(_kinds(comparison)) - set(runnable()) else []),
    ]
    caveat = f"; {' and '.join(unknown_code)} could differ" if unknown_code else ""
    return f"A and B have no known differences: same spec, same software{code}{caveat}"


def _describe_mean(mean: GeometricMean) -> str:
    """`time: the step takes 0.85× as long in B as in A (geometric mean of 2 cells); verdicts: 2 SAME`."""
    several = mean.cells > 1
    ratio = units.ratio(mean.ratio)
    counts = ", ".join(f"{count} {verdict}" if several else verdict for verdict, count in mean.verdicts.items())
    if set(mean.verdicts) == {"AMBIGUOUS"}:
        where = (" in either cell" if mean.cells == 2 else f" in any of {mean.cells} cells") if several else ""
        unresolved = f"no difference in {mean.quantity} time was resolved{where} ({counts})"
        average = "the geometric mean of B / A" if several else "B / A"
        return f"{mean.kind}: {unresolved}; {average} is {ratio}"
    timed = "the step" if mean.quantity == "step" else mean.quantity
    average = f" (geometric mean of {mean.cells} cells)" if several else ""
    return f"{mean.kind}: {timed} takes {ratio} as long in B as in A{average}; verdict{'s' * several}: {counts}"


def _prediction_findings(comparison: Comparison) -> Iterator[str]:
    ratios: dict[tuple[str, str], list[float]] = {}
    for cell in comparison.cells:
        has_step = any(each.quantity == "step" for each in cell.predictions)
        for each in cell.predictions:
            if each.quantity == "step" or not has_step:
                ratios.setdefault((cell.kind, each.quantity), []).append(each.ratio)
    for (kind, quantity), found in ratios.items():
        timed = "the step" if quantity == "step" else quantity
        average = f" (geometric mean of {len(found)} cells)" if len(found) > 1 else ""
        ratio = units.ratio(statistics.geometric_mean(found))
        yield f"{kind}: {timed} is predicted to take {ratio} as long in B as in A{average}; nothing was measured"


def _number_findings(comparison: Comparison) -> Iterator[str]:
    exact = [(cell, each) for cell in comparison.cells for each in cell.amounts if each.exact]
    if peaks := [(cell, each) for cell, each in exact if each.unit == "bytes" and each.a]:
        label = memory_label(*_sources(cell for cell, _ in peaks))
        yield f"{label}: {_describe_changes([peak for _, peak in peaks], 'peak')}"
    for kind in _kinds(comparison):
        if amounts := [each for cell, each in exact if cell.kind == kind and each.unit != "bytes"]:
            yield f"{kind}: {_describe_changes(amounts, 'number')}"


def _describe_changes(numbers: Sequence[AmountComparison], noun: str) -> str:
    everything = {1: f"the {noun}", 2: f"both {noun}s"}.get(len(numbers), f"all {len(numbers)} {noun}s")
    changed = [each for each in numbers if each.b != each.a]
    if not changed:
        same = "to the byte" if noun == "peak" else "in A and B"
        return f"{everything} {'is' if len(numbers) == 1 else 'are'} identical {same}"
    which = everything if len(changed) == len(numbers) else f"{len(changed)} of {len(numbers)} {noun}s"
    changes = [(each.b - each.a) / abs(each.a) for each in changed if each.a]
    ends = dict.fromkeys(f"{change * 100:+,.1f}%" for change in (min(changes), max(changes))) if changes else ()
    return f"{which} {'differs' if len(changed) == 1 else 'differ'}{', by ' * bool(ends)}{' to '.join(ends)}"


def summary_line(comparison: Comparison) -> str:
    """Summarize a comparison on one line: times, memory, cells with other outcomes, and the verdict of the gate."""
    changed = sum(cell.a_outcome != cell.b_outcome for cell in comparison.cells)
    sentences = [
        *_time_findings(comparison),
        *_prediction_findings(comparison),
        *_number_findings(comparison),
        *([f"{_counted(changed, 'cell')} with different outcomes in A and B"] if changed else []),
    ] or [f"{_counted(len(comparison.cells), 'cell')}, without a time or an exact memory peak on both sides"]
    if comparison.gate is not None:
        sentences.append(_gate_verdict(comparison, comparison.gate))
    return sentence("; ".join(sentences))


def _incomparable_notes(comparison: Comparison) -> Iterator[Remark]:
    for kind in _kinds(comparison):
        empty = [
            cell
            for cell in comparison.cells
            if cell.kind == kind
            and not cell.times
            and not cell.amounts
            and not cell.predictions
            and (cell.a_outcome, cell.b_outcome) == ("ok", "ok")
        ]
        if empty:
            cells = _counted(len(empty), "cell")
            yield Remark("note", f"{kind}: {cells} not compared, because neither side has a time or a memory peak")


def _outcome_changes(comparison: Comparison) -> Iterator[Remark]:
    changed = [(name, cell) for name, cell in comparison.named_cells if cell.a_outcome != cell.b_outcome]
    for name, cell in changed[:MAX_LISTED]:
        detail = f" ({elided(' '.join(cell.b_detail.split()), MAX_DETAIL_LENGTH)})" if cell.b_detail else ""
        yield Remark("outcome", f"{name}: {cell.a_outcome} in A, {cell.b_outcome} in B{detail}")
    if len(changed) > MAX_LISTED:
        yield Remark("outcome", f"{len(changed) - MAX_LISTED} more cells have different outcomes in A and B")


def _gate_remarks(comparison: Comparison) -> Iterator[Remark]:
    gate = comparison.gate
    if gate is None:
        return
    regression = f"regression of more than {_percent(gate.share)}"
    yield from (
        Remark("outcome", f"{regression}: {sentence}") for sentence in _first_sentences(gate.failed, MAX_LISTED)
    )
    if gate.undecided:
        undecided = "; ".join(_first_sentences(gate.undecided, 3))
        yield Remark("note", f"too few samples to rule out a {regression}: {undecided}")
    missing = sum(each.arm == "A" for each in comparison.left_over)
    if missing:
        cells = "1 cell of A is" if missing == 1 else f"{missing} cells of A are"
        yield Remark("note", f"{cells} missing in B and not checked by the gate")
    yield Remark("finding", _gate_verdict(comparison, gate))


def _gate_verdict(comparison: Comparison, gate: GateRecord) -> str:
    """Describe the result of the gate, including the times that are undecided."""
    checked = _checked_by_gate(comparison)
    regression = f"more than {_percent(gate.share)}"
    if gate.failed:
        more = f"; {len(gate.undecided)} more cannot be ruled out" if gate.undecided else ""
        return f"gate failed: {_counted(len(gate.failed), 'regression')} of {regression} {checked}{more}"
    result = "passed" if gate.holds else "failed (--strict)"
    undecided = ""
    if gate.undecided:
        which = "it has" if gate.passed == 1 else f"{len(gate.undecided)} of them {_have(len(gate.undecided))}"
        undecided = f", but {which} too few samples to rule one out"
    return f"gate {result}: no regression of {regression} was found {checked}{undecided}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _checked_by_gate(comparison: Comparison) -> str:
    """`among 2 times, 1 peak and 1 cell without a result in B`, `in the one time compared`."""
    times = sum(time.headline for cell in comparison.cells for time in cell.times)
    gated = [each.unit == "bytes" for cell in comparison.cells for each in cell.amounts if is_gated(each)]
    peaks, numbers = gated.count(True), gated.count(False)
    failed = sum(has_failed_in_b(cell) for cell in comparison.cells)
    counts = {"time": times, "peak": peaks, "number": numbers, "cell": failed}
    if sum(counts.values()) == 1:
        (noun,) = (noun for noun, count in counts.items() if count)
        return f"in the one {noun} compared"
    parts = [_counted(count, noun) for noun, count in counts.items() if count]
    parts[-1] += " without a result in B" * bool(failed)
    return f"among {' and '.join(filter(None, [', '.join(parts[:-1]), parts[-1]]))}"


def _first_sentences(sentences: Sequence[str], max_count: int) -> list[str]:
    omitted = len(sentences) - max_count
    return [*sentences[:max_count], *([f"{omitted} more"] if omitted > 0 else [])]
