"""Pictures on a page: matplotlib's SVG as a part of the page, with its text as text.

Several pictures share one page, so what they name (clips, markers) gets names of its own; what nothing refers to, and
what a browser does not need, is left out. Looks that many elements share become classes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree

from sysbench.commands.report.document import Picture
from sysbench.render import plots as picture_file
from sysbench.render.pages import LONGEST_TEXT, escaped, line, printable

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

    def styles(self) -> str:
        """As CSS."""
        return "\n".join(f".{name}{{{printable(style)}}}" for style, name in self.classes.items())


def figure(content: Picture, number: int, looks: Looks, mark: str = "") -> str:
    """A picture with its caption; `number` is unique on the page, `mark` is markup before the caption."""
    name = escaped(content.name)
    return (
        f'<figure id="_picture_{name}"><div class="picture">{_drawn(content, number, looks)}</div>'
        f"<figcaption><span>Figure {number}.{mark} {line(content.caption, LONGEST_TEXT)}</span></figcaption></figure>"
    )


def _drawn(content: Picture, number: int, looks: Looks) -> str:
    """The drawing itself as markup, named by its caption."""
    drawn = picture_file.content(content.draw, "svg")
    if len(drawn) > 2 * LARGEST_SVG_BYTES:
        return _pixels(content)
    markup = inline(drawn.decode("utf-8"), f"p{number}-", content.caption, looks)
    return markup if len(markup) <= LARGEST_SVG_BYTES else _pixels(content)


def _pixels(content: Picture) -> str:
    encoded = base64.b64encode(picture_file.content(content.draw, "png")).decode("ascii")
    return f'<img src="data:image/png;base64,{encoded}" alt="{line(content.caption)}">'


def inline(svg: str, prefix: str, label: str, looks: Looks) -> str:
    """An SVG file as an element of a page; `prefix` keeps its names apart from others'."""
    root = ElementTree.fromstring(svg)
    names = {name: f"{prefix}{number}" for number, name in enumerate(sorted(_referred(root)))}
    size = root.get("viewBox", "0 0 100 100")
    inner = "".join("".join(_element(each, names, looks)) for each in root)
    return (
        f'<svg viewBox="{escaped(size)}" style="--width:{float(size.split()[2]):g}px" role="img" '
        f'aria-label="{line(label)}">{inner}</svg>'
    )


def _referred(root: ElementTree.Element) -> set[str]:
    found: set[str] = set()
    for element in root.iter():
        for key, value in element.items():
            found.update(_REFERENCE.findall(value))
            if _local(key) == "href":
                found.add(value.removeprefix("#"))
    return found


def _element(element: ElementTree.Element, names: dict[str, str], looks: Looks) -> Iterator[str]:
    tag = _local(element.tag)
    if tag in _DROPPED:
        return
    attributes = "".join(f' {key}="{escaped(value)}"' for key, value in _attributes(element, names, looks))
    inner = [part for each in element for part in _element(each, names, looks)]
    text = (element.text or "").strip()
    if tag == "g" and not attributes:
        yield from inner
    elif inner or text:
        yield f"<{tag}{attributes}>{escaped(text)}"
        yield from inner
        yield f"</{tag}>"
    elif tag not in ("g", "defs"):
        yield f"<{tag}{attributes}/>"


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
