"""A profiler's recording in columns, the same for torch (Kineto) and for Nsight Systems.

Readers (`sysbench.trace.readers`) build a `Trace`; attribution, tables and pictures are computed from it.
Columns are numpy arrays of one length per class; times are whole nanoseconds since the first of them, so that
totals can be compared to the last digit. Names are kept once, and columns hold their index.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

NONE = -1
"""In a column of integers: not known."""

KERNEL, COPY, SET = 0, 1, 2
"""Kinds of device work: a kernel, a memory copy, memory set to a value."""


@dataclass(frozen=True)
class DeviceWork:
    """Work on devices: kernels, copies, sets. Empty for a CPU-only trace."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    """Index into `Recorded.names`."""
    kind: Integers
    """KERNEL, COPY or SET."""
    device: Integers
    stream: Integers
    correlation: Integers
    """The correlation number of the runtime call that launched it; NONE if not recorded."""
    launch_shape: Integers
    """Index into `Recorded.launch_shapes`; NONE for copies and sets, and where it was not recorded."""
    bytes: Integers
    """Copied or set; NONE for kernels."""


@dataclass(frozen=True)
class Launches:
    """Calls into the driver or the runtime that put work on a device."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    thread: Integers
    """An index that is the same for the same thread in `Launches`, `Operators` and `Ranges`."""
    correlation: Integers


@dataclass(frozen=True)
class Operators:
    """Operators of PyTorch (`aten::mm`, `SoftmaxBackward0`), as the host called them; nested by time in a thread."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    thread: Integers
    sequence: Integers
    """Autograd's number: a backward operator has that of the forward operator whose gradient it is; NONE if none."""
    forward_thread: Integers
    """For backward operators, the index of the thread that ran the forward operator; NONE or itself otherwise."""
    shapes: Integers
    """Index into `Recorded.names` of the inputs' shapes as written (`[[4, 128], [128, 64]]`); NONE if not recorded."""


@dataclass(frozen=True)
class Ranges:
    """Stretches that the program named itself: NVTX ranges, `record_function`, `user_annotation`; nested by time."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    thread: Integers


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One process on one machine, as a profiler saw it: everything but what happened."""

    title: str
    """The file's name, without its directory."""
    format: Literal["kineto", "nsys"]
    names: tuple[str, ...]
    """Names as recorded, demangled where the profiler did that; they are untrusted and must be shown escaped."""
    launch_shapes: Integers
    """(shapes, 6): a grid, in blocks, and a block, in threads; none of them twice."""
    origin_ns: int
    """The file's time at the moment that is zero here."""
    devices: tuple[str, ...] = ()
    """Names of the hardware by index; empty where the file does not tell."""
    rank: int | None = None
    """Rank in a distributed run; None where the file does not tell."""
    remarks: tuple[str, ...] = field(default=())
    """Defects of the file and how it was read nonetheless: `cut off at byte 1,048,576`; one line each."""


@dataclass(frozen=True, kw_only=True)
class Trace(Recorded):
    """The whole of it, in columns."""

    work: DeviceWork
    launches: Launches
    operators: Operators
    ranges: Ranges


def place(part: type, column: str) -> int:
    """Where a column stands among those of a part, and of tables that hold what the part does."""
    return [each.name for each in fields(part)].index(column)
