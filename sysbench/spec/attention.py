"""Attention as one function of q, k and v: its implementations, and a cell that runs one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, get_args

from pydantic import Field

from sysbench.errors import Refusal
from sysbench.spec import hardware
from sysbench.spec.axes import choices, integers
from sysbench.spec.axis import Axis
from sysbench.spec.cell import DeviceType, RunCell, threads_problem
from sysbench.spec.grid import BATCH, EFFORT, PRECISION
from sysbench.spec.options import MEASUREMENT, SWEEP, Option
from sysbench.spec.problems import precision_problem
from sysbench.spec.quantities import Seed, Size, Steps, TimeLimit, limit_in_seconds, time_limit_word
from sysbench.spec.steps import Precision

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


class AttentionCell(RunCell):
    """One implementation on one input."""

    kind: Literal["attention"] = "attention"
    batch: Annotated[
        Size,
        replace(BATCH, default=(8,)),
        Option(flags=("--batch", "--batch-size"), metavar="AXIS", panel=SWEEP, common=True),
    ] = Field(description="Sequences per call.")
    precision: Annotated[
        Precision,
        Axis("choice", parse=choices("a precision", get_args(Precision)), default=("fp32",), comparison="controlled"),
        replace(PRECISION, panel=SWEEP),
    ] = Field(description="Type of q, k and v; tf32 is fp32 with matrix products in tf32.")
    heads: Annotated[
        Size | None,
        Axis("extent", "{} heads", parse=integers(1), unset="no heads"),
        Option(flags=("--heads", "--num-heads"), metavar="AXIS", panel=SWEEP),
    ] = Field(description="Attention heads; by default the inputs have no head dimension.")
    implementation: Annotated[str, Axis("choice")]
    dim: Annotated[
        Size,
        Axis("extent", "d {}", "d_model", parse=integers(1), default=(64,)),
        Option(metavar="AXIS", panel=SWEEP, common=True),
    ] = Field(description="Head dimension d.")
    seq: Annotated[
        Size,
        Axis("extent", "N {}", "seq_len", parse=integers(1), default=(256, 1024)),
        Option(flags=("--seq", "--seq-len"), metavar="AXIS", panel=SWEEP, common=True),
    ] = Field(description="Sequence length N.")
    causal: Annotated[bool, Axis("setting", default=False), Option(panel=SWEEP, common=True)] = Field(
        description="Apply a causal mask: no position attends to later positions."
    )
    simulate: Annotated[str | None, hardware.SIMULATED, Option(metavar="GPU,…", panel=MEASUREMENT, common=True)] = (
        Field(
            description="Predict times and simulate memory on these GPUs instead of measuring: a100-80gb. A bare "
            "memory size, 24GiB, has no times.",
        )
    )
    warmup: Steps
    repeats: Annotated[
        Size,
        Axis("setting", default=100, comparison="effort", phrase="{} repeats"),
        Option(metavar="N", panel=MEASUREMENT),
    ] = Field(description="Measured calls of forward and of backward.")
    max_time: Annotated[
        TimeLimit,
        replace(EFFORT, default=60.0),
        Option(metavar="TIME", panel=MEASUREMENT, common=True, word=time_limit_word),
    ] = Field(
        description="Measure each cell for at most about this long, with fewer repeats if necessary: 90s, 3m, or none. "
        "A cell is skipped only if a single call would take longer.",
    )
    cold: Annotated[bool, Axis("setting", default=False, comparison="controlled"), Option(panel=MEASUREMENT)] = Field(
        description="Flush the device's caches before every call."
    )
    seed: Annotated[Seed, replace(EFFORT, default=0), Option(metavar="N", panel=MEASUREMENT)] = Field(
        description="Seed of q, k and v."
    )

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
            return threads_problem(self, "cuda")
        return (precision_problem(self.precision, device) if device else None) or threads_problem(self, device)
