"""What `sysbench check` shows: what it understood, what it leaves out, the verdict, and lines to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench import units
from sysbench.commands.check.question import Answer, FileChange, Question, file_changes
from sysbench.commands.check.understanding import CannotTellError, Understanding
from sysbench.commands.fit.findings import undecided, unfinished_search, verdict
from sysbench.commands.fit.record import Trial
from sysbench.commands.fit.tables import largest_causes
from sysbench.log.predictions import INTERVAL
from sysbench.render.table import Cell, Column, Measure, Remark, Sheet, Table
from sysbench.spec import published

_EFFECTS = {"less": "needs less", "more": "needs more", "either": "less or more"}

MAX_CAUSES = 3


def of_file(question: Question, answers: Sequence[Answer]) -> Sheet:
    """Return the sheet of one file."""
    understanding = question.understanding
    tables = [_understood(question, answers), _verdicts(answers)]
    if understanding.unmodelled or understanding.unknown:
        tables.insert(1, _left_out(understanding))
    remarks = []
    for each in answers:
        for gpu in each.cell.gpus:
            changes = file_changes(question, each, gpu)
            remarks.append(Remark("finding", _finding(question, each, gpu, changes)))
            if changes:
                tables.append(_changes(each, gpu, changes))
    remarks += [Remark("note", f"assumed: {text}") for text in dict.fromkeys(understanding.assumed)]
    return Sheet((question.file.path.name, question.form.name), tuple(tables), tuple(remarks))


def of_files(rows: Sequence[tuple[str, Question | None, Sequence[Answer], CannotTellError | None]]) -> Sheet:
    """Return the sheet of several files: a row for each GPU, or the reason why there is no answer."""
    columns = (
        Column("file", "file", elastic=True),
        Column("gpu", "GPU"),
        Column("fits", "verdict"),
        Column("needed", "memory", "bytes"),
        Column("to_spare", "to spare", "bytes", signed=True),
        Column("step", "step", "s", importance=1),
        Column("change", "first change, or reason", wraps=True),
    )
    found: list[tuple[Cell, ...]] = []
    for name, question, answers, not_told in rows:
        if question is None or not_told is not None:
            reason = not_told.refusal.reason if not_told else ""
            found.append((name, "", "cannot tell", None, None, None, reason))
            continue
        for each in answers:
            for gpu in each.cell.gpus:
                trial = each.as_said.asked(gpu)
                changes = file_changes(question, each, gpu)
                change = lines_text(changes[0]) if changes else ""
                found.append((name, _where(each, gpu), verdict(trial), *_numbers(trial), change))
    return Sheet((f"{len(rows)} files",), (Table("files", "does each fit?", columns, tuple(found), 2),))


def lines_text(change: FileChange) -> str:
    """Return the changed lines of a file in one line."""
    return ", ".join(f"{key}: {_yaml_word(value)}" for key, value in change.lines.items())


def _yaml_word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _understood(question: Question, answers: Sequence[Answer]) -> Table:
    columns = (Column("part", "part"), Column("value", "understood as", wraps=True), Column("key", "from", wraps=True))
    words = question.understanding.options
    ranks = " or ".join(str(each.ranks) for each in answers)

    def row(part: str, value: str, *options: str) -> tuple[Cell, ...]:
        keys = dict.fromkeys(key for option in options if option in words for key in words[option].keys)
        return (part, value, ", ".join(keys) or "default")

    def said(option: str, otherwise: str) -> str:
        return question.understanding.word(option) or otherwise

    name = said("model", "").removeprefix("hf:")
    known = published.catalogued(name)
    size = f", {units.count(known.parameters)} parameters" if known else ""
    rows = [row("model", f"{name}{size}", "model")]
    if "lora" in words:
        over = f" over {said('quantize', '')} weights" if "quantize" in words else ""
        targets = f" at {said('lora_targets', '')}" if "lora_targets" in words else ""
        rows.append(row("method", f"LoRA r {said('lora', '')}{targets}{over}", "lora", "lora_targets", "quantize"))
    else:
        rows.append(row("method", "full fine-tuning"))
    batch = f"{said('batch', '1')} × {said('grad_accum', '1')} × {ranks} GPU, ctx {int(said('ctx', '0')):,}"
    rows += [
        row("batch", batch, "batch", "grad_accum", "ranks", "ctx"),
        row("precision", said("precision", "fp32"), "precision"),
        row("optimizer", said("optimizer", "foreach"), "optimizer"),
        row("checkpointing", said("checkpoint", "none"), "checkpoint"),
        row("attention", said("attention", "own"), "attention"),
    ]
    if "execution" in words:
        rows.append(row("compiling", "torch.compile", "execution"))
    if "strategy" in words and any(each.ranks > 1 for each in answers):
        offloaded = f", {said('offload', '')} on the host" if "offload" in words else ""
        rows.append(row("sharding", said("strategy", "") + offloaded, "strategy", "reshard", "offload"))
    note = f"{question.understanding.without_effect} other keys change neither memory nor time"
    return Table("understood", "what the file says", columns, tuple(rows), 1, (note,))


def _left_out(understanding: Understanding) -> Table:
    columns = (
        Column("key", "key"),
        Column("line", "line", "number"),
        Column("effect", "in truth"),
        Column("reason", "because", wraps=True),
    )
    rows: list[tuple[Cell, ...]] = [
        (each.key, Measure(each.line, text=str(each.line)), _EFFECTS[each.direction], each.reason)
        for each in understanding.unmodelled
    ]
    for unknown in understanding.unknown:
        near = f"; nearest: {unknown.nearest}" if unknown.nearest else ""
        rows.append((unknown.key, Measure(unknown.line, text=str(unknown.line)), "unknown", f"no known key{near}"))
    return Table("left_out", "what the answer leaves out", columns, tuple(rows), 1)


def _verdicts(answers: Sequence[Answer]) -> Table:
    columns = (
        Column("gpu", "GPU"),
        Column("fits", "verdict"),
        Column("needed", "memory", "bytes"),
        Column("to_spare", "to spare", "bytes", signed=True),
        Column("phase", "peak in", importance=2),
        Column("step", "step", "s", importance=1),
        Column("tokens_per_s", "throughput", "tokens_per_s", importance=3),
        Column("hours", "whole training", "s", importance=2, wide_range=True),
        Column("cost", "cost", "number", importance=2),
    )
    rows = []
    for each in answers:
        for gpu in each.cell.gpus:
            trial, tokens = each.as_said.asked(gpu), each.cell.training_tokens
            whole = each.cell.training(trial, tokens) if tokens else None
            needed, spare, step = _numbers(trial)
            rate = Measure(trial.tokens_per_s) if trial.tokens_per_s else None
            hours = Measure(whole.duration_s.point) if whole else None
            cost = whole.cost if whole else None
            price = Measure(cost.point, text=units.with_digits(cost.point)) if cost else None
            rows.append((_where(each, gpu), verdict(trial), needed, spare, trial.phase, step, rate, hours, price))
    kept = [index for index, _ in enumerate(columns) if any(row[index] is not None for row in rows)]
    timed = any(row[5] is not None for row in rows)
    notes = [INTERVAL] if timed else []
    if any(each.compiled for each in answers):
        notes.append("compiled, as the file says: by torch's own compiler, without a GPU")
    for each in answers:
        untimed = [gpu for gpu in each.cell.gpus if each.as_said.asked(gpu).step is None]
        if untimed and each.ranks > 1:
            notes.append(f"no times of {each.ranks} × {', '.join(untimed)}: their rates or collectives are not known")
    return Table(
        "verdict",
        "simulated and predicted, not measured",
        tuple(columns[index] for index in kept),
        tuple(tuple(row[index] for index in kept) for row in rows),
        1,
        tuple(notes),
    )


def _where(each: Answer, gpu: str) -> str:
    return gpu if each.ranks == 1 else f"{each.ranks} × {gpu}"


def _numbers(trial: Trial) -> tuple[Cell, Cell, Cell]:
    tone = "good" if trial.is_safe else "doubtful" if trial.fits else "bad"
    step = Measure(trial.step.point_s, low=trial.step.low_s, high=trial.step.high_s) if trial.step else None
    return Measure(trial.needed_bytes), Measure(trial.margin_bytes, tone=tone), step  # type: ignore[arg-type]


def _changes(each: Answer, gpu: str, changes: Sequence[FileChange]) -> Table:
    columns = (
        Column("lines", "lines to change", wraps=True),
        Column("needed", "memory", "bytes"),
        Column("to_spare", "to spare", "bytes", signed=True),
        Column("step", "step", "s", importance=1),
        Column("learning", "learns the same", importance=2),
    )
    rows = tuple(
        (lines_text(change), *_numbers(change.trial), "no" if change.trial.relearns else "yes") for change in changes
    )
    title = f"what makes it fit on {_where(each, gpu)}, smallest change first"
    notes = ("computed uncompiled; compiled, each needs less",) if each.compiled else ()
    return Table(f"changes_{gpu}", title, columns, rows, 1, notes)


def _finding(question: Question, each: Answer, gpu: str, changes: Sequence[FileChange]) -> str:
    return " ".join(_sentences(question, each, gpu, changes))


def _sentences(question: Question, each: Answer, gpu: str, changes: Sequence[FileChange]) -> Iterator[str]:
    trial, where = each.as_said.asked(gpu), _where(each, gpu)
    if trial.fits:
        doubt = "" if trial.is_safe else ", which is within the uncertainty"
        yield f"{where}: {verdict(trial)}, with {units.size(trial.margin_bytes)} to spare{doubt}."
    elif trial.is_undecided:
        yield f"{where}: {verdict(trial)}, {undecided(trial)}."
    else:
        yield f"{where}: {verdict(trial)}, {units.size(-trial.margin_bytes)} more are needed in {trial.phase}."
        if causes := largest_causes(each.as_said, MAX_CAUSES):
            yield f"Largest: {', '.join(causes)}."
    turning = ("more", "either") if trial.fits else ("less", "either")
    doubts = [left.key for left in question.understanding.unmodelled if left.direction in turning]
    doubts += [unknown.key for unknown in question.understanding.unknown]
    if doubts:
        yield f"What is left out could turn this: {', '.join(doubts)}."
    if unfinished := unfinished_search(each.cell):
        yield unfinished[0].upper() + unfinished[1:]
    if not trial.is_safe:
        yield f"It fits with {lines_text(changes[0])}." if changes else "No change of this file that was tried fits."
