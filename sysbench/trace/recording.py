"""A profiler's recording in columns, in one form for torch (Kineto) and Nsight Systems.

Readers (`sysbench.trace.readers`) build a `Trace`; attribution, tables and figures are computed from it. Columns are
numpy arrays, of equal length within a class; times are whole nanoseconds since the first one, so that totals are exact.
Names are stored once, and columns hold their index.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

NONE = -1
"""Missing value in a column of integers."""

KERNEL, COPY, SET = 0, 1, 2
"""Kinds of device work: a kernel, a memory copy, a memory set."""


@dataclass(frozen=True)
class DeviceWork:
    """Work on devices: kernels, copies and sets. Empty for a CPU-only trace."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    """Index into `Recorded.names`."""
    kind: Integers
    """KERNEL, COPY or SET."""
    device: Integers
    stream: Integers
    correlation: Integers
    """Correlation number of the runtime call that launched it; NONE if not recorded."""
    launch_shape: Integers
    """Index into `Recorded.launch_shapes`; NONE for copies and sets, and if not recorded."""
    bytes: Integers
    """Bytes copied or set; NONE for kernels."""


@dataclass(frozen=True)
class Launches:
    """Calls to the driver or the runtime that launch work on a device."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    thread: Integers
    """Thread index, common to `Launches`, `Operators` and `Ranges`."""
    correlation: Integers


@dataclass(frozen=True)
class Operators:
    """PyTorch operators (`aten::mm`, `SoftmaxBackward0`) as called on the host; nested by time within a thread."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    thread: Integers
    sequence: Integers
    """Autograd's sequence number: a backward operator has that of its forward operator; NONE if there is none."""
    forward_thread: Integers
    """Index of the thread that ran the forward operator, for backward operators; NONE or its own thread otherwise."""
    shapes: Integers
    """Index into `Recorded.names` of the input shapes as written (`[[4, 128], [128, 64]]`); NONE if not recorded."""


@dataclass(frozen=True)
class Ranges:
    """Ranges named by the program: NVTX ranges, `record_function`, `user_annotation`; nested by time."""

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    thread: Integers


KERNEL_RAN, CALLED, HOST_RAN = 0, 1, 2
"""Kinds of rows of `Collectives`: a kernel, the call that starts a collective (`c10d::allreduce_`), or a collective
that runs on a thread of the host (`gloo:all_reduce`)."""


@dataclass(frozen=True)
class Collectives:
    """Collectives of torch.distributed and the calls that start them, with their arguments.

    Every row stands in one of the other tables, too. NONE stands for what was not recorded.
    """

    start_ns: Integers
    duration_ns: Integers
    name: Integers
    source: Integers
    """KERNEL_RAN, CALLED or HOST_RAN."""
    correlation: Integers
    """Correlation number of a kernel's launch."""
    collective: Integers
    """Index into `Recorded.names` of the collective's name according to its arguments: `_allgather_base`."""
    in_elements: Integers
    """Elements of this rank's input."""
    out_elements: Integers
    dtype: Integers
    """Index into `Recorded.names`: `BFloat16`."""
    group_size: Integers
    group: Integers
    """Index into `Recorded.names` of the process group's name."""
    ranks: Integers
    """Index into `Recorded.names` of the process group's ranks, as written: `[0, 1]`."""
    sequence: Integers
    """Number of the collective within its process group, the same on all ranks."""


@dataclass(frozen=True)
class ProcessGroup:
    """A process group of torch.distributed, as the header of a trace lists it."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One process on one machine as a profiler recorded it: everything except the events."""

    title: str
    """Name of the file, without its directory."""
    format: Literal["kineto", "nsys"]
    names: tuple[str, ...]
    """Names as recorded, demangled if the profiler does so; they are untrusted and must be escaped when shown."""
    launch_shapes: Integers
    """(shapes, 6): distinct pairs of a grid, in blocks, and a block, in threads."""
    origin_ns: int
    """Time in the file that corresponds to zero here."""
    devices: tuple[str, ...] = ()
    """Names of the devices by index; empty if the file does not contain them."""
    rank: int | None = None
    """Rank in a distributed run; None if the file does not contain it."""
    world_size: int | None = None
    """Number of ranks of the run; None if the file does not contain it."""
    groups: tuple[ProcessGroup, ...] = ()
    """Process groups that this rank belongs to; empty if the file does not list them."""
    host: str | None = None
    """Name of the host that recorded it; None if the file does not contain it."""
    clock_ns: int = 0
    """Time on the host's clock that corresponds to zero in the file."""
    predicted: bool = False
    """Whether nothing of it was recorded: it was worked out, for a device that was not there."""
    remarks: tuple[str, ...] = field(default=())
    """Defects of the file and how they were handled: `cut off at byte 1,048,576`; one line each."""


@dataclass(frozen=True, kw_only=True)
class Trace(Recorded):
    """A complete recording in columns."""

    work: DeviceWork
    launches: Launches
    operators: Operators
    ranges: Ranges


def place(part: type, column: str) -> int:
    """Return the position of a column among those of a part, and of tables with the same columns."""
    return [each.name for each in fields(part)].index(column)
