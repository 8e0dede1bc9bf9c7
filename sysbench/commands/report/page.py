"""Reports as a self-contained HTML page, which can be sent, printed, and read on a phone.

The page is readable without JavaScript, which only adds sorting, copying and enlarging. Names, messages and paths from
records are escaped. Figures are SVG drawn by matplotlib, with text kept as text. Because several figures share the
page, the ids in them (clips, markers) are made unique.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.etree import ElementTree

from sysbench import __version__
from sysbench.commands.report.document import Document, Picture
from sysbench.commands.report.wording import MARKS, headlines, pictures_of, simulated_notice
from sysbench.render import pages
from sysbench.render import plots as picture_file
from sysbench.render.csv import csv_text
from sysbench.render.markdown import markdown
from sysbench.render.numbers import FormattedColumn, format_columns, groups, repeated_axes
from sysbench.render.pages import line, printable
from sysbench.render.table import Cell, Measure, Sheet, Table, Word, notes
from sysbench.render.theme import elided

if TYPE_CHECKING:
    from markupsafe import Markup

LARGEST_SVG_BYTES: Final = 400_000
"""Size above which a figure is inserted as pixels: tens of thousands of points make any browser slow."""

_REFERENCE: Final = re.compile(r"url\(#([^)]+)\)")
_LONG_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}")
_FONT: Final = re.compile(r"font: ([^;]*?[\d.]+px) [^;]+")
_DROPPED: Final = frozenset({"metadata", "style"})
"""`style` would apply to the whole page; pictures.css contains the same rules for figures only."""


@dataclass
class Looks:
    """CSS classes for the styles of the figures on a page."""

    classes: dict[str, str] = field(default_factory=dict)

    def of(self, style: str) -> str:
        """Return the CSS class for this style."""
        return self.classes.setdefault(style, f"v{len(self.classes):x}")

    def styles(self) -> Markup:
        """Return the CSS rules of all classes."""
        from markupsafe import Markup

        return Markup("\n".join(f".{name}{{{printable(style)}}}" for style, name in self.classes.items()))


def drawn(content: Picture, number: int, looks: Looks) -> Markup:
    """Return a figure as an HTML element, labelled with its caption; `number` must be unique on the page."""
    from markupsafe import Markup

    markup = picture_file.content(content.draw, "svg")
    if len(markup) <= 2 * LARGEST_SVG_BYTES:
        inlined = inline(markup.decode("utf-8"), f"p{number}-", content.caption, looks)
        if len(inlined) <= LARGEST_SVG_BYTES:
            return Markup(inlined)
    encoded = base64.b64encode(picture_file.content(content.draw, "png")).decode("ascii")
    return Markup('<img src="data:image/png;base64,{}" alt="{}">').format(encoded, line(content.caption))


def inline(svg: str, prefix: str, label: str, looks: Looks) -> str:
    """Convert an SVG file to an element of an HTML page; `prefix` makes its ids unique."""
    root = ElementTree.fromstring(svg)
    names = {name: f"{prefix}{number}" for number, name in enumerate(sorted(_referred(root)))}
    size = root.get("viewBox", "0 0 100 100")
    width = f"--width:{float(size.split()[2]):g}px"
    whole = ElementTree.Element("svg", {"viewBox": size, "style": width, "role": "img", "aria-label": line(label)})
    whole.extend(part for each in root for part in _slimmed(each, names, looks))
    return printable(ElementTree.tostring(whole, encoding="unicode"))


def _referred(root: ElementTree.Element) -> set[str]:
    found: set[str] = set()
    for element in root.iter():
        for key, value in element.items():
            found.update(_REFERENCE.findall(value))
            if _local(key) == "href":
                found.add(value.removeprefix("#"))
    return found


def _slimmed(element: ElementTree.Element, names: dict[str, str], looks: Looks) -> list[ElementTree.Element]:
    """Simplify an SVG element: drop unnecessary attributes, dissolve groups without attributes, omit empty groups."""
    tag, text = _local(element.tag), (element.text or "").strip()
    if tag in _DROPPED:
        return []
    attributes = dict(_attributes(element, names, looks))
    inner = [part for each in element for part in _slimmed(each, names, looks)]
    if tag == "g" and not attributes:
        return inner
    if tag in ("g", "defs") and not inner and not text:
        return []
    slim = ElementTree.Element(tag, attributes)
    slim.text = text
    slim.extend(inner)
    return [slim]


def _attributes(element: ElementTree.Element, names: dict[str, str], looks: Looks) -> Iterator[tuple[str, str]]:
    for key, value in element.items():
        name = _local(key)
        if name == "id":
            if value in names:
                yield "id", names[value]
        elif name == "href":
            yield "href", value if value.startswith("data:") else f"#{names[value.removeprefix('#')]}"
        elif name == "style":
            yield "class", looks.of(_referring(_FONT.sub(r"font: \1 var(--picture-font)", value), names))
        elif name != "space":
            # A hundredth of a point is invisible at any zoom.
            short = _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value)
            yield name, _referring(short, names)


def _referring(value: str, names: dict[str, str]) -> str:
    return _REFERENCE.sub(lambda found: f"url(#{names[found[1]]})", value)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


LONGEST_CELL: Final = 240
"""Longest text shown in a cell, in characters; copies contain the whole text."""
WIDEST_TEXT: Final = 42
"""Characters after which a text continues on another line, as in the style sheet."""
_LINE_END: Final = re.compile(r"[\r\n\t]+")


class ShownCell(NamedTuple):
    """Content of a table cell; `tail` is the uncertainty of its number.

    `tail_width` is the length of the longest tail in the column.
    """

    text: str
    tail: str
    tail_width: int
    classes: str
    value: float | None
    """Sort key: the number in full precision."""


def laid_out(content: Table) -> dict[str, object]:
    """Return the content of a table for the page's template, together with CSV and Markdown for copying."""
    columns = format_columns(content)
    # Numbers are right-aligned, as are whole numbers in columns without a unit.
    rights = [
        each.column.numeric or (bool(each.texts) and all(text.isdigit() for text in each.texts)) for each in columns
    ]
    return {
        "columns": columns,
        "groups": groups(columns),
        # Approximate width of the table, which is scaled down on paper if necessary.
        "characters": sum(
            2 + min(WIDEST_TEXT, max(map(len, (each.column.title, each.symbol, *each.texts)))) for each in columns
        ),
        "rights": rights,
        "rows": _rows(content, columns, rights),
        "notes": notes(content),
        "csv": csv_text(content),
        "markdown": markdown(Sheet((), (content,))).strip(),
    }


def _rows(content: Table, columns: Sequence[FormattedColumn], rights: Sequence[bool]) -> Iterator[list[ShownCell]]:
    tails = [max((len(_parts(text)[1]) for text in each.texts), default=0) for each in columns]
    above: Sequence[Cell] = ()
    for number, cells in enumerate(content.rows):
        repeated = repeated_axes(cells, above[: content.axes - 1])
        texts = [each.texts[number] for each in columns]
        described = zip(cells, texts, tails, rights, strict=True)
        yield [_cell(*each, position < repeated) for position, each in enumerate(described)]
        above = cells


def _cell(cell: Cell, text: str, tail_width: int, right: bool, again: bool) -> ShownCell:
    tone = cell.tone if isinstance(cell, Measure | Word) else "quiet" if cell is None else "plain"
    styles = {"number": right, tone: tone != "plain", "again": again, "wordy": len(text) > WIDEST_TEXT}
    classes = " ".join(name for name, holds in styles.items() if holds)
    if isinstance(cell, Measure):
        return ShownCell(*_parts(text), tail_width, classes, cell.value)
    whole = elided(_LINE_END.sub(" ", text), LONGEST_CELL)
    return ShownCell(whole, "", 0, classes, cell if isinstance(cell, int) else None)


def _parts(text: str) -> tuple[str, str]:
    """Split a text such as `21.4 ± 0.2` into the number and its uncertainty."""
    for mark in (" ± ", " ("):
        number, found, rest = text.partition(mark)
        if found and number:
            return number, found + rest
    return text, ""


FOLDER: Final = "report_page"
MACHINES_NAMED: Final = 3


def render(document: Document) -> str:
    """Render the report as an HTML page."""
    return pages.render(
        FOLDER,
        document=document,
        version=__version__,
        machines=_listed([str(row[0]) for table in document.environment[:1] for row in table.rows]),
        found=document.findings or document.pictures or headlines(document.sections),
        notice=simulated_notice(document),
        headlines=headlines(document.sections),
        marks=MARKS,
        anchors={section.run: section.anchor for section in reversed(document.sections)},
        doubts={section.run: document.doubts(section.run) for section in document.sections},
        numbers={picture.name: number for number, picture in enumerate(pictures_of(document), 1)},
        looks=Looks(),
        drawn=drawn,
        laid_out=laid_out,
        widest_text=WIDEST_TEXT,
    )


def _listed(names: Sequence[str]) -> str:
    """Join names: `this`, `this and that`, `this, that and 3 more`."""
    if len(names) > MACHINES_NAMED:
        names = [*names[: MACHINES_NAMED - 1], f"{len(names) - MACHINES_NAMED + 1} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
