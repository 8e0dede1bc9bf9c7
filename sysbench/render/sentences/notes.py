"""Notes: why a cell has no numbers, which model ran, and on how many threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from sysbench import units
from sysbench.command import Kind
from sysbench.log.events import OwnModelFacts, ThreadsProbe
from sysbench.log.kinds import command_of
from sysbench.log.outcomes import EXPECTED, LACK_OF_MEMORY, Outcome, Reason
from sysbench.log.records import AnyCell, CellRecord, ModelRecord, RunRecord
from sysbench.render.sentences.phrases import name_among
from sysbench.render.table import Remark, Word

MAX_DETAIL_CHARACTERS = 240
"""Largest number of characters shown of an error message; the record contains the whole text."""

MAX_DETAILS = 4
"""Largest number of details, all with the same reason, that are said one by one; of more, one is an example."""

_ALIKE: Final[frozenset[Reason]] = LACK_OF_MEMORY | {"over-budget", "no-answer", "stopped", "log-ended"}
"""Reasons whose details differ only in numbers and names of cells."""


def outcomes(record: RunRecord[AnyCell], cells: Sequence[CellRecord] | None = None) -> list[Remark]:
    """Return a note for each reason why some of the cells (default: all cells of the record) have no numbers."""
    without = [cell for cell in (record.cells if cells is None else cells) if cell.outcome != "ok"]
    details: dict[tuple[Outcome, Reason | None], set[str | None]] = {}
    for cell in without:
        details.setdefault((cell.outcome, cell.reason), set()).add(cell.detail)
    grouped: dict[tuple[object, ...], list[CellRecord]] = {}
    for cell in without:
        kind = (cell.outcome, cell.reason)
        is_one = cell.reason in _ALIKE or len(details[kind]) > MAX_DETAILS
        grouped.setdefault((*kind, None if is_one else cell.detail), []).append(cell)
    return [Remark("outcome", _outcome(group, record.cells)) for group in grouped.values()]


def _outcome(cells: Sequence[CellRecord], all_cells: Sequence[CellRecord]) -> str:
    example = max(cells, key=lambda cell: cell.expected_s or 0.0)
    said = f"{name_among(cells, all_cells)}: {reason(example)}"
    same = all(cell.detail == example.detail for cell in cells)
    return said if same else f"{said} (e.g. {name_among([example], all_cells)})"


def damaged_lines(record: RunRecord[AnyCell]) -> Remark:
    """Return a remark that names the damaged lines of the log."""
    numbers = record.damaged_lines
    lines = f"line {numbers[0]}" if len(numbers) == 1 else f"lines {', '.join(map(str, numbers))}"
    cells = "a cell that it belongs to is" if len(numbers) == 1 else "cells that they belong to are"
    return Remark("outcome", f"damaged log: {lines}; {cells} unfinished, all others are whole")


def outcome_word(outcome: Outcome) -> Word:
    """Return an outcome as the text of a table cell."""
    return Word(outcome, "quiet" if outcome in EXPECTED else "bad")


def reason(cell: CellRecord) -> str:
    """Return the outcome of a cell with its detail: `oom: CUDA out of memory …`."""
    if not cell.detail:
        return cell.outcome
    text = " ".join(cell.detail.split())
    return f"{cell.outcome}: {text if len(text) <= MAX_DETAIL_CHARACTERS else f'{text[: MAX_DETAIL_CHARACTERS - 1]}…'}"


SLOW_IMPORT_S = 5.0
"""Imports that take longer than this get a remark, which explains the wait."""


def own_models(record: RunRecord[AnyCell]) -> list[Remark]:
    """Describe each user-defined model of the run: its size, its inputs, its loss, and why FLOPs were not counted.

    Of the built-in model with adapters (LoRA), say how many parameters are trained.
    """
    texts = [
        _describe_own_model(cell.own_model, cell.outcome) if cell.own_model else _describe_adapters(cell)
        for cell in record.cells
    ]
    return [Remark("note", text) for text in dict.fromkeys(texts) if text]


def _describe_adapters(cell: CellRecord) -> str | None:
    model: ModelRecord | None = getattr(cell, "model", None)
    if cell.own_model or model is None or model.trainable_parameters is None or model.frozen_parameters is None:
        return None
    size, rank, targets = (cell.axes.get(name) for name in ("size", "lora", "lora_targets"))
    return (
        f"{size} with LoRA {rank}{f' at {targets}' if targets else ''}: {units.count(model.trainable_parameters)} "
        f"parameters are trained, {units.count(model.frozen_parameters)} are frozen"
    )


def _describe_own_model(model: OwnModelFacts, outcome: Outcome) -> str:
    frozen, quantized = model.parameters - model.trainable_parameters, model.ignored_quantization
    code = model.files[0].path if model.files else None
    built = f"{model.class_name}({model.config_class})" if model.config_class else model.class_name
    name = f"{built} from {PurePath(code).name}" if code else built
    facts = [
        f"{name}: {units.count(model.parameters)} parameters{_describe_dtypes(model)}",
        *([f"{units.count(frozen)} of them frozen"] if frozen else []),
        *([f"its config's quantization ({quantized}) is not applied"] if quantized else []),
        *([f"import took {units.seconds(model.import_s)}"] if model.import_s >= SLOW_IMPORT_S else []),
        f"inputs: {model.inputs}",
        *([f"loss: {model.loss}"] if model.loss else []),
        *([f"FLOPs are unknown: {model.uncounted}"] if model.uncounted and outcome == "ok" else []),
    ]
    return "; ".join(facts)


def _describe_dtypes(model: OwnModelFacts) -> str:
    named = list(model.parameter_dtypes)
    if model.ignored_dtype:
        follow = f"--model-arg dtype={model.ignored_dtype}"
        return f" in {' and '.join(named)}, not in its config's {model.ignored_dtype} ({follow} follows it)"
    return f" in {' and '.join(named)}" if named not in ([], ["float32"]) else ""


def fewer_threads(probe: ThreadsProbe | None, kind: Kind) -> tuple[str, str] | None:
    """Say that a run of a command that takes times uses fewer threads than torch would, and why; else None."""
    models = command_of(kind).models()
    if probe is None or not probe.is_reduced or not models.cell.takes_times:
        return None
    times = ", ".join(f"{units.seconds(mean_s)} on {threads}" for threads, mean_s in probe.mean_s)
    return (
        f"using {probe.threads} of {probe.default} threads, because other processes use some of the cores: "
        f"the same work took {times}",
        f"--threads {probe.default} uses all"
        if "threads" in models.spec.model_fields
        else "close the other processes to use all",
    )


def interference(busy_share: float) -> str:
    """Say during a run that other processes disturb it, which use this share of all cores."""
    return f"other processes are using {units.share(busy_share)} of the CPU: these times will be too long"
