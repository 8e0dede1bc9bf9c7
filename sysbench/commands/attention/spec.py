"""Spec, cells and options of `sysbench attention`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from sysbench.errors import unknown
from sysbench.spec import hardware
from sysbench.spec.attention import IMPLEMENTATIONS, AttentionCell
from sysbench.spec.axes import Sizes, split_words
from sysbench.spec.axis import Axis
from sysbench.spec.cell import Devices, RunSpec, Threads
from sysbench.spec.model import BATCH, EFFORT, WARMUP, Precisions
from sysbench.spec.options import Option
from sysbench.spec.quantities import Seed, Size, Steps, stored_unless
from sysbench.spec.run import OUTPUT, SavedOptions
from sysbench.spec.time_limit import TimeLimit, time_limit_word

WHOLE_GRID = {"dim": (16, 32, 64, 128), "seq": (256, 1024, 4096, 8192, 16384)}
"""The grid of --sweep: from sizes at which everything fits to sizes at which naive attention does not."""

SWEEP = "Sweep"
MEASUREMENT = "Measurement"

_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _implementations(value: object) -> tuple[str, ...]:
    names = split_words(value)
    for name in names:
        if name not in IMPLEMENTATIONS and not _OWN.fullmatch(name):
            own = (*IMPLEMENTATIONS, "my_module:function")
            raise ValueError(unknown(name, "an implementation", own))
    return names


class AttentionSpec(RunSpec):
    """A run of `sysbench attention`: the product of all axes."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, validate_default=True)

    kind: Literal["attention"] = "attention"
    sweep: Annotated[bool, Option(panel=SWEEP, common=True)] = Field(
        default=False,
        description="Sweep --dim 16,32,64,128 and --seq 256,1024,4096,8192,16384, unless given otherwise.",
    )
    impl: Annotated[
        tuple[str, ...],
        BeforeValidator(_implementations),
        Option(metavar="NAME,…", panel=SWEEP, values=IMPLEMENTATIONS, common=True, names_code=True),
    ] = Field(
        default=("naive",),
        description=f"Implementations: {', '.join(IMPLEMENTATIONS)}, or your own function, as my_module:attention.",
    )
    dim: Annotated[
        Sizes,
        Option(metavar="AXIS", panel=SWEEP, common=True),
        Axis("extent", "d {}", "d_model", 83, 22),
    ] = Field(default=(64,), description="Head dimension d.")
    seq: Annotated[
        Sizes,
        Option(flags=("--seq", "--seq-len"), metavar="AXIS", panel=SWEEP, common=True),
        Axis("extent", "N {}", "seq_len", 84, 23),
    ] = Field(default=(256, 1024), description="Sequence length N.")
    batch: Annotated[
        Sizes, Option(flags=("--batch", "--batch-size"), metavar="AXIS", panel=SWEEP, common=True), BATCH
    ] = Field(default=(8,), description="Sequences per call.")
    heads: Annotated[
        Sizes,
        Option(flags=("--heads", "--num-heads"), metavar="AXIS", panel=SWEEP),
        Axis("extent", "{} heads", unset="no heads", order=81, name_order=46),
    ] = Field(default=(), description="Attention heads; by default the inputs have no head dimension.")
    causal: Annotated[bool, Option(panel=SWEEP, common=True), Axis("setting")] = Field(
        default=False, description="Apply a causal mask: no position attends to later positions."
    )
    precision: Annotated[
        Precisions,
        Option(
            flags=("--precision", "--dtype"),
            metavar="NAME,…",
            panel=SWEEP,
            shorthands=(("--bf16", "bf16"), ("--fp16", "fp16")),
            common=True,
        ),
    ] = Field(default=("fp32",), description="Type of q, k and v; tf32 is fp32 with matrix products in tf32.")
    device: Annotated[Devices, Option(metavar="NAME,…", panel=MEASUREMENT, common=True)] = Field(
        default=("auto",), description="auto, cuda, cuda:1, mps or cpu. auto is the first available of cuda, mps, cpu."
    )
    threads: Annotated[Threads, Option(metavar="AXIS", panel=MEASUREMENT)] = stored_unless(
        (),
        description="Number of threads on the CPU; torch's default if not given.",
    )
    simulate: Annotated[hardware.Gpus, Option(metavar="GPU,…", panel=MEASUREMENT, common=True)] = Field(
        default=(),
        description="Predict times and simulate memory on these GPUs instead of measuring: a100-80gb. A bare memory "
        "size, 24GiB, has no times.",
    )
    warmup: Annotated[Steps, Option(metavar="N", panel=MEASUREMENT), WARMUP] = Field(
        default=10, description="Warm-up calls of forward and of backward."
    )
    repeats: Annotated[
        Size,
        Option(metavar="N", panel=MEASUREMENT),
        Axis("setting", name_order=72, comparison="effort", phrase="{} repeats"),
    ] = Field(default=100, description="Measured calls of forward and of backward.")
    max_time: Annotated[
        TimeLimit, Option(metavar="TIME", panel=MEASUREMENT, common=True, word=time_limit_word), EFFORT
    ] = Field(
        default=60.0,
        description="Measure each cell for at most about this long, with fewer repeats if necessary: 90s, 3m, or none. "
        "A cell is skipped only if a single call would take longer.",
    )
    cold: Annotated[bool, Option(panel=MEASUREMENT), Axis("setting", comparison="controlled")] = Field(
        default=False, description="Flush the device's caches before every call."
    )
    seed: Annotated[Seed, Option(metavar="N", panel=MEASUREMENT), EFFORT] = Field(
        default=0, description="Seed of q, k and v."
    )

    @model_validator(mode="before")
    @classmethod
    def _whole_grid(cls, fields: object) -> object:
        return {**WHOLE_GRID, **fields} if isinstance(fields, dict) and fields.get("sweep") else fields

    @model_validator(mode="after")
    def _check(self) -> AttentionSpec:
        if self.simulate and self.device != ("auto",):
            raise ValueError(
                "--device names the device to measure on, but --simulate measures nothing: drop one of them"
            )
        return self

    @property
    def unused(self) -> tuple[str, ...]:
        return ("warmup", "repeats", "max_time", "cold") if self.simulate else ()

    def cells(self) -> Iterator[AttentionCell]:
        """Yield every cell of the run: inputs in the order of the axes, and for each input all implementations."""
        axes = (self.simulate or (None,), self.device, self.threads or (None,), self.precision, self.batch)
        for gpu, device, threads, precision, batch, heads in product(*axes, self.heads or (None,)):
            for dim, seq, implementation in product(self.dim, self.seq, self.impl):
                yield AttentionCell(
                    implementation=implementation,
                    dim=dim,
                    seq=seq,
                    batch=batch,
                    heads=heads,
                    causal=self.causal,
                    precision=precision,
                    device="cpu" if gpu else device,
                    threads=threads,
                    simulate=gpu,
                    warmup=self.warmup,
                    repeats=self.repeats,
                    max_time=self.max_time,
                    cold=self.cold,
                    seed=self.seed,
                )


class AttentionOptions(SavedOptions):
    """Run options of `sysbench attention`."""

    figure: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT, common=True)] = Field(
        default=None, description="Draw times and memory over the sequence length: .png, .svg or .pdf."
    )
