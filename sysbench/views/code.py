"""Lines of code as they are shown: short enough for a table, and still found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from sysbench.events import CodeLine

_PACKAGES = ("sysbench", "torch")
"""Below these a path says where it is by itself."""


def place(stack: Sequence[CodeLine]) -> str | None:
    """`workload/attention.py:88 naive`: the innermost line that is one; None where there is none."""
    line = next((line for line in stack if line.line), None)
    return f"{shortened(line.filename)}:{line.line} {line.name}" if line else None


def shortened(filename: str) -> str:
    """From the package on, which is left out if it is ours; otherwise the last two parts."""
    parts = PurePosixPath(filename.replace("\\", "/")).parts
    for package in _PACKAGES:
        if package in parts[:-1]:
            position = len(parts) - 1 - parts[::-1].index(package)
            return "/".join(parts[position + (package == "sysbench") :])
    return "/".join(parts[-2:])
