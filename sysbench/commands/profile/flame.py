"""Flame graph of a profile: step, phases, nested modules and kernels, with widths proportional to time.

The output is an SVG for reports, which merges the layers of the model, or a self-contained HTML page, which can be
zoomed and can show layers separately. Names of kernels and ranges are untrusted: the page receives them as data and
inserts them only as text.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sysbench import units
from sysbench.commands.profile.figures import CLASSES, NEUTRAL, PHASES, ink_on
from sysbench.commands.profile.figures import PROFILE_PALETTE_INK as INK
from sysbench.commands.profile.profiles import NS
from sysbench.errors import UsageError
from sysbench.render import pages
from sysbench.render.theme import elided
from sysbench.trace.summary import KernelClass, ProfileSummary, folded

FORMATS: Final = ("svg", "html")
WIDTH: Final = 1200.0
ROW: Final = 19.0
MARGIN: Final = 10.0
TITLE: Final = 26.0
LEGEND: Final = 26.0
NARROWEST: Final = 0.3
"""Minimum width of a box; narrower ones are invisible and would make the file large."""
_CHARACTER: Final = 6.4
"""Width of a character at 11 px, slightly more than average."""
_WIDE: Final = frozenset("mwMW@%")
_WIDE_CHARACTER: Final = 11.0
_SHORTEST_LABEL: Final = 3
_LONGEST_NAME: Final = 400
"""Maximum length of a recorded name in a tooltip."""
_NOT_KNOWN: Final = "unknown phase"
_FOLDER: Final = "profile_flame"


def write(path: Path, summary: ProfileSummary, title: str) -> None:
    """Write a flame graph as svg or html, depending on the suffix.

    Raises UsageError for any other suffix, and OutputError if the file cannot be written.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise UsageError(f"{path.name} must end in .svg or .html")
    pages.write(path, svg(summary, title) if suffix == "svg" else page(summary, title))


# --- as SVG


@dataclass
class Box:
    """One box of the flame graph, with the boxes inside it."""

    name: str
    colour: str
    recorded: str = ""
    """Full name of a kernel."""
    total_ns: int = 0
    calls: int = 0
    within: dict[object, Box] = field(default_factory=dict)

    def take(self, key: object, name: str, colour: str, total_ns: int, calls: int, recorded: str = "") -> Box:
        """Add time to the inner box with this key, creating the box if necessary, and return it."""
        part = self.within.setdefault(key, Box(name, colour, recorded))
        part.total_ns += total_ns
        part.calls += calls
        return part


def tree(summary: ProfileSummary) -> Box:
    """Return the box of the whole step, which contains phases, modules (layers merged) and kernels."""
    spent = summary.spent
    whole = Box("step", NEUTRAL, "", sum(spent.total_ns), sum(spent.calls))
    columns = zip(spent.phase, spent.module, spent.kernel, spent.total_ns, spent.calls, strict=True)
    for phase, module, kernel, total_ns, calls in columns:
        phase_name = summary.phases[phase]
        tint = PHASES.get(phase_name, NEUTRAL)
        box = whole.take(("phase", phase), phase_name or _NOT_KNOWN, tint, total_ns, calls)
        for part in folded(summary.modules[module]).split(".") if summary.modules[module] else ():
            box = box.take(("module", part), part, tint, total_ns, calls)
        name = summary.names[kernel]
        colour = CLASSES[name.class_in(phase_name)]
        box.take(
            ("kernel", kernel), name.short.removeprefix("aten::"), colour, total_ns, calls, name.name or name.short
        )
    return whole


def svg(summary: ProfileSummary, title: str) -> str:
    """Return the flame graph as SVG, 1200 px wide."""
    whole = tree(summary)
    height = MARGIN * 2 + TITLE + LEGEND + ROW * _depth(whole)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" '
            f'height="{height:g}" font-family="system-ui, sans-serif" font-size="11">',
            f"<title>{_escaped(title)}</title>",
            f'<rect width="{WIDTH:g}" height="{height:g}" fill="#ffffff"/>',
            f'<text x="{MARGIN:g}" y="24" font-size="15" font-weight="600" fill="{INK}">{_escaped(title)}</text>',
            *_boxes(whole, summary.steps, whole.total_ns),
            *_legend(summary, height - MARGIN - LEGEND + 10),
            "</svg>\n",
        ]
    )


def _depth(box: Box) -> int:
    return 1 + max((_depth(part) for part in box.within.values()), default=0)


def _boxes(whole: Box, steps: int, total_ns: int) -> Iterator[str]:
    scale = (WIDTH - 2 * MARGIN) / total_ns if total_ns else 0.0
    waiting = [(whole, MARGIN, 0)]
    while waiting:
        box, x, depth = waiting.pop()
        width = box.total_ns * scale
        if width < NARROWEST:
            continue
        y = MARGIN + TITLE + depth * ROW
        share = units.share(box.total_ns / total_ns) if total_ns else ""
        calls = f"{box.calls / steps:.10g} call{'' if box.calls == steps else 's'}"
        name = (box.recorded or box.name)[:_LONGEST_NAME]
        hover = f"{name}\n{units.seconds(box.total_ns * NS / steps)} per step · {share} · {calls}"
        yield f"<g><title>{_escaped(hover)}</title>"
        yield (
            f'<rect x="{x:.2f}" y="{y:g}" width="{max(width - 0.4, 0.2):.2f}" height="{ROW - 1:g}" rx="1.5" '
            f'fill="{box.colour}"/>'
        )
        label = _label(pages.printable(box.name), width - 6)
        if label:
            yield f'<text x="{x + 3:.2f}" y="{y + 13:g}" fill="{ink_on(box.colour)}">{_escaped(label)}</text>'
        yield "</g>"
        # Phases and modules keep their order, then kernels follow, longest first.
        outer = [part for part in box.within.values() if not part.recorded]
        kernels = [part for part in box.within.values() if part.recorded]
        for part in (*outer, *sorted(kernels, key=lambda part: -part.total_ns)):
            waiting.append((part, x, depth + 1))
            x += part.total_ns * scale


def _label(name: str, room: float) -> str:
    """Shorten a name to the width `room`; empty if fewer than `_SHORTEST_LABEL` characters fit."""
    for length in range(int(room / _CHARACTER), _SHORTEST_LABEL - 1, -1):
        label = elided(name, length)
        if sum(_WIDE_CHARACTER if letter in _WIDE else _CHARACTER for letter in label) <= room:
            return label
    return ""


def _legend(summary: ProfileSummary, y: float) -> Iterator[str]:
    present = set(_classes(summary))
    x = MARGIN
    for name, colour in CLASSES.items():
        if name in present:
            yield f'<rect x="{x:g}" y="{y:g}" width="11" height="11" rx="2" fill="{colour}"/>'
            yield f'<text x="{x + 15:g}" y="{y + 9.5:g}" fill="{INK}">{name}</text>'
            x += 15 + _CHARACTER * len(name) + 16


def _classes(summary: ProfileSummary) -> list[KernelClass]:
    rows = zip(summary.spent.kernel, summary.spent.phase, strict=True)
    return [summary.names[kernel].class_in(summary.phases[phase]) for kernel, phase in rows]


def _escaped(text: str) -> str:
    return html.escape(pages.printable(text))


# --- as an HTML page


def page(summary: ProfileSummary, title: str) -> str:
    """Return the flame graph as an HTML page."""
    spent = summary.spent
    order = list(CLASSES)
    data = {
        "steps": summary.steps,
        "work": "CPU operators" if summary.source == "cpu" else "kernels",
        "phases": [[name or _NOT_KNOWN, PHASES.get(name, NEUTRAL)] for name in summary.phases],
        "modules": [module.split(".") if module else [] for module in summary.modules],
        "names": [
            [name.short.removeprefix("aten::"), name.name[:_LONGEST_NAME] or name.short] for name in summary.names
        ],
        "classes": [[name, colour, ink_on(colour)] for name, colour in CLASSES.items()],
        "spent": {
            "phase": spent.phase,
            "module": spent.module,
            "kernel": spent.kernel,
            "class": [order.index(name) for name in _classes(summary)],
            "ns": spent.total_ns,
            "calls": spent.calls,
        },
    }
    return pages.render(_FOLDER, title=title, data=data)
