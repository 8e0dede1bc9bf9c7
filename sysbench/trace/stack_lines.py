"""Short forms of source lines, and the most informative line of a stack, for tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final, Protocol, TypeVar

_PACKAGES = ("sysbench", "torch")
"""Directories that can be omitted from a path: the rest is unambiguous."""


class Line(Protocol):
    """A frame of a stack."""

    @property
    def filename(self) -> str:
        """Return the recorded file name; `??` for a C++ function without debugging information."""

    @property
    def line(self) -> int:
        """Return the line number; 0 if unknown."""

    @property
    def name(self) -> str:
        """Return the name of the function; in C++ with parameter types."""


AnyLine = TypeVar("AnyLine", bound=Line)

_LIBRARY: Final = re.compile(r"(^|/)(site-packages|dist-packages|torch|lib/python[\d.]*)/|^<frozen")
_OURS: Final = re.compile(r"(^|/)(sysbench|torch/optim)/")
"""Lines of torch's optimizers are more informative than the call of `step`."""
_DRIVING: Final = re.compile(r"(^|/)sysbench/(lab|workload)/(step|workload/(own|hugging_face|imports))\.py$")
"""Lines of sysbench that only call a model; if a library made the model, the library's line is more informative."""
_ALLOCATING: Final = re.compile(r"(torch::(unwind|CapturedTraceback)|c10|at::(detail|_ops|empty\w*))\b")
"""C++ functions that every allocation passes through."""


def telling(stack: Sequence[AnyLine]) -> AnyLine | None:
    """Return the most informative frame of a stack, given innermost first.

    This is the first frame of the user's own Python code; otherwise the first Python frame; otherwise the first C++
    function that is not part of the allocator's call path. None for an empty stack.
    """
    python = [frame for frame in stack if frame.filename.endswith(".py") or frame.filename.startswith("<")]
    for frame in python:
        filename = frame.filename.replace("\\", "/")
        if not _DRIVING.search(filename) and (_OURS.search(filename) or not _LIBRARY.search(filename)):
            return frame
    native = (frame for frame in stack if not _ALLOCATING.match(frame.name))
    return next(iter(python), None) or next(native, None) or next(iter(stack), None)


def place(stack: Sequence[Line]) -> str | None:
    """`workload/attention.py:88 naive`, or a C++ function's name without its parameters; None for an empty stack."""
    frame = telling(stack)
    if frame is None:
        return None
    name = frame.name.replace("(anonymous namespace)", "").partition("(")[0]
    return f"{shortened(frame.filename)}:{frame.line} {name}" if frame.line else name or None


def shortened(filename: str) -> str:
    """Shorten a path: keep it from the package on, without our own package's name, or keep the last two parts."""
    parts = PurePosixPath(filename.replace("\\", "/")).parts
    for package in _PACKAGES:
        if package in parts[:-1]:
            position = len(parts) - 1 - parts[::-1].index(package)
            return "/".join(parts[position + (package == "sysbench") :])
    return "/".join(parts[-2:])
