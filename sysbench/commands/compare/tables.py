"""Tables and sentences of a comparison: differences, verdicts, predictions and amounts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sysbench import units
from sysbench.command import Kind
from sysbench.commands.compare.cells import value_text, varying_axes
from sysbench.commands.compare.comparison import (
    MAX_CELLS_WITH_PHASES,
    AmountComparison,
    CellComparison,
    Comparison,
    GateRecord,
    GeometricMean,
    TimeComparison,
    amount_text,
    is_gated,
    names,
)
from sysbench.errors import UsageError, unknown
from sysbench.log.predictions import INTERVAL, MARK, PredictedTime
from sysbench.render.declared import build_tables
from sysbench.render.sentences.notes import outcome_word
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Remark, Sheet, Table, Tone, Word, sentence
from sysbench.render.theme import elided
from sysbench.spec.axis import declared_fields
from sysbench.statistics.verdict import Verdict

Rows = Iterable[tuple[Cell, ...]]

TONES: Mapping[Verdict, Tone] = {"FASTER": "good", "SLOWER": "bad", "SAME": "plain", "AMBIGUOUS": "quiet"}

MAX_DETAIL_LENGTH = 200

MAX_LISTED = 8
"""The largest number of cells and gate failures to list one by one."""


def sheet(comparison: Comparison, chosen: Iterable[str] = (), *, complete: bool = False) -> Sheet:
    """Return the tables called `chosen`, by default all that show a difference, or with `complete` every number."""
    names_of_tables = tuple(chosen)
    if names_of_tables:
        tables = build_tables(TABLES, comparison, names_of_tables, what="this comparison")
    elif complete:
        tables = [table for name, build in TABLES.items() if name != "differences" for table in build(comparison)]
    else:
        phases = len(comparison.cells) <= MAX_CELLS_WITH_PHASES
        tables = [
            *differences_table(comparison),
            *verdicts_table(comparison, phases=phases),
            *predictions_table(comparison),
            *amounts_table(comparison, changed=True),
        ]
    return Sheet(subject(comparison), tuple(tables), tuple(_remarks(comparison)))


def subject(comparison: Comparison) -> tuple[str, ...]:
    titles = (
        mark_simulated(side.name if side.runs == 1 else f"{side.name} ({side.runs} runs)", source)
        for side, source in zip((comparison.a, comparison.b), _sources(comparison.cells), strict=True)
    )
    return ("compare", *(f"{arm} {title}" for arm, title in zip("AB", titles, strict=True)))


def refuse_unknown_tables(chosen: Iterable[str]) -> None:
    for name in chosen:
        if name not in TABLES:
            raise UsageError(f"--tables {unknown(name, 'a table', TABLES)}")


def differences_table(comparison: Comparison) -> list[Table]:
    columns = (Column("what", ""), Column("a", "A", elastic=True), Column("b", "B", elastic=True))
    rows = tuple((difference.name, difference.a, difference.b) for difference in comparison.differences)
    return [Table("differences", "differences", columns, rows, 1)] if rows else []


def verdicts_table(comparison: Comparison, *, phases: bool = True) -> list[Table]:
    """Return the times of both sides with their verdicts; `phases` includes the parts of a step."""
    rounds = any(time.repeated == "rounds" for cell in comparison.cells for time in cell.times)
    what = "medians over rounds, and the mean of each round's B / A" if rounds else "medians, and B / A"
    margin = f"{comparison.margin * 100:.4g}%"
    note = f"{what} with its 99% interval; below 1, B is faster; SAME: they differ by less than {margin}"
    columns = (
        Column("quantity", "time"),
        Column("a", "A", "s", wide_range=phases),
        Column("b", "B", "s", wide_range=phases),
        Column("b_over_a", "B / A, < 1 faster", "ratio", note=note),
        Column("verdict", "verdict"),
    )

    def rows(cell: CellComparison) -> Rows:
        if not cell.times and (cell.a_outcome, cell.b_outcome) != ("ok", "ok"):
            yield EMPTY_CELL, outcome_word(cell.a_outcome), outcome_word(cell.b_outcome), EMPTY_CELL, EMPTY_CELL
        yield from (_time_row(time) for time in cell.times if time.headline or phases)

    return _tables_by_kind(comparison, lambda kind: Table("verdicts", kind, columns, (), 1), rows)


def _time_row(time: TimeComparison) -> tuple[Cell, ...]:
    tone = TONES[time.verdict]
    ratio = Measure(time.ratio, low=time.low, high=time.high, tone=tone)
    return time.quantity, Measure(time.a_s), Measure(time.b_s), ratio, Word(time.verdict, tone)


def predictions_table(comparison: Comparison) -> list[Table]:
    columns = (
        Column("quantity", "time"),
        Column("a_predicted", "A", "s"),
        Column("b_predicted", "B", "s"),
        Column(
            "b_over_a",
            "B / A, < 1 faster",
            "ratio",
            note=f"{INTERVAL}; B / A: errors common to both predictions, such as that of the same host, cancel",
        ),
    )

    def rows(cell: CellComparison) -> Rows:
        for prediction in cell.predictions:
            yield (
                prediction.quantity,
                _interval(prediction.a),
                _interval(prediction.b),
                Measure(prediction.ratio, low=prediction.low, high=prediction.high),
            )

    return _tables_by_kind(comparison, lambda kind: Table("predictions", f"{kind}: {MARK}", columns, (), 1), rows)


def _interval(time: PredictedTime) -> Measure:
    return Measure(time.point_s, low=time.low_s, high=time.high_s)


def amounts_table(comparison: Comparison, *, changed: bool = False) -> list[Table]:
    """Return memory and other numbers of both sides by unit; `changed` omits equal and sampled ones."""
    tables: list[Table] = []
    for unit in dict.fromkeys(amount.unit for cell in comparison.cells for amount in cell.amounts):
        is_memory = unit == "bytes"
        columns = (
            Column("quantity", "memory" if is_memory else "quantity"),
            Column("a", "A", unit),
            Column("b", "B", unit),
            Column("difference", "difference", unit, signed=True),
            Column("change", "change", "share", signed=True),
        )

        def rows(cell: CellComparison, unit: units.Unit = unit) -> Rows:
            for amount in cell.amounts:
                if amount.unit == unit and not (changed and (not amount.exact or amount.a == amount.b)):
                    yield _amount_row(amount)

        def table(kind: Kind, columns: tuple[Column, ...] = columns, is_memory: bool = is_memory) -> Table:
            title = f"{kind}: memory" if is_memory and kind != "memory" else kind
            sources = _sources(cell for cell in comparison.cells if cell.kind == kind)
            return with_source_marks(Table("amounts", title, columns, (), 1), *sources)

        tables += _tables_by_kind(comparison, table, rows)
    return tables


def _amount_row(number: AmountComparison) -> tuple[Cell, ...]:
    difference = number.b - number.a
    is_better = (difference < 0) == (number.better == "lower")
    tone: Tone = "plain" if not is_gated(number) or not difference else "good" if is_better else "bad"
    is_plain = number.unit == "number"
    return (
        number.quantity.replace("_", " ") + ("" if number.exact else " (sampled)"),
        *(Measure(value, text=amount_text("number", value) if is_plain else None) for value in (number.a, number.b)),
        Measure(difference, tone=tone, text=f"{difference:+.3g}" if is_plain else None),
        Measure(difference / abs(number.a), tone=tone) if number.a else EMPTY_CELL,
    )


def _tables_by_kind(
    comparison: Comparison, table: Callable[[Kind], Table], rows: Callable[[CellComparison], Rows]
) -> list[Table]:
    """Return a table for each command with the `rows` of its cells, which begin with the axes in which they differ."""
    tables = []
    for kind in comparison.kinds:
        empty = table(kind)
        cells = [cell for cell in comparison.cells if cell.kind == kind]
        axes = varying_axes(cells)
        found = [(cell, row) for cell in cells for row in rows(cell)]
        filled = replace(
            empty,
            columns=(*(Column(axis, declared_fields()[axis].short_title) for axis in axes), *empty.columns),
            rows=tuple((*_axis_values(cell, axes), *row) for cell, row in found),
            axes=len(axes) + empty.axes,
            constants=((Column("kind", "command"), kind), *empty.constants),
            excluded=frozenset(number for number, (cell, _) in enumerate(found) if cell.excluded_by),
        )
        tables += [filled] if found else []
    return tables


def _axis_values(cell: CellComparison, axes: Sequence[str]) -> tuple[Cell, ...]:
    values = (cell.axes.get(axis, "") for axis in axes)
    return tuple(value if type(value) is int else value_text(value) for value in values)


TABLES: Mapping[str, Callable[[Comparison], list[Table]]] = {
    "differences": differences_table,
    "verdicts": verdicts_table,
    "predictions": predictions_table,
    "amounts": amounts_table,
}
"""All tables of a comparison, by name."""


# --- whether memory was simulated


def source_of(simulated: Iterable[bool]) -> str:
    """Return the source of one side's memory, given for each of its cells whether it is simulated."""
    found = set(simulated)
    if True not in found:
        return "measured"
    return "partly simulated" if False in found else "simulated"


def _sources(cells: Iterable[CellComparison]) -> tuple[str, str]:
    simulated = [(cell.a_simulated, cell.b_simulated) for cell in cells]
    return source_of(a for a, _ in simulated), source_of(b for _, b in simulated)


def mark_simulated(title: str, source: str) -> str:
    """Return a title with the source of the memory, unless it was measured: `after (simulated)`."""
    return title if source == "measured" else f"{title} ({source})"


def with_source_marks(table: Table, a: str, b: str) -> Table:
    """Return the table with marked columns of bytes, and with the sources as columns for programs."""
    if a == b == "measured":
        return table
    marks = {side: source for side, source in (("A", a), ("B", b)) if source != "measured"}
    columns = tuple(
        replace(column, group=marks.get(column.title, "")) if column.unit == "bytes" else column
        for column in table.columns
    )
    sources = (Column("a_source", "source of A"), a), (Column("b_source", "source of B"), b)
    return replace(table, columns=columns, constants=sources)


# --- sentences


def _remarks(comparison: Comparison) -> Iterator[Remark]:
    yield from (Remark("finding", text) for text in _findings(comparison))
    yield from _outcome_changes(comparison)
    for arm in "AB":
        # Compared cells take part in the names, so that the names tell what is special about the others.
        named = zip(names([*comparison.left_over, *comparison.cells]), comparison.left_over, strict=False)
        if only := [f"{name} ({cell.outcome})" for name, cell in named if cell.arm == arm]:
            yield Remark("note", f"only in {arm}, and not compared: {', '.join(_abbreviated(only))}")
    yield from (Remark("caution", caution) for caution in comparison.cautions)
    if not comparison.differences:
        yield Remark("note", "A and B have no known differences in options, software and files of your own code")
    if comparison.gate is not None:
        yield from _gate_remarks(comparison.gate)


def summary_line(comparison: Comparison) -> str:
    """Summarize a comparison on one line: times, memory, cells with other outcomes, and the verdict of the gate."""
    changed = sum(cell.a_outcome != cell.b_outcome for cell in comparison.cells)
    outcomes = [f"cells with different outcomes in A and B: {changed}"] if changed else []
    gate = [_gate_verdict(comparison.gate)] if comparison.gate is not None else []
    return sentence("; ".join([*_findings(comparison), *outcomes, *gate]))


def _findings(comparison: Comparison) -> Iterator[str]:
    yield from map(_describe_mean, comparison.geometric_means)
    for kind in comparison.kinds:
        cells = [(name, cell) for name, cell in comparison.named_cells if cell.kind == kind]
        if excluded := [(name, cell) for name, cell in cells if cell.excluded_by]:
            codes = ", ".join(sorted({code for _, cell in excluded for code in cell.excluded_by}))
            if any(mean.kind == kind for mean in comparison.geometric_means):
                which = ", ".join(_abbreviated([name for name, _ in excluded]))
                yield f"excluded from this because of cautions ({codes}): {which}"
            else:
                yield f"{kind}: whether A or B is faster cannot be decided: cautions exclude every cell ({codes})"
        if not any(cell.times or cell.predictions or cell.amounts for _, cell in cells):
            yield f"{kind}: neither side has a time or an amount to compare"
    yield from _prediction_findings(comparison)
    yield from _amount_findings(comparison)


def _describe_mean(mean: GeometricMean) -> str:
    """`time: step takes 0.85× as long in B as in A (geometric mean of 2 cells): 2 FASTER`."""
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in mean.verdicts.items())
    if set(mean.verdicts) == {"AMBIGUOUS"}:
        return f"{mean.kind}: no difference in {mean.quantity} time was resolved: {verdicts}"
    return f"{mean.kind}: {_ratio_text(mean.quantity, 'takes', mean.ratio, mean.cells)}: {verdicts}"


def _ratio_text(quantity: str, takes: str, ratio: float, cells: int) -> str:
    mean = f" (geometric mean of {cells} cells)" if cells > 1 else ""
    return f"{quantity} {takes} {units.ratio(ratio)} as long in B as in A{mean}"


def _prediction_findings(comparison: Comparison) -> Iterator[str]:
    ratios: dict[tuple[str, str], list[float]] = {}
    for cell in comparison.cells:
        has_step = any(prediction.quantity == "step" for prediction in cell.predictions)
        for prediction in cell.predictions:
            if prediction.quantity == "step" or not has_step:
                ratios.setdefault((cell.kind, prediction.quantity), []).append(prediction.ratio)
    for (kind, quantity), found in ratios.items():
        text = _ratio_text(quantity, "is predicted to take", statistics.geometric_mean(found), len(found))
        yield f"{kind}: {text}; nothing was measured"


def _amount_findings(comparison: Comparison) -> Iterator[str]:
    exact = [(cell, amount) for cell in comparison.cells for amount in cell.amounts if amount.exact]
    if peaks := [(cell, amount) for cell, amount in exact if amount.unit == "bytes" and amount.a]:
        label = memory_label(*_sources(cell for cell, _ in peaks))
        yield f"{label}: {_describe_changes([peak for _, peak in peaks], 'peak')}"
    for kind in comparison.kinds:
        if others := [amount for cell, amount in exact if cell.kind == kind and amount.unit != "bytes"]:
            yield f"{kind}: {_describe_changes(others, 'number')}"


def memory_label(a: str, b: str) -> str:
    return mark_simulated("memory", a if a == b else f"{a} in A, {b} in B")


def _describe_changes(numbers: Sequence[AmountComparison], noun: str) -> str:
    changed = [number for number in numbers if number.b != number.a]
    changes = [(number.b - number.a) / abs(number.a) for number in changed if number.a]
    ends = dict.fromkeys(f"{change * 100:+,.1f}%" for change in (min(changes), max(changes))) if changes else ()
    by = f", by {' to '.join(ends)}" if ends else ""
    if len(numbers) == 1:
        return f"the {noun} changed{by}" if changed else f"the {noun} did not change"
    return f"{len(changed) or 'none'} of {len(numbers)} {noun}s changed{by}"


def _outcome_changes(comparison: Comparison) -> Iterator[Remark]:
    changed = [(name, cell) for name, cell in comparison.named_cells if cell.a_outcome != cell.b_outcome]
    for name, cell in changed[:MAX_LISTED]:
        detail = f" ({elided(' '.join(cell.b_detail.split()), MAX_DETAIL_LENGTH)})" if cell.b_detail else ""
        yield Remark("outcome", f"{name}: {cell.a_outcome} in A, {cell.b_outcome} in B{detail}")
    if len(changed) > MAX_LISTED:
        yield Remark("outcome", f"{len(changed) - MAX_LISTED} more cells have different outcomes in A and B")


def _gate_remarks(gate: GateRecord) -> Iterator[Remark]:
    regression = f"regression of more than {gate.share * 100:.4g}%"
    yield from (Remark("outcome", f"{regression}: {text}") for text in _abbreviated(gate.failed))
    if gate.undecided:
        undecided = "; ".join(_abbreviated(gate.undecided))
        yield Remark("note", f"too imprecise to rule out a {regression}: {undecided}")
    yield Remark("finding", _gate_verdict(gate))


def _gate_verdict(gate: GateRecord) -> str:
    """`gate passed: none of 6 numbers worse by more than 3%, 1 undecided`."""
    result = "passed" if gate.holds else "failed" if gate.failed else "failed (--strict)"
    failed = f"{len(gate.failed) or 'none'} of {len(gate.failed) + gate.passed} numbers"
    undecided = f", {len(gate.undecided)} undecided" if gate.undecided else ""
    return f"gate {result}: {failed} worse by more than {gate.share * 100:.4g}%{undecided}"


def _abbreviated(texts: Sequence[str]) -> list[str]:
    omitted = len(texts) - MAX_LISTED
    return [*texts[:MAX_LISTED], *([f"{omitted} more"] if omitted > 0 else [])]
