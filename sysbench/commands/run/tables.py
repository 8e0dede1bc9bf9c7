"""Tables of `sysbench run`: the list of experiments, the plan of one experiment, and its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sysbench import formulas, units
from sysbench.commands.kinds import command_of
from sysbench.commands.run import prediction
from sysbench.commands.run.experiment import PlannedRun
from sysbench.commands.run.experiment_file import WrittenExperiment
from sysbench.log.durations import Durations
from sysbench.log.manifest import RunEntry
from sysbench.log.outcomes import FAILURES
from sysbench.log.records import RunRecord
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Remark, Sheet, Table, Tone, Word
from sysbench.spec.cell import RunCell
from sysbench.spec.hardware import Hardware

_TONES: Mapping[str, Tone] = {"as written": "plain", "changed": "strong", "simulated": "strong", "left out": "quiet"}


@dataclass(frozen=True)
class FinishedRun:
    """The result of one run of an experiment."""

    entry: RunEntry
    record: RunRecord | None
    """None if the run was skipped, or failed before it started."""
    error: str | None = None
    """Error message if the run failed; `record` is then read from its log, if there is one."""


def listing(experiments: Iterable[WrittenExperiment]) -> Sheet:
    rows = tuple((experiment.name, experiment.title) for experiment in experiments)
    columns = (Column("experiment", "experiment"), Column("title", "about"))
    return Sheet(("sysbench run NAME",), (Table("experiments", "built-in experiments", columns, rows, 1),))


def heading(entry: RunEntry, number: int, count: int) -> Sheet:
    phrases = (f"{number} of {count}", entry.part, entry.title, entry.question, entry.why)
    return Sheet(tuple(phrase for phrase in phrases if phrase), ())


def plan(title: str, planned: Sequence[PlannedRun], earlier: Durations, gpu: Hardware | None = None) -> Sheet:
    """Return the table of an experiment's runs with expected durations, and the tables of each run's cells."""

    def duration_cell(each: PlannedRun) -> Measure | None:
        run_s = prediction.run_s(each, earlier)
        mark = "PREDICTED " if any(cell.key not in earlier.cells_s for cell in each.spec.cells()) else ""
        return Measure(run_s, text=f"{mark}{prediction.expected(run_s)}") if run_s is not None else None

    cells: list[list[RunCell]] = [list(run.spec.cells()) if run.entry.here != "left out" else [] for run in planned]
    columns = (
        Column("number", ""),
        Column("run", "run"),
        Column("command", "command"),
        Column("here", "here"),
        Column("cells", "cells"),
        Column("memory", "largest", "bytes", note="largest: predicted memory of the largest cell, tensors only"),
        Column(
            "takes",
            "takes",
            "s",
            importance=1,
            wide_range=True,
            note="takes: how long the same cells took in an earlier run, including start-up"
            + ("; PREDICTED: steps only, for the other cells" if earlier.predicted_s else ""),
        ),
    )
    rows = tuple(
        (
            number,
            each.entry.name,
            each.entry.command,
            Word(each.entry.here, _TONES[each.entry.here]),
            len(its_cells) or EMPTY_CELL,
            _largest(its_cells),
            duration_cell(each) if its_cells else EMPTY_CELL,
        )
        for number, (each, its_cells) in enumerate(zip(planned, cells, strict=True), start=1)
    )
    count = f"runs: {len(planned)}, cells: {sum(map(len, cells))}"
    details = [
        table
        for run, its_cells in zip(planned, cells, strict=True)
        if its_cells
        for table in _cells(run.entry, its_cells, gpu)
    ]
    reasons = tuple(
        Remark("note", f"{run.entry.name}: {run.entry.why}") for run in planned if run.entry.here != "as written"
    )
    subject = (title, f"planned for {gpu.title}") if gpu else (title,)
    total_time = Remark("note", prediction.describe_total(planned, earlier))
    if gpu is not None and earlier.not_predicted:
        names = ", ".join(earlier.not_predicted)
        text = f"still to be computed, because predicting them takes long: {names}"
        total_time = replace(total_time, text=f"{total_time.text}; {text}", remedy="without --plan, they are predicted")
    return Sheet(subject, (Table("runs", count, columns, rows, 2), *details), (total_time, *reasons))


def outcome(title: str, run_results: Sequence[FinishedRun]) -> Sheet:
    columns = (
        Column("number", ""),
        Column("run", "run"),
        Column("command", "command", importance=1),
        Column("here", "here"),
        Column("cells", "cells"),
        Column("ok", "ok"),
        Column("otherwise", "otherwise"),
    )
    rows = tuple((number, *_outcome_cells(result)) for number, result in enumerate(run_results, start=1))
    remarks = [Remark("outcome", f"{result.entry.name}: {result.error}") for result in run_results if result.error]
    remarks += [
        Remark("note", f"{result.entry.name}: {result.entry.why}") for result in run_results if result.entry.why
    ]
    if (
        measuring_s := prediction.total_measuring_s(
            result.record for result in run_results if result.record is not None
        )
    ) > 0:
        time_note = f"PREDICTED: measuring all of this on that GPU takes about {units.duration(measuring_s)}"
        remarks.append(Remark("note", f"{time_note}; building models and starting workers are not included"))
    return Sheet((title,), (Table("outcome", "status of the runs", columns, rows, 2),), tuple(remarks))


def _cells(entry: RunEntry, cells: Sequence[RunCell], gpu: Hardware | None) -> tuple[Table, ...]:
    named = f"{entry.name}: {entry.title}" if entry.title != entry.name else entry.name
    planned = command_of(entry.command).plan(cells, gpu)
    return tuple(replace(table, title=f"{named}, {table.title}") for table in planned.tables)


def _largest(cells: Sequence[RunCell]) -> Cell:
    known = [needed for cell in cells if (needed := formulas.predicted_bytes(cell)) is not None]
    return Measure(max(known)) if known else EMPTY_CELL


def _outcome_cells(run_result: FinishedRun) -> tuple[Cell, ...]:
    here = Word(run_result.entry.here, _TONES[run_result.entry.here])
    if run_result.record is None:
        status_cell = Word("failed", "bad") if run_result.error else EMPTY_CELL
        return run_result.entry.name, run_result.entry.command, here, EMPTY_CELL, EMPTY_CELL, status_cell
    outcomes = [cell.outcome for cell in run_result.record.cells]
    other_outcomes = dict.fromkeys(outcome for outcome in outcomes if outcome != "ok")
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in other_outcomes)
    status = run_result.record.status
    bad = bool(FAILURES & set(outcomes)) or status != "complete"
    # An interrupted or unfinished run usually has such cells: the word is not repeated.
    words = ", ".join(word for word in (counts, "" if status in ("complete", *other_outcomes) else status) if word)
    status_cell = Word(words, "bad" if bad else "plain")
    return run_result.entry.name, run_result.entry.command, here, len(outcomes), outcomes.count("ok"), status_cell
