"""A report as one HTML page that needs nothing else: it can be handed in, sent round, printed, and read on a phone.

All of it stands in the markup and is there without JavaScript, which only adds sorting, copying and looking closer.
Names, messages and paths from records are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sysbench import __version__
from sysbench.commands.report.document import Document
from sysbench.commands.report.page_pictures import Looks, drawn
from sysbench.commands.report.page_tables import WIDEST_TEXT, laid_out
from sysbench.commands.report.wording import MARKS, headlines, pictures_of, simulated_notice
from sysbench.render import pages

FOLDER: Final = "report_page"
MACHINES_NAMED: Final = 3


def render(document: Document) -> str:
    """The page as text."""
    return pages.render(
        FOLDER,
        document=document,
        version=__version__,
        machines=_listed([str(row[0]) for table in document.environment[:1] for row in table.rows]),
        found=document.findings or document.pictures or any(section.findings for section in document.sections),
        notice=simulated_notice(document),
        headlines=headlines(document.sections),
        marks=MARKS,
        anchors={section.run: section.anchor for section in reversed(document.sections)},
        doubts={section.run: _about(section.run, document) for section in document.sections},
        numbers={picture.name: number for number, picture in enumerate(pictures_of(document), 1)},
        looks=Looks(),
        drawn=drawn,
        laid_out=laid_out,
        widest_text=WIDEST_TEXT,
    )


def _listed(names: Sequence[str]) -> str:
    """`this`, `this and that`, `this, that and 3 more`."""
    if len(names) > MACHINES_NAMED:
        names = [*names[: MACHINES_NAMED - 1], f"{len(names) - MACHINES_NAMED + 1} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _about(run: str, document: Document) -> list[tuple[int, str]]:
    """The cautions about a run's numbers: where each stands among all, and its message."""
    return [
        (number, caution.message)
        for number, caution in enumerate(document.cautions, 1)
        if any(basis.run == run for basis in caution.about)
    ]
