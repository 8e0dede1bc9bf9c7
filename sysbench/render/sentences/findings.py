"""Findings: sentences about the cells of a run, each with the cells that it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from sysbench import cells as axes
from sysbench.log.outcomes import MEASURED, CautionCode, Subject
from sysbench.log.records import CellRecord
from sysbench.render.sentences.phrases import count_phrase, name_cells, namer


@dataclass(frozen=True)
class Finding:
    """A sentence and the cells that it rests on: none if it says that something cannot be decided."""

    text: str
    cells: Sequence[CellRecord]
    is_exclusion: bool = False
    """Whether the sentence explains why these cells have no findings."""
    about: Subject = "times"
    """What the cells must be reliable for."""
    named: frozenset[str] = frozenset()
    """Axes whose values the sentence says for all of its cells, as `ctx` in `the residual stream at ctx 128 takes`."""
    states_origin: bool = False
    """Whether the sentence says that its numbers are predicted or simulated."""


AnyCell = TypeVar("AnyCell", bound=CellRecord)


def reliable(cells: Iterable[AnyCell], subject: Subject = "times") -> list[AnyCell]:
    """Return the cells on which findings about a subject may rest."""
    return [cell for cell in cells if not cell.excluding_cautions(subject)]


def with_setting(found: Iterable[Finding], cells: Sequence[CellRecord]) -> Iterator[Finding]:
    """Put before each sentence what its cells have in common and other finished cells lack, unless it names it.

    Without `fp32: `, a sentence about the only cell without serious cautions would read as if it were about all.
    """
    differing = axes.varying([cell for cell in cells if cell.outcome == "ok"])
    for finding in found:
        said = {*axes.varying(finding.cells), *finding.named, "mode"}  # phases tell the mode
        first = finding.cells[0].axes if finding.cells else {}
        unsaid = (axes.phrase(axis, first.get(axis)) for axis in differing if axis not in said) if first else ()
        yield prefixed(finding, " ".join(filter(None, unsaid)))


def prefixed(finding: Finding, prefix: str) -> Finding:
    """Return the finding with words and a colon before it, or itself if there are no words."""
    return replace(finding, text=f"{prefix}: {finding.text}") if prefix else finding


def exclusions(cells: Sequence[AnyCell], subject: Subject = "times") -> Iterator[Finding]:
    """Yield a sentence that names the measured cells excluded from findings about a subject, and their cautions."""
    by_code: dict[CautionCode, list[AnyCell]] = {}
    for cell in cells:
        for code in cell.excluding_cautions(subject) if cell.outcome in MEASURED else ():
            by_code.setdefault(code, []).append(cell)
    codes_by_cells: dict[tuple[str, ...], list[CautionCode]] = {}
    for code, excluded in by_code.items():
        codes_by_cells.setdefault(tuple(cell.key for cell in excluded), []).append(code)
    if by_code:
        name = namer(cells)
        words = [f"{name_cells(by_code[codes[0]], name)} ({', '.join(codes)})" for codes in codes_by_cells.values()]
        text = f"Excluded from all findings about {subject} because of cautions: {'; '.join(words)}."
        every = {cell.key: cell for found in by_code.values() for cell in found}
        yield Finding(text, tuple(every.values()), True, subject)


def undecided(question: str, cells: Sequence[AnyCell], subject: Subject = "times") -> Finding:
    """Return the answer to a question whose cells are excluded: `… cannot be decided: cautions exclude both cells`."""
    excluded = [cell for cell in cells if cell.excluding_cautions(subject)]
    codes = sorted({code for cell in excluded for code in cell.excluding_cautions(subject)})
    many = count_phrase(len(cells)) if len(excluded) == len(cells) else f"{len(excluded)} of {len(cells)} cells"
    return Finding(f"{question} cannot be decided: cautions exclude {many} ({', '.join(codes)}).", (), about=subject)
