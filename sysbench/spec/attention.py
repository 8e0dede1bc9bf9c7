"""Attention as one function of q, k and v: its implementations, and a cell that runs one of them."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from sysbench.errors import Refusal
from sysbench.spec import hardware
from sysbench.spec.axis import Axis
from sysbench.spec.cell import DeviceType, RunCell, threads_problem
from sysbench.spec.model import Precision, precision_problem
from sysbench.spec.quantities import Seed, Size, Steps
from sysbench.spec.time_limit import TimeLimit, limit_in_seconds

Implementation = Literal[
    "naive", "compiled", "sdpa-math", "sdpa-efficient", "sdpa-flash", "sdpa-cudnn", "flex", "flash-attn"
]
"""naive           softmax(q kᵀ / √d) v as separate operators
compiled        `naive` through torch.compile
sdpa-…          torch's scaled_dot_product_attention with the named kernel
flex            torch's flex_attention, compiled
flash-attn      the flash-attn library
"""

IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)


def not_simulated(implementation: str, gpu: str) -> Refusal | None:
    """Return the reason why an implementation cannot be simulated on this GPU, or None if it can."""
    if implementation != "compiled" or hardware.by_name(gpu).rates:
        return None
    return Refusal(
        f"cannot be simulated for {gpu}: its memory is known only after it has run, and a bare memory size has no "
        "predicted times",
        "name a GPU, such as a100-80gb, or drop compiled",
        "--impl compiled",
    )


class AttentionCell(RunCell):
    """One implementation on one input."""

    kind: Literal["attention"] = "attention"
    implementation: Annotated[str, Axis("choice", order=82, name_order=21)]
    dim: Size
    seq: Size
    batch: Size
    heads: Size | None
    causal: bool
    precision: Precision
    simulate: str | None
    warmup: Steps
    repeats: Size
    max_time: TimeLimit
    """Seconds within which the cell is to be measured; then `warmup` and `repeats` are the most that are taken."""
    cold: bool
    seed: Seed

    @property
    def rows(self) -> int:
        """Number of independent attention computations per call: batch × heads."""
        return self.batch * (self.heads or 1)

    @property
    def limit_s(self) -> float | None:
        """The time limit in seconds; None without one."""
        return limit_in_seconds(self.max_time, self.device)

    @property
    def simulated(self) -> str | None:
        """The GPU to simulate; None if the cell is measured."""
        return self.simulate

    @property
    def memory_dimensions(self) -> tuple[int, ...]:
        """Sizes that increase the memory requirement when they grow."""
        return (self.batch, self.heads or 1, self.seq, self.dim)

    @property
    def comparability_key(self) -> tuple[str, ...]:
        """Values that two cells must share before their memory requirements are compared by `memory_dimensions`."""
        return (self.implementation, self.precision, str(self.causal))

    @property
    def title(self) -> str:
        """Short description of the cell: `naive d 64 N 1024`."""
        return f"{self.implementation} d {self.dim} N {self.seq}"

    def problem(self, device: DeviceType | None) -> Refusal | None:
        """Return why this cell cannot run, in one line, or None if it can; simulations follow CUDA's rules."""
        if self.simulate is not None:
            return not_simulated(self.implementation, self.simulate) or threads_problem(self, "cuda")
        return (precision_problem(self.precision, device) if device else None) or threads_problem(self, device)
