"""The most informative frame of a stack, and short forms of source lines, for tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final, Protocol, TypeVar

_PACKAGES = ("sysbench", "torch")
"""Packages whose files are shown by their path within the package, which is unambiguous."""


class StackFrame(Protocol):
    """One frame of a stack."""

    @property
    def filename(self) -> str:
        """Return the recorded file name; `??` for a C++ function without debugging information."""

    @property
    def line(self) -> int:
        """Return the line number; 0 if unknown."""

    @property
    def name(self) -> str:
        """Return the name of the function; C++ names include parameter types."""


AnyFrame = TypeVar("AnyFrame", bound=StackFrame)

_LIBRARY: Final = re.compile(r"(^|/)(site-packages|dist-packages|torch|lib/python[\d.]*)/|^<frozen")
_NEVER_LIBRARY: Final = re.compile(r"(^|/)(sysbench|torch/optim)/")
"""Files that are never treated as library code. A line in torch's optimizers is more informative than the call of
`step`."""
_ROUTING: Final = re.compile(r"(^|/)torch/_native/")
"""Files that every call of some operators passes through, also in the backward pass (PyTorch 2.15 and later)."""
_MODEL_CALLING: Final = re.compile(r"(^|/)sysbench/(lab|workload)/(step|workload/(own|hugging_face|imports))\.py$")
"""Files of sysbench that only call a model. For a library's model, the library's line is more informative."""
_ALLOCATING: Final = re.compile(r"(torch::(unwind|CapturedTraceback)|c10|at::(detail|_ops|empty\w*))\b")
"""C++ functions that every allocation passes through."""


def most_informative_frame(stack: Sequence[AnyFrame]) -> AnyFrame | None:
    """Return the most informative frame of a stack that is given innermost first.

    The order of preference is: the first frame of the user's own Python code, the first Python frame, and the first C++
    function that is not part of the allocator's call path. None for a stack without any frame that says something.
    """
    stack = [frame for frame in stack if not _ROUTING.search(frame.filename)]
    python = [frame for frame in stack if frame.filename.endswith(".py") or frame.filename.startswith("<")]
    for frame in python:
        filename = frame.filename.replace("\\", "/")
        if not _MODEL_CALLING.search(filename) and (_NEVER_LIBRARY.search(filename) or not _LIBRARY.search(filename)):
            return frame
    native = (frame for frame in stack if not _ALLOCATING.match(frame.name))
    return next(iter(python), None) or next(native, None) or next(iter(stack), None)


def frame_location(stack: Sequence[StackFrame]) -> str | None:
    """Return the most informative frame as text; None for an empty stack.

    Examples: `workload/attention.py:88 naive`, or a C++ function's name without parameters.
    """
    frame = most_informative_frame(stack)
    if frame is None:
        return None
    name = frame.name.replace("(anonymous namespace)", "").partition("(")[0]
    return f"{shorten_path(frame.filename)}:{frame.line} {name}" if frame.line else name or None


def shorten_path(filename: str) -> str:
    """Shorten a path to the part that begins with `torch` or follows `sysbench`, or else to its last two components."""
    parts = PurePosixPath(filename.replace("\\", "/")).parts
    for package in _PACKAGES:
        if package in parts[:-1]:
            position = len(parts) - 1 - parts[::-1].index(package)
            return "/".join(parts[position + (package == "sysbench") :])
    return "/".join(parts[-2:])
