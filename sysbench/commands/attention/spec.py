"""Spec, cells and options of `sysbench attention`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from sysbench.errors import unknown
from sysbench.spec.attention import IMPLEMENTATIONS, AttentionCell
from sysbench.spec.axes import split_words
from sysbench.spec.cell import RunSpec, asks_for
from sysbench.spec.options import MEASUREMENT, SWEEP, Option
from sysbench.spec.quantities import Steps
from sysbench.spec.run import OUTPUT, SavedOptions

WHOLE_GRID = {"dim": (16, 32, 64, 128), "seq": (256, 1024, 4096, 8192, 16384)}
"""The grid of --sweep: from sizes at which everything fits to sizes at which naive attention does not."""

_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _implementations(value: object) -> tuple[str, ...]:
    names = split_words(value)
    for name in names:
        if name not in IMPLEMENTATIONS and not _OWN.fullmatch(name):
            own = (*IMPLEMENTATIONS, "my_module:function")
            raise ValueError(unknown(name, "an implementation", own))
    return names


@asks_for(AttentionCell)
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
    warmup: Annotated[Steps, Option(metavar="N", panel=MEASUREMENT)] = Field(
        default=10, description="Warm-up calls of forward and of backward."
    )

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the values for a field of the cells."""

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
