"""The summary of a profile: everything that its tables and pictures are made of, bounded in size.

Times are whole nanoseconds over all the steps that were profiled, so that totals can be compared to the last digit;
`steps` says over how many. Modules and kernels are referred to by their position in `modules` and `names`.
"""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import model_validator

from sysbench.spec.frozen import Frozen, of_one_length
from sysbench.spec.quantities import Amount, Bytes, Count, Finite, Flops, Nanoseconds, PerSecond, Size

KernelClass = Literal[
    "matmul",
    "attention",
    "softmax",
    "normalisation",
    "elementwise",
    "reduction",
    "embedding",
    "permutation",
    "quantisation",
    "optimizer",
    "copy",
    "communication",
    "other",
]
"""Classes of kernels. `attention` is fused attention: matrix products and softmax in one kernel. `permutation` reorders
sparse features and experts' tokens; `quantisation` changes number formats by scales; `other` is all the rest."""

ProfileSource = Literal["device", "cpu"]
"""device: kernels, as they ran on a device. cpu: operators, by the time that they took themselves on the host."""

NO_PHASE = ""
"""The phase of work that nothing assigns to a phase."""

EVERYWHERE = ""
"""The path of the model as a whole."""

STEP = "step"
"""The range that is everything."""

_NUMBER = re.compile(r"(^|\.)\d+(?=\.|$)")


def folded(path: str) -> str:
    """`layers.*.attention`, which stands for every layer, for `layers.3.attention`."""
    return _NUMBER.sub(r"\1*", path)


def ancestry(path: str) -> list[str]:
    """A module with those around it, the outermost first: `layers`, `layers.3`, `layers.3.attention`."""
    parts = path.split(".") if path else []
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


class KernelName(Frozen):
    """One kernel, or on the CPU one operator."""

    name: str
    """The name as recorded."""
    short: str
    """The name as shown: without uninformative template arguments."""
    kernel_class: KernelClass
    placed: bool
    """False where no phrase knows the name, and the class is `other` for want of a better one."""
    precision: str | None
    """The number format that it multiplies, by its name: `tf32`, `bf16`; None where the name does not say."""

    def class_in(self, phase: str) -> KernelClass:
        """Its class in a phase: elementwise kernels and reductions within the optimizer are the optimizer's."""
        if phase == "optimizer" and self.kernel_class in ("elementwise", "reduction"):
            return "optimizer"
        return self.kernel_class


class KernelTimeColumns(Frozen):
    """Where the time went: one row for every kernel launched by a module in a phase; columns of one length."""

    phase: list[Count]
    """Position in `phases`."""
    module: list[Count]
    """Position in `modules`: the innermost one, by its whole path."""
    kernel: list[Count]
    """Position in `names`."""
    total_ns: list[Nanoseconds]
    calls: list[Count]

    @model_validator(mode="after")
    def _rows(self) -> Self:
        return of_one_length(self, *type(self).model_fields)


class KernelStatistics(Frozen):
    """One kernel within one range, over all steps."""

    range: str
    """`step` for all of it, a phase (`forward`), modules with everything below them (`layers.*.attention`), or those in
    a phase (`forward/layers.*.attention`)."""
    kernel: Count
    total_ns: Nanoseconds
    calls: Count
    mean_ns: Amount
    median_ns: Amount
    min_ns: Nanoseconds
    max_ns: Nanoseconds
    std_ns: Amount
    """Sample standard deviation; 0 for one call."""
    grid: tuple[Count, Count, Count] | None
    """Blocks, where all calls had the same; None where they differ or were not recorded."""
    block: tuple[Count, Count, Count] | None
    """Threads in a block, likewise."""
    launch_shapes: Count
    """How many different pairs of grid and block there were; 0 where none was recorded."""


class OperatorStatistics(Frozen):
    """One operator of PyTorch, over all steps."""

    name: str
    shapes: str | None
    """Shapes of its inputs, as written; None for operators with any inputs together."""
    calls: Count
    self_host_ns: Nanoseconds
    total_host_ns: Nanoseconds
    """Host time including callees; recursive calls count once."""
    self_device_ns: Nanoseconds
    total_device_ns: Nanoseconds


class CopyStatistics(Frozen):
    """Memory copied or set, of one kind, over all steps."""

    name: str
    calls: Count
    total_ns: Nanoseconds
    bytes: Bytes | None
    """None where the sizes were not recorded."""


LAUNCH_BOUND_SHARE = 0.2
"""Share of a step spent waiting for the host from which on the step is launch-bound."""


class DeviceUse(Frozen):
    """How well the device was kept busy. Absent from a profile of the CPU."""

    window_ns: Nanoseconds
    """From the beginning of each step until both its host and its device are done with it."""
    busy_ns: Nanoseconds
    """How much of the window at least one kernel or copy was running."""
    work_ns: Nanoseconds
    """Durations of everything that ran, added up: more than `busy_ns` where streams overlap."""
    waiting_ns: Nanoseconds
    """Idle time before the next kernel had even been launched: the device waited for the host."""
    launches: Count
    launch_ns: Nanoseconds
    """Host time in launch calls."""
    queue_median_ns: Finite | None
    """From the launch of a kernel to its start: small where the device keeps up with the host."""
    streams: Count

    @property
    def launch_bound(self) -> bool:
        """Whether the device waits for the host for so much of the step that the host sets the pace."""
        return self.waiting_ns > LAUNCH_BOUND_SHARE * self.window_ns


class Rate(Frozen):
    """Work and time of one part: what it computes and moves at least, how long it took."""

    part: str
    """`scores`, `softmax`, … of attention, or a class of kernels."""
    kind: Literal["attention", "class"]
    phase: str
    total_ns: Nanoseconds
    flops: Flops | None
    """Per step; None where it cannot be known."""
    bytes: Bytes | None
    """Per step: what must be read and written if every operand moves once; None where it cannot be known."""
    peak_flops_per_s: PerSecond | None
    """The hardware's peak for the units that this part runs on; None for unknown hardware."""
    peak_bytes_per_s: PerSecond | None
    basis: Literal["model", "shapes"]
    """Whether the work is computed from the model's dimensions or from the operators' recorded shapes."""


class Check(Frozen):
    """A count that is known of the model beforehand, and the count in the profile."""

    name: str
    expected: Count
    found: Count


class ProfileSummary(Frozen):
    """One process's profile."""

    title: str
    format: Literal["kineto", "nsys"]
    source: ProfileSource
    devices: list[str]
    rank: Count | None
    steps: Size
    """How many steps were profiled; 1 where nothing marks steps, and then everything is one."""
    steps_marked: bool
    """Whether ranges mark the steps."""
    window_ns: Nanoseconds
    """The steps, from the beginning of each until host and device are done with it."""
    busy_ns: Nanoseconds
    """How long the device, or on the CPU any operator, was at work in them."""
    left_out: Count
    """Kernels launched outside every step, which are in none of the tables."""
    left_out_ns: Nanoseconds
    unlinked_ns: Nanoseconds
    """Time of kernels whose launch was not recorded."""
    phases: list[str]
    modules: list[str]
    names: list[KernelName]
    spent: KernelTimeColumns
    kernels: list[KernelStatistics]
    operators: list[OperatorStatistics]
    copies: list[CopyStatistics]
    device: DeviceUse | None
    precisions: dict[str, Count]
    """Time of matrix products by what their names say they multiply; `unknown` where a name does not say."""
    rates: list[Rate]
    checks: list[Check]
    remarks: list[str]
    """Defects of the file, and what it does not tell."""

    @model_validator(mode="after")
    def _positions(self) -> Self:
        kernels = [*self.spent.kernel, *(each.kernel for each in self.kernels)]
        lists = (("phases", self.spent.phase), ("modules", self.spent.module), ("names", kernels))
        for name, positions in lists:
            if positions and max(positions) >= len(getattr(self, name)):
                raise ValueError(f"position {max(positions)} is beyond the {len(getattr(self, name))} {name}")
        return self
