"""Remarks about cells: why a cell has no numbers, or why its numbers are doubtful."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from sysbench import cells as axes
from sysbench import units
from sysbench.log.events import OwnModelFacts
from sysbench.log.outcomes import EXPECTED, Outcome
from sysbench.log.records import AnyCell, CellRecord, ModelRecord, RunRecord
from sysbench.render.findings import join_words
from sysbench.render.sentences.cautions import alike, say
from sysbench.render.table import Remark, Word

MAX_DETAIL_CHARACTERS = 240
"""Largest number of characters shown of an error message; the record contains the whole text."""

MAX_NAMED_CELLS = 4
"""Largest number of cells that are all named; if there are more, the remaining ones are counted."""

_NUMBER = re.compile(r"[\d.,]+")


def outcomes(record: RunRecord[AnyCell], cells: Sequence[CellRecord] | None = None) -> list[Remark]:
    """Return a remark for each reason why some of the cells (default: all cells of the record) have no numbers."""
    grouped: dict[str, list[tuple[CellRecord, str]]] = {}
    for cell in record.cells if cells is None else cells:
        if cell.outcome != "ok":
            text = reason(cell)
            # The same reason may contain different byte counts for every cell.
            grouped.setdefault(_NUMBER.sub("", text), []).append((cell, text))
    return [Remark("outcome", _combine(group, record.cells)) for group in grouped.values()]


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


def cautions(record: RunRecord[AnyCell]) -> list[Remark]:
    """Return the cautions of all cells as remarks; cautions that differ only in numbers share one."""
    differing = axes.varying(record.cells)
    remarks = []
    for group in alike((cell, caution) for cell in record.cells for caution in cell.cautions):
        named = name_cells([cell for cell, _ in group], record.cells)
        said = say(group, lambda cell: axes.label(cell, differing))
        remarks.append(Remark("caution", f"{named}: {said}", group[0][1].remedy))
    return remarks


def name_cells(cells: Sequence[CellRecord], all_cells: Sequence[CellRecord]) -> str:
    """Name cells by the axes in which the cells of the run differ; `every cell` if these are all cells of the run.

    Cells that are all those with certain values of an axis are named by the values: `flex and flash-attn`.
    """
    if len(cells) == len(all_cells) > 1:
        return "every cell"
    differing = axes.varying(all_cells)
    for axis in differing if len(cells) > 1 else ():
        values = axes.values_along(cells, axis)
        if len(values) <= MAX_NAMED_CELLS and sum(cell.axis_value(axis) in values for cell in all_cells) == len(cells):
            return join_words([axes.phrase(axis, value) for value in values])
    shown = cells if len(cells) <= MAX_NAMED_CELLS else cells[: MAX_NAMED_CELLS - 1]
    names = ", ".join(axes.label(cell, differing) for cell in shown)
    return names if len(shown) == len(cells) else f"{names} and {len(cells) - len(shown)} more cells"


def _combine(messages: Sequence[tuple[CellRecord, str]], all_cells: Sequence[CellRecord]) -> str:
    cells = [cell for cell, _ in messages]
    text = messages[0][1]
    if any(other != text for _, other in messages):
        text = f"{text} (e.g. {name_cells(cells[:1], all_cells)})"
    return f"{name_cells(cells, all_cells)}: {text}"
