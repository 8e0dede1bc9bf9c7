"""The most informative frame of a stack, and short forms of source lines, for tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Final, Protocol, TypeVar

from sysbench.frames import Owner, owner


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

_MODEL_CALLING: Final = (
    ("sysbench", "lab", "step.py"),
    ("sysbench", "lab", "workload", "own.py"),
    ("sysbench", "lab", "workload", "hugging_face.py"),
    ("sysbench", "lab", "workload", "imports.py"),
)
"""Files of sysbench that only call a model. For a library's model, the library's line is more informative."""
_ALLOCATING: Final = re.compile(
    r"(^|\s)(torch::(unwind|CapturedTraceback|cuda::gather\w*)|c10|at::(detail|_ops|empty\w*))(::|$)"
)
"""C++ functions that every allocation passes through; names of template functions begin with a type."""
_NODE: Final = re.compile(r"torch::autograd::(?:\w+::)*(\w+)(?:<.*>)?::apply$")
"""Nodes of autograd's graph, which carry out backward on threads without Python code."""


def most_informative_frame(stack: Sequence[AnyFrame]) -> AnyFrame | None:
    """Return the most informative frame of a stack that is given innermost first.

    The order of preference is: the first frame of the user's own Python code, the first Python frame, the node of
    autograd's graph, and the first C++ function that is not part of the allocator's call path. None for an empty stack.
    """
    # Calls of some operators pass through this folder, also in the backward pass (PyTorch 2.15 and later).
    stack = [frame for frame in stack if not owner(frame.filename).is_in("torch", "_native")]
    python = [frame for frame in stack if frame.filename.endswith(".py") or frame.filename.startswith("<")]
    for frame in python:
        if _is_informative(owner(frame.filename)):
            return frame
    node = (frame for frame in stack if _NODE.match(_cpp_name(frame.name)))
    native = (frame for frame in stack if not _ALLOCATING.search(_cpp_name(frame.name)))
    return next(chain(python, node, native, stack), None)


def _cpp_name(name: str) -> str:
    """Return the name of a C++ function without unnamed namespaces and parameters."""
    return name.replace("(anonymous namespace)::", "").partition("(")[0]


def _is_informative(file: Owner) -> bool:
    """Return whether a file's lines say what a program does; those of torch's optimizers do."""
    if file.is_library:
        return file.is_in("torch", "optim")
    return not any(file.is_in(*place) for place in _MODEL_CALLING)


def frame_location(stack: Sequence[StackFrame]) -> str | None:
    """Return the most informative frame as text; None for an empty stack.

    Examples: `workload/attention.py:88 naive`, `BmmBackward0`, or a C++ function's name without parameters.
    """
    frame = most_informative_frame(stack)
    if frame is None:
        return None
    name = _cpp_name(frame.name)
    node = _NODE.match(name)
    name = node[1] if node is not None else name
    return f"{shorten_path(frame.filename)}:{frame.line} {name}" if frame.line else name or None


def shorten_path(filename: str) -> str:
    """Shorten a path to the part that begins with `torch` or follows `sysbench`, or else to its last two components."""
    file = owner(filename)
    if file.package == "torch":
        return "/".join(file.path)
    return "/".join(file.path[1:] if file.package == "sysbench" else file.path[-2:])
