"""What is said on a page in sentences: findings with what they rest on, cautions with what they are about, remarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sysbench.commands.report.document import Basis, Document, Finding, GatheredCaution, Origin, Picture, Section
from sysbench.commands.report.wording import headlines
from sysbench.render.pages import LONGEST_TEXT, escaped, line
from sysbench.render.table import Remark

FINDINGS_SHOWN: Final = 6
"""Findings of a section that stand there unfolded."""
LONGEST_POINTER: Final = 200
"""Characters of a caution where a section points to it."""

MARKS: Final[Mapping[Origin, str]] = {
    "measured": "",
    "simulated": ' <strong class="mark">SIMULATED</strong>',
    "mixed": ' <strong class="mark">PARTLY SIMULATED</strong>',
}


@dataclass(frozen=True)
class Anchors:
    """Where on the page things are."""

    sections: Mapping[str, str]
    """The anchors of runs' sections, by the run's name."""
    pictures: Mapping[str, int]
    """Pictures numbered as they stand on the page, by name."""

    @classmethod
    def of(cls, document: Document) -> Anchors:
        """Of a whole document."""
        pictures = [*document.pictures, *(picture for section in document.sections for picture in section.pictures)]
        return cls(
            {section.run: section.anchor for section in reversed(document.sections)},
            {picture.name: number for number, picture in enumerate(pictures, 1)},
        )

    def number(self, picture: Picture) -> int:
        """Of a picture."""
        return self.pictures[picture.name]

    def run(self, name: str) -> str:
        """A run's name, leading to its section."""
        anchor = self.sections.get(name)
        return f'<a href="#{escaped(anchor)}">{line(name)}</a>' if anchor else line(name)


# --- findings


def findings(found: Sequence[Finding], anchors: Anchors) -> Iterator[str]:
    """Sentences, each with what it rests on folded away beneath it; and where there are many, all but the first."""
    if len(found) <= FINDINGS_SHOWN + 1:
        yield from _listed(found, anchors)
        return
    yield from _listed(found[:FINDINGS_SHOWN], anchors)
    yield f'<details class="more"><summary>{len(found) - FINDINGS_SHOWN} more findings</summary>'
    yield from _listed(found[FINDINGS_SHOWN:], anchors)
    yield "</details>"


def _listed(found: Sequence[Finding], anchors: Anchors) -> Iterator[str]:
    if found:
        yield '<ul class="findings">'
        for finding in found:
            yield f"<li><p>{line(finding.text, LONGEST_TEXT)}{MARKS[finding.origin]}</p>"
            yield from _rests_on(finding.rests_on, anchors, "rests on")
            yield "</li>"
        yield "</ul>"


def first_findings(sections: Sequence[Section]) -> Iterator[str]:
    """What each section shows first, with the way there."""
    chosen = headlines(sections)
    if chosen:
        yield '<ul class="findings headlines">'
        for section, found in chosen:
            where = f'<a class="where" href="#{escaped(section.anchor)}">{line(section.title)}</a>'
            for finding in found:
                yield f"<li><p>{line(finding.text, LONGEST_TEXT)}{MARKS[finding.origin]} {where}</p></li>"
        yield "</ul>"


def _rests_on(bases: Sequence[Basis], anchors: Anchors, verb: str) -> Iterator[str]:
    if not bases:
        return
    cells = sum(len(basis.cells) for basis in bases)
    if not cells:
        yield f'<p class="about">{verb} {", ".join(anchors.run(basis.run) for basis in bases)}</p>'
        return
    runs = f" of {len(bases)} runs" if len(bases) > 1 else ""
    yield f"<details><summary>{verb} {cells} cell{'' if cells == 1 else 's'}{runs}</summary>"
    yield "<ul>"
    for basis in bases:
        named = "".join(f"<span>{line(cell)}</span>" for cell in basis.cells)
        yield f'<li>{anchors.run(basis.run)} <span class="cells">{named}</span></li>'
    yield "</ul></details>"


# --- cautions and remarks


def cautions(gathered: Sequence[GatheredCaution], anchors: Anchors) -> Iterator[str]:
    """Every reason to doubt numbers, what to do about it, and which numbers."""
    yield '<ol class="cautions">'
    for number, caution in enumerate(gathered, 1):
        yield f'<li id="_caution_{number}"><p>{line(caution.message, LONGEST_TEXT)}</p>'
        if caution.remedy:
            yield f'<p class="remedy">→ {line(caution.remedy, LONGEST_TEXT)}</p>'
        yield from _rests_on(caution.about, anchors, "about")
        yield "</li>"
    yield "</ol>"


def concerning(section: Section, gathered: Sequence[GatheredCaution]) -> Iterator[str]:
    """Where a section's numbers are doubted: links to the cautions about them."""
    here = [
        f'<li><a href="#_caution_{number}">{_beginning(caution.message)}</a></li>'
        for number, caution in enumerate(gathered, 1)
        if any(basis.run == section.run for basis in caution.about)
    ]
    if here:
        title = "A caution" if len(here) == 1 else f"{len(here)} cautions"
        yield f'<div class="doubts"><p>{title} about these numbers</p><ul>{"".join(here)}</ul></div>'


def _beginning(text: str) -> str:
    return line(text if len(text) <= LONGEST_POINTER else f"{text[: LONGEST_POINTER - 1].rstrip()}…")


def remarks(said: Sequence[Remark]) -> Iterator[str]:
    """Outcomes and notes."""
    if said:
        yield '<ul class="remarks">'
        for remark in said:
            remedy = f' <span class="remedy">→ {line(remark.remedy, LONGEST_TEXT)}</span>' if remark.remedy else ""
            yield f'<li class="{remark.kind}">{line(remark.text, LONGEST_TEXT)}{remedy}</li>'
        yield "</ul>"
