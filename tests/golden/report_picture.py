"""Photographs a section of a report's page, as it is in a window of a browser.

python -m tests.golden.report_picture report.html docs/report.png [SECTION]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.render.browser import browser

WIDTH, HEIGHT = 1240, 730


def main() -> None:
    report, target, *section = sys.argv[1:]
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile), WIDTH, HEIGHT) as window:
        window.resize(WIDTH, HEIGHT)
        window.open(Path(report))
        if section:
            window.run("document.getElementById(arguments[0]).scrollIntoView()", section[0])
        window.settle()
        Path(target).write_bytes(window.screenshot())


if __name__ == "__main__":
    main()
