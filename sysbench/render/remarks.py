"""What has to be said beside the numbers: why a cell has none, and why one should be doubted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sysbench import cells as axes
from sysbench.log.records import AnyCell, CellRecord, RunRecord
from sysbench.render.table import Remark

LONGEST_DETAIL = 240
"""Characters of an error that are shown; all of it is in the record."""

NAMED = 4
"""As many cells are named one by one; of more only the first ones are, and the rest are counted."""

_NUMBER = re.compile(r"[\d.,]+")


def outcomes(record: RunRecord[AnyCell]) -> list[Remark]:
    """Why cells have no numbers, those with the same reason together."""
    grouped: dict[str, list[tuple[CellRecord, str]]] = {}
    for cell in record.cells:
        if cell.outcome != "ok":
            text = reason(cell)
            # One reason may name other bytes for every cell.
            grouped.setdefault(_NUMBER.sub("", text), []).append((cell, text))
    return [Remark("outcome", _together(group, record.cells)) for group in grouped.values()]


def reason(cell: CellRecord) -> str:
    """How a cell ended, with what was said of it: `oom: CUDA out of memory …`."""
    return cell.outcome + (f": {_clipped(cell.detail)}" if cell.detail else "")


def cautions(record: RunRecord[AnyCell]) -> list[Remark]:
    """Every doubt, those with the same remedy together."""
    grouped: dict[tuple[str, str], list[tuple[CellRecord, str]]] = {}
    for cell in record.cells:
        for caution in cell.cautions:
            grouped.setdefault((caution.code, caution.remedy), []).append((cell, caution.message))
    return [Remark("caution", _together(doubts, record.cells), remedy) for (_, remedy), doubts in grouped.items()]


def which(cells: Sequence[CellRecord], everything: Sequence[CellRecord]) -> str:
    """Names cells by what sets them apart from the other cells of the run; all of them are `every cell`."""
    if len(cells) == len(everything) > 1:
        return "every cell"
    shown = cells if len(cells) <= NAMED else cells[: NAMED - 1]
    names = ", ".join(_name(cell, everything) for cell in shown)
    return names if len(shown) == len(cells) else f"{names} and {len(cells) - len(shown)} more cells"


def _together(said: Sequence[tuple[CellRecord, str]], everything: Sequence[CellRecord]) -> str:
    """Several cells of which much the same is said, in one sentence: that of the first."""
    cells = [cell for cell, _ in said]
    text = said[0][1]
    if any(other != text for _, other in said):
        text = f"{text} ({_name(cells[0], everything)}; the others alike)"
    return f"{which(cells, everything)}: {text}"


def _name(cell: CellRecord, everything: Sequence[CellRecord]) -> str:
    return axes.label(cell.axes, axes.varying(axes.axes_of(everything)))


def _clipped(detail: str) -> str:
    text = " ".join(detail.split())
    return text if len(text) <= LONGEST_DETAIL else f"{text[: LONGEST_DETAIL - 1]}…"
