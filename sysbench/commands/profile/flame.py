"""Flame graph of a profile: step, phases, nested modules and kernels, with widths proportional to time.

The output is a self-contained HTML page, which can be zoomed and can show layers separately. Names of kernels and
ranges are untrusted: the page receives them as data and inserts them only as text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sysbench.commands.profile.figures import CLASS_COLOURS, NEUTRAL_COLOUR, PHASE_COLOURS
from sysbench.render import pages
from sysbench.render.plots import text_colour_on
from sysbench.trace.summary import ProfileSummary

_MAX_NAME_LENGTH: Final = 400
"""Maximum length of a recorded name in a tooltip."""
_UNKNOWN_PHASE: Final = "unknown phase"
_ASSETS: Final = "profile_flame"


def write(path: Path, summary: ProfileSummary, title: str) -> None:
    pages.write(path, page(summary, title))


def page(summary: ProfileSummary, title: str) -> str:
    spent = summary.spent
    order = list(CLASS_COLOURS)
    data = {
        "steps": summary.steps,
        "per": "per step" if summary.steps_marked else "in the trace",
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
