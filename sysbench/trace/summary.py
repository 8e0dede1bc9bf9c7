"""Summary of a profile: all data for the tables and figures. Its size does not grow with the trace.

Times are integer nanoseconds over all profiled steps, so totals are exact; `steps` is the number of these steps.
Modules and kernels are referenced by their position in `modules` and `names`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, Self

from pydantic import model_validator

from sysbench.spec.frozen import Frozen, check_equal_lengths
from sysbench.spec.quantities import Amount, Bytes, Count, Flops, Nanoseconds, PerSecond, Size, stored_unless

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
sparse features and experts' tokens; `quantisation` changes number formats by scales; `other` is everything else."""

ProfileSource = Literal["device", "cpu"]
"""device: kernels, as they ran on a device. cpu: operators, by their self time on the host."""

PHASES: Final = ("zero_grad", "forward", "loss", "backward", "optimizer")
"""Phases of a step, in order; see `sysbench.spec.model.Phase`."""

NO_PHASE = ""
"""Name of the placeholder phase for work that cannot be assigned to a phase."""

EVERYWHERE = ""
"""Path of the whole model."""

STEP = "step"
"""The range of the whole step."""

PARTS: Final = ("scores", "mask", "softmax", "output")
"""Parts of attention in this order: q·kᵀ, masking of later positions, softmax, and weights·v."""

_OUR_PARTS: Final = re.compile(r"(?:.*\.)?attend\.(scores|mask|softmax|output)(?:\..*)?")
_OTHERS_PARTS: Final = (
    ("scores", re.compile(r"(comput\w+ |calculat\w+ )?(attention|attn)[ _-](scores|logits)( matmul)?", re.IGNORECASE)),
    ("mask", re.compile(r"(causal |attention |apply\w* )?mask(ing)?", re.IGNORECASE)),
    ("softmax", re.compile(r"(comput\w+ |attention |attn[ _])?softmax", re.IGNORECASE)),
    ("output", re.compile(r"final matmul|attention (output|values)|weighted sum|attn[ _]output", re.IGNORECASE)),
)
"""Common names of these parts in other programs."""

_NUMBER = re.compile(r"(^|\.)\d+(?=\.|$)")


def folded(path: str) -> str:
    """Replace the layer number in a path by `*`: `layers.3.attention` becomes `layers.*.attention`."""
    return _NUMBER.sub(r"\1*", path)


def ancestry(path: str) -> list[str]:
    """Return the paths of a module and its ancestors, outermost first: `layers`, `layers.3`, `layers.3.attention`."""
    parts = path.split(".") if path else []
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def part_of(module: str) -> str | None:
    """Return the part of attention (one of PARTS) that a module path stands for, or None."""
    ours = _OUR_PARTS.fullmatch(module)
    if ours is not None:
        return ours[1]
    last = module.rpartition(".")[2]
    if last == module or last == "softmax" or " " in last or "_" in last:
        return next((part for part, name in _OTHERS_PARTS if name.fullmatch(last)), None)
    return None


class KernelName(Frozen):
    """One kernel, or one operator on the CPU."""

    name: str
    """Name as recorded."""
    short: str
    """Name as displayed, without uninformative template arguments."""
    kernel_class: KernelClass
    precision: str | None
    """Input format of the product according to the name: `tf32`, `bf16`; None if the name does not contain it."""

    def class_in(self, phase: str) -> KernelClass:
        """Return the class of the kernel in a phase.

        In the optimizer phase, elementwise kernels and reductions have the class `optimizer`.
        """
        if phase == "optimizer" and self.kernel_class in ("elementwise", "reduction"):
            return "optimizer"
        return self.kernel_class


class KernelTime(NamedTuple):
    """Time and calls of one kernel in one module and phase, over all steps."""

    phase: str
    module: str
    kernel: int
    """Position in the summary's names."""
    name: KernelName
    total_ns: int
    calls: int

    @property
    def kernel_class(self) -> KernelClass:
        """Return the kernel's class in this phase."""
        return self.name.class_in(self.phase)


class KernelTimeColumns(Frozen):
    """Time of each kernel by phase and launching module; one row per combination, in columns of equal length."""

    phase: list[Count]
    """Position in `phases`."""
    module: list[Count]
    """Position in `modules` of the innermost module, with its full path."""
    kernel: list[Count]
    """Position in `names`."""
    total_ns: list[Nanoseconds]
    calls: list[Count]

    @model_validator(mode="after")
    def _rows(self) -> Self:
        return check_equal_lengths(self, *type(self).model_fields)


class KernelStatistics(Frozen):
    """Statistics of the calls of one kernel within one range, over all steps."""

    range: str
    """`step` for the whole step, or a phase."""
    kernel: Count
    median_ns: Amount
    min_ns: Nanoseconds
    max_ns: Nanoseconds
    std_ns: Amount
    """Sample standard deviation; 0 for one call."""
    grid: tuple[Count, Count, Count] | None
    """Number of blocks (x, y, z); None if calls differ, or if it was not recorded."""
    block: tuple[Count, Count, Count] | None
    """Number of threads per block (x, y, z); None if calls differ, or if it was not recorded."""


class OperatorStatistics(Frozen):
    """Statistics of one PyTorch operator, over all steps."""

    name: str
    shapes: str | None
    """Input shapes as written; None in a row that covers all input shapes of the operator."""
    calls: Count
    self_host_ns: Nanoseconds
    total_host_ns: Nanoseconds
    """Host time including callees; recursive calls count once."""
    self_device_ns: Nanoseconds
    total_device_ns: Nanoseconds


LAUNCH_BOUND_SHARE = 0.2
"""A step is launch-bound if waiting for the host takes more than this share of the step."""


class DeviceUse(Frozen):
    """Device utilisation. Absent from a CPU profile."""

    window_ns: Nanoseconds
    """Duration of the steps, summed over devices; see `ProfileSummary.window_ns`."""
    busy_ns: Nanoseconds
    """Part of the window in which at least one kernel or copy runs."""
    work_ns: Nanoseconds
    """Sum of all durations: more than `busy_ns` if streams overlap."""
    waiting_ns: Nanoseconds
    """Idle time before the next kernel is launched: the device waits for the host."""
    launches: Count
    launch_ns: Nanoseconds
    """Host time in launch calls."""

    @property
    def launch_bound(self) -> bool:
        """Return whether the step is launch-bound: the device spends a large share of the step waiting for the host."""
        return self.waiting_ns > LAUNCH_BOUND_SHARE * self.window_ns


class Rate(Frozen):
    """Minimum FLOPs and bytes of one part of attention or of a kernel class, and the time that it takes."""

    part: str
    """One of PARTS, or a kernel class."""
    phase: str
    total_ns: Nanoseconds
    flops: Flops | None
    """FLOPs per step; None if unknown."""
    bytes: Bytes | None
    """Bytes per step if every operand is read or written once; None if unknown."""
    peak_flops_per_s: PerSecond | None
    """Peak rate of the hardware units that this part uses; None for unknown hardware."""
    peak_bytes_per_s: PerSecond | None


class Check(Frozen):
    """A count derived from the model, and the same count as found in the profile."""

    name: str
    expected: Count
    found: Count


class ProfileSummary(Frozen):
    """Profile of one process."""

    title: str
    source: ProfileSource
    predicted: bool = stored_unless(False)
    """Whether the times were predicted for a device that was not present, instead of recorded."""
    devices: list[str]
    rank: Count | None
    steps: Size
    """Number of profiled steps. If no steps are marked, this is 1, and everything counts as one step."""
    steps_marked: bool
    """Whether ranges mark the steps."""
    window_ns: Nanoseconds
    """Duration of the steps, each from its start, or until the device is done with earlier work if that is later, until
    host and device have finished it."""
    busy_ns: Nanoseconds
    """Time in which at least one kernel or copy runs; on a CPU, at least one operator."""
    left_out: Count
    """Number of kernels and copies launched outside all steps; no table includes them."""
    left_out_ns: Nanoseconds
    backlog: Count = stored_unless(0)
    """Number of kernels and copies launched before the recording began. If steps are marked, no table includes them."""
    backlog_ns: Nanoseconds = stored_unless(0)
    unlinked_ns: Nanoseconds
    """Time of kernels and copies without a recorded launch."""
    phases: list[str]
    modules: list[str]
    names: list[KernelName]
    spent: KernelTimeColumns
    kernels: list[KernelStatistics]
    operators: list[OperatorStatistics]
    device: DeviceUse | None
    precisions: dict[str, Count]
    """Time in matrix products and fused attention, by input format in kernel names; `unknown` if a name has none."""
    rates: list[Rate]
    checks: list[Check]
    remarks: list[str]
    """Defects of the file, and data that were omitted."""

    def times(self) -> Iterator[KernelTime]:
        """Yield the rows of `spent`, with positions replaced by names."""
        spent = self.spent
        rows = zip(spent.phase, spent.module, spent.kernel, spent.total_ns, spent.calls, strict=True)
        for phase, module, kernel, total_ns, calls in rows:
            yield KernelTime(self.phases[phase], self.modules[module], kernel, self.names[kernel], total_ns, calls)

    @property
    def phases_with_work(self) -> tuple[str, ...]:
        """Return the phases with any kernel time, in the order of PHASES."""
        present = {self.phases[phase] for phase in self.spent.phase}
        return tuple(phase for phase in PHASES if phase in present)

    def by_class(self, phases: Sequence[str] | None = None) -> dict[KernelClass, int]:
        """Return the time of each kernel class in the given phases (default: all), in nanoseconds over all steps."""
        total_ns: dict[KernelClass, int] = {}
        for time in self.times():
            if phases is None or time.phase in phases:
                total_ns[time.kernel_class] = total_ns.get(time.kernel_class, 0) + time.total_ns
        return total_ns

    @model_validator(mode="after")
    def _positions(self) -> Self:
        kernels = [*self.spent.kernel, *(row.kernel for row in self.kernels)]
        lists = (("phases", self.spent.phase), ("modules", self.spent.module), ("names", kernels))
        for name, positions in lists:
            if positions and max(positions) >= len(getattr(self, name)):
                raise ValueError(f"position {max(positions)} is beyond the {len(getattr(self, name))} {name}")
        return self
