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
from sysbench.commands.profile.figures import CLASS_COLOURS, NEUTRAL_COLOUR, PHASE_COLOURS
from sysbench.commands.profile.profiles import NS
from sysbench.errors import UsageError
from sysbench.render import pages
from sysbench.render.plots import DARK_TEXT as INK
from sysbench.render.plots import text_colour_on
from sysbench.render.theme import elided
from sysbench.trace.summary import ProfileSummary, folded

FORMATS: Final = ("svg", "html")
WIDTH: Final = 1200.0
ROW_HEIGHT: Final = 19.0
MARGIN: Final = 10.0
TITLE_HEIGHT: Final = 26.0
LEGEND_HEIGHT: Final = 26.0
MIN_BOX_WIDTH: Final = 0.3
"""Minimum width of a box; narrower ones are invisible and would make the file large."""
_CHARACTER_WIDTH: Final = 6.4
"""Width of a character at 11 px, slightly more than average."""
_WIDE_CHARACTERS: Final = frozenset("mwMW@%")
_WIDE_CHARACTER_WIDTH: Final = 11.0
_MIN_LABEL_LENGTH: Final = 3
_MAX_NAME_LENGTH: Final = 400
"""Maximum length of a recorded name in a tooltip."""
_UNKNOWN_PHASE: Final = "unknown phase"
_ASSETS: Final = "profile_flame"


def write(path: Path, summary: ProfileSummary, title: str) -> None:
    """Write a flame graph as svg or html, depending on the suffix."""
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
    full_name: str = ""
    """Full name of a kernel."""
    total_ns: int = 0
    calls: int = 0
    children: dict[object, Box] = field(default_factory=dict)

    def add(self, key: object, name: str, colour: str, total_ns: int, calls: int, full_name: str = "") -> Box:
        """Add time to the inner box with this key, creating the box if necessary, and return it."""
        child = self.children.setdefault(key, Box(name, colour, full_name))
        child.total_ns += total_ns
        child.calls += calls
        return child


def step_box(summary: ProfileSummary) -> Box:
    """Return the box of the whole step, which contains phases, modules (layers merged) and kernels."""
    spent = summary.spent
    step = Box("step", NEUTRAL_COLOUR, "", sum(spent.total_ns), sum(spent.calls))
    for phase, module, kernel, name, total_ns, calls in summary.times():
        phase_colour = PHASE_COLOURS.get(phase, NEUTRAL_COLOUR)
        box = step.add(("phase", phase), phase or _UNKNOWN_PHASE, phase_colour, total_ns, calls)
        for part in folded(module).split(".") if module else ():
            box = box.add(("module", part), part, phase_colour, total_ns, calls)
        colour = CLASS_COLOURS[name.class_in(phase)]
        box.add(("kernel", kernel), name.short.removeprefix("aten::"), colour, total_ns, calls, name.name or name.short)
    return step


def svg(summary: ProfileSummary, title: str) -> str:
    step = step_box(summary)
    height = MARGIN * 2 + TITLE_HEIGHT + LEGEND_HEIGHT + ROW_HEIGHT * _depth(step)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" '
            f'height="{height:g}" font-family="system-ui, sans-serif" font-size="11">',
            f"<title>{_escaped(title)}</title>",
            f'<rect width="{WIDTH:g}" height="{height:g}" fill="#ffffff"/>',
            f'<text x="{MARGIN:g}" y="24" font-size="15" font-weight="600" fill="{INK}">{_escaped(title)}</text>',
            *_boxes(step, summary, step.total_ns),
            *_legend(summary, height - MARGIN - LEGEND_HEIGHT + 10),
            "</svg>\n",
        ]
    )


def _per(summary: ProfileSummary) -> str:
    return "per step" if summary.steps_marked else "in the trace"


def _depth(box: Box) -> int:
    return 1 + max((_depth(part) for part in box.children.values()), default=0)


def _boxes(step: Box, summary: ProfileSummary, total_ns: int) -> Iterator[str]:
    steps, per = summary.steps, _per(summary)
    scale = (WIDTH - 2 * MARGIN) / total_ns if total_ns else 0.0
    pending = [(step, MARGIN, 0)]
    while pending:
        box, x, depth = pending.pop()
        width = box.total_ns * scale
        if width < MIN_BOX_WIDTH:
            continue
        y = MARGIN + TITLE_HEIGHT + depth * ROW_HEIGHT
        share = units.share(box.total_ns / total_ns) if total_ns else ""
        calls = f"{box.calls / steps:.10g} call{'' if box.calls == steps else 's'}"
        name = (box.full_name or box.name)[:_MAX_NAME_LENGTH]
        tooltip = f"{name}\n{units.seconds(box.total_ns * NS / steps)} {per} · {share} · {calls}"
        yield f"<g><title>{_escaped(tooltip)}</title>"
        yield (
            f'<rect x="{x:.2f}" y="{y:g}" width="{max(width - 0.4, 0.2):.2f}" height="{ROW_HEIGHT - 1:g}" rx="1.5" '
            f'fill="{box.colour}"/>'
        )
        label = _label(pages.printable(box.name), width - 6)
        if label:
            yield f'<text x="{x + 3:.2f}" y="{y + 13:g}" fill="{text_colour_on(box.colour)}">{_escaped(label)}</text>'
        yield "</g>"
        # Phases and modules keep their order, then kernels follow, longest first.
        outer = [part for part in box.children.values() if not part.full_name]
        kernels = [part for part in box.children.values() if part.full_name]
        for part in (*outer, *sorted(kernels, key=lambda part: -part.total_ns)):
            pending.append((part, x, depth + 1))
            x += part.total_ns * scale


def _label(name: str, width: float) -> str:
    for length in range(int(width / _CHARACTER_WIDTH), _MIN_LABEL_LENGTH - 1, -1):
        label = elided(name, length)
        if sum(_WIDE_CHARACTER_WIDTH if letter in _WIDE_CHARACTERS else _CHARACTER_WIDTH for letter in label) <= width:
            return label
    return ""


def _legend(summary: ProfileSummary, y: float) -> Iterator[str]:
    present = {time.kernel_class for time in summary.times()}
    x = MARGIN
    for name, colour in CLASS_COLOURS.items():
        if name in present:
            yield f'<rect x="{x:g}" y="{y:g}" width="11" height="11" rx="2" fill="{colour}"/>'
            yield f'<text x="{x + 15:g}" y="{y + 9.5:g}" fill="{INK}">{name}</text>'
            x += 15 + _CHARACTER_WIDTH * len(name) + 16


def _escaped(text: str) -> str:
    return html.escape(pages.printable(text))


# --- as an HTML page


def page(summary: ProfileSummary, title: str) -> str:
    spent = summary.spent
    order = list(CLASS_COLOURS)
    data = {
        "steps": summary.steps,
        "per": _per(summary),
        "work": "CPU operators" if summary.source == "cpu" else "kernels",
        "phases": [[name or _UNKNOWN_PHASE, PHASE_COLOURS.get(name, NEUTRAL_COLOUR)] for name in summary.phases],
        "modules": [module.split(".") if module else [] for module in summary.modules],
        "names": [
            [name.short.removeprefix("aten::"), name.name[:_MAX_NAME_LENGTH] or name.short] for name in summary.names
        ],
        "classes": [[name, colour, text_colour_on(colour)] for name, colour in CLASS_COLOURS.items()],
        "spent": {
            "phase": spent.phase,
            "module": spent.module,
            "kernel": spent.kernel,
            "class": [order.index(time.kernel_class) for time in summary.times()],
            "ns": spent.total_ns,
            "calls": spent.calls,
        },
    }
    return pages.render(_ASSETS, title=title, data=data)
