"""Draws what a command prints in a terminal, as an SVG.

python -m tests.golden.command_picture docs/compare.svg compare latest~1 latest
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.cli.running import answered
from tests.golden.screenshot import OFFLINE

COLUMNS = 96


def main() -> None:
    target, *words = sys.argv[1:]
    printed = answered(*words, COLUMNS=str(COLUMNS), FORCE_COLOR="1").out
    console = Console(file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True)
    console.print(Text.from_ansi(printed))
    console.save_svg(str(Path(target)), title=" ".join(["sysbench", *words]), code_format=OFFLINE)


if __name__ == "__main__":
    main()
