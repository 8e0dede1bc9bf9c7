"""Draws the dashboard of a recorded run, as it stood four fifths of the way through, as an SVG.

python -m tests.golden.screenshot runs/2026-11-21T01-39-37-time.jsonl docs/dashboard.svg
"""

from __future__ import annotations

import io
import re
import sys
from functools import reduce
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from sysbench.commands.time.live import TimeScreen
from sysbench.log import journal as log
from sysbench.log.events import StepMeasured

COLUMNS, LINES = 96, 22

OFFLINE = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""Rich's picture, less the fonts that it would have a reader's browser fetch."""


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    stream = list(log.read(source))
    steps = [number for number, event in enumerate(stream) if isinstance(event, StepMeasured)]
    shown = stream[: steps[len(steps) * 4 // 5] + 1]
    console = Console(file=io.StringIO(), record=True, width=COLUMNS, height=LINES, force_terminal=True)
    console.print(TimeScreen(reduce(TimeScreen.advance, shown, TimeScreen.initial), shown[-1].at_s))
    target.parent.mkdir(exist_ok=True)
    console.save_svg(str(target), title="sysbench time", code_format=OFFLINE)


if __name__ == "__main__":
    main()
