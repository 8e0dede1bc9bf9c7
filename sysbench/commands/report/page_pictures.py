"""Pictures on a page: matplotlib's SVG as a part of the page, with its text as text.

Several pictures share one page, so what they name (clips, markers) gets names of its own; what nothing refers to, and
what a browser does not need, is left out. Looks that many elements share become classes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree

from sysbench.commands.report.document import Picture
from sysbench.render import plots as picture_file
from sysbench.render.pages import line, printable

if TYPE_CHECKING:
    from markupsafe import Markup

LARGEST_SVG_BYTES: Final = 400_000
"""A picture that would be larger is put on the page as pixels: tens of thousands of points make any browser slow."""

_REFERENCE: Final = re.compile(r"url\(#([^)]+)\)")
_LONG_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}")
_FONT: Final = re.compile(r"font: ([^;]*?[\d.]+px) [^;]+")
_DROPPED: Final = frozenset({"metadata", "style"})
"""`style` would hold for the whole page; pictures.css says the same for pictures alone."""


@dataclass
class Looks:
    """Styles that pictures of one page have, each with a class."""

    classes: dict[str, str] = field(default_factory=dict)

    def of(self, style: str) -> str:
        """The class of a style."""
        return self.classes.setdefault(style, f"v{len(self.classes):x}")

    def styles(self) -> Markup:
        """As CSS."""
        from markupsafe import Markup

        return Markup("\n".join(f".{name}{{{printable(style)}}}" for style, name in self.classes.items()))


def drawn(content: Picture, number: int, looks: Looks) -> Markup:
    """A drawing as an element of a page, named by its caption; `number` is unique on the page."""
    from markupsafe import Markup

    markup = picture_file.content(content.draw, "svg")
    if len(markup) <= 2 * LARGEST_SVG_BYTES:
        inlined = inline(markup.decode("utf-8"), f"p{number}-", content.caption, looks)
        if len(inlined) <= LARGEST_SVG_BYTES:
            return Markup(inlined)
    encoded = base64.b64encode(picture_file.content(content.draw, "png")).decode("ascii")
    return Markup('<img src="data:image/png;base64,{}" alt="{}">').format(encoded, line(content.caption))


def inline(svg: str, prefix: str, label: str, looks: Looks) -> str:
    """An SVG file as an element of a page; `prefix` keeps its names apart from others'."""
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
    """What a page needs of an element: itself without what says nothing, its parts alone, or nothing."""
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
            # A hundredth of a point is more than an eye sees, however far it zooms in.
            short = _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value)
            yield name, _referring(short, names)


def _referring(value: str, names: dict[str, str]) -> str:
    return _REFERENCE.sub(lambda found: f"url(#{names[found[1]]})", value)


def _local(name: str) -> str:
    return name.rpartition("}")[2]
