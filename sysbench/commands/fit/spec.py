"""Spec, cell and options of `sysbench fit`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from sysbench.errors import Refusal, unknown
from sysbench.spec import hardware
from sysbench.spec.axes import Texts, parse_amount
from sysbench.spec.axis import axes_of_model
from sysbench.spec.cell import DeviceType, asks_for
from sysbench.spec.model import ModelCell, ModelSpec
from sysbench.spec.options import RANKS, Option, flag_of
from sysbench.spec.quantities import (
    Bytes,
    Count,
    PerSecond,
    Size,
    TimeLimit,
    limit_in_seconds,
    stored_unless,
    time_limit_word,
)
from sysbench.spec.ranks import NODE_RANKS
from sysbench.spec.run import OUTPUT, SavedOptions
from sysbench.spec.steps import Mode

QUESTION = "Question"

QUESTION_FIELDS = (
    *("budget", "keep", "faster", "max_ranks", "table", "explain", "verify", "host_link"),
    *("asked_only", "not_tried", "max_time", "try_compile"),
)
"""Fields that a cell has from its spec."""

BATCH_AND_RANKS = ("batch", "ranks")
"""Names for `--keep` besides those of axes: the split of a step into micro-batches, and the number of GPUs."""

CTX_UNIT = 128
"""`--table` tries context lengths that are multiples of this: the block size of attention kernels."""

MAX_ROWS = 5
"""Largest number of combinations that are shown for a GPU."""

MAX_PLAIN_ROWS = 3
"""Largest number of them that leave what the model learns as it is."""

_ROW_SPACING = 20
"""A row needs less memory than the one before by the memory of the GPU, divided by this."""


def next_limit_bytes(gpu_bytes: int, needed_bytes: int) -> int:
    """Return the memory that the row after one that needs `needed_bytes` may need."""
    return needed_bytes - gpu_bytes // _ROW_SPACING


def remedy_names() -> tuple[str, ...]:
    axes = axes_of_model(ModelSpec)
    return (*(name.replace("_", "-") for name, axis in axes.items() if axis.remedy is not None), *BATCH_AND_RANKS)


def _memory_size(value: object) -> object:
    if isinstance(value, str):
        if not (size_bytes := hardware.memory_size(value)):
            raise ValueError(f"{value} is not a memory size, such as 22GiB")
        return size_bytes
    return value


class FitCell(ModelCell):
    """One question: a training step, the GPUs that it shall fit on, and what may be changed."""

    kind: Literal["fit"] = "fit"
    mode: Mode = "train"
    on: tuple[str, ...]
    """The GPUs, names that `sysbench.spec.hardware.by_name` accepts."""
    budget: Bytes | None = stored_unless(None)
    """Memory that the step may use on each GPU; None for all of it."""
    keep: tuple[str, ...] = stored_unless(())
    """Axes that are not to be changed, with dashes."""
    faster: bool = stored_unless(False)
    """Whether to search for faster steps also where the step fits."""
    max_ranks: Size = stored_unless(NODE_RANKS)
    """Largest number of GPUs to suggest where a step fits on none alone."""
    table: bool = stored_unless(False)
    """Whether to find the largest batch size and context length on each GPU, in place of changes."""
    explain: bool = stored_unless(False)
    """Whether the first suggestion is compared with the step as asked."""
    verify: bool = stored_unless(False)
    """Whether to measure the first suggestion on the GPUs that are here."""
    asked_only: bool = stored_unless(False)
    """Whether to simulate only the step as asked, for a gate."""
    not_tried: tuple[str, ...] = stored_unless(())
    """Values that no change may have, as `checkpoint=selective`."""
    max_time: TimeLimit = stored_unless("none")
    """Limit of the search."""
    try_compile: bool = stored_unless(False)
    """Whether to try torch.compile, too, once all else has been tried."""
    host_link: PerSecond | None = stored_unless(None)
    """Bytes per second of copies between GPU and host; None for the calibrated rate, if any."""

    @property
    def simulated(self) -> str | None:
        return self.on[0]

    @property
    def runs_despite_oom(self) -> bool:
        return True

    @property
    def ranks_unsupported_reason(self) -> str | None:
        if self.ranks > NODE_RANKS:
            return f"fit knows no network between nodes; at most {NODE_RANKS}"
        return None

    @property
    def limit_s(self) -> float | None:
        """The limit of the search in seconds; None without one."""
        return limit_in_seconds(self.max_time, "cuda")

    def allowed_bytes(self, memory_bytes: int) -> int:
        return min(memory_bytes, self.budget or memory_bytes)

    @property
    def step(self) -> ModelCell:
        return self.step_with(device="cuda")

    def problem(self, device: DeviceType | None) -> Refusal | None:
        if self.is_compiled and not (self.try_compile or self.asked_only):
            slow = "takes a minute or more to simulate, and a search tries dozens of steps"
            remedy = "--gate asks about this step alone; --try-compile compiles few of them"
            return Refusal(slow, remedy, f"--execution {self.execution}")
        return super().problem(device)


@asks_for(FitCell, ctx=(1024,))
class FitSpec(ModelSpec):
    """A question for `sysbench fit`."""

    kind: Literal["fit"] = "fit"
    gpus: Annotated[
        tuple[str, ...],
        BeforeValidator(hardware.parse_gpus_or_stored),
        Option(flags=("--on",), metavar="GPU,…", panel=QUESTION, common=True),
    ] = Field(
        default=(),
        description="GPUs that the step must fit on: 4090,a100-40gb, or 24GiB. Default: the GPU of this machine, or "
        "h100 without one.",
    )
    budget: Annotated[
        Bytes | None,
        BeforeValidator(_memory_size),
        Option(metavar="SIZE", panel=QUESTION, common=True, word=hardware.size_word),
    ] = Field(default=None, description="Memory that the step may use on each GPU, if it is less than all: 22GiB.")
    faster: Annotated[bool, Option(panel=QUESTION, common=True)] = Field(
        default=False, description="Where the step fits, search for changes that make it faster."
    )
    table: Annotated[bool, Option(panel=QUESTION, common=True)] = Field(
        default=False,
        description="Show the largest batch and the largest context on each GPU of --on instead; default: all known.",
    )
    explain: Annotated[bool, Option(panel=QUESTION, common=True)] = Field(
        default=False,
        description="Compare memory, FLOPs and time of the first suggestion with those of the step as asked.",
    )
    verify: Annotated[bool, Option(panel=QUESTION, common=True)] = Field(
        default=False,
        description="Measure three steps of the first suggestion on the GPU that is here, beside the prediction.",
    )
    try_compile: Annotated[bool, Option(panel=QUESTION, common=True)] = stored_unless(
        False,
        description="At last, also try torch.compile: alone, and with the first suggestion. Each takes a minute or "
        "more, in which torch's own compiler says what the step needs.",
    )
    asked_only: bool = stored_unless(False)
    """Whether to simulate only the step as asked, for `--gate`."""
    not_tried: tuple[str, ...] = stored_unless(())
    """Values that no change may have, as `checkpoint=selective`: a config has no line for them."""
    max_time: Annotated[TimeLimit, Option(metavar="TIME", panel=QUESTION, common=True, word=time_limit_word)] = (
        stored_unless(
            "none",
            description="Search for at most about this long, and answer with the best so far: 30s, 3m, or none.",
        )
    )
    keep: Annotated[Texts, Option(metavar="NAME,…", panel=QUESTION, common=True)] = Field(
        default=(), description="What must not be changed: batch, ranks, precision, attention, checkpoint, …"
    )
    max_ranks: Annotated[Size, Option(metavar="N", panel=RANKS)] = Field(
        default=NODE_RANKS, le=NODE_RANKS, description="Suggest at most this many GPUs where one does not suffice."
    )
    tokens_per_step: Annotated[
        Count | None, BeforeValidator(parse_amount), Option(metavar="N", panel=QUESTION, common=True)
    ] = Field(
        default=None,
        ge=1,
        description="Tokens of an optimizer step over all ranks, such as 512k: sets --grad-accum for --batch, --ctx "
        "and --ranks.",
    )
    host_link: Annotated[hardware.LinkSpeed, Option(metavar="RATE", panel=QUESTION, word=hardware.rate_word)] = (
        stored_unless(
            None,
            description="Rate of copies between GPU and host, such as 25GB/s: offloading is then tried too. Default: "
            "the one that sysbench calibrate measured.",
        )
    )
    tokens: Annotated[Count | None, BeforeValidator(parse_amount), Option(metavar="N", panel=QUESTION, common=True)] = (
        Field(default=None, ge=1, description="Tokens of the whole training, such as 1B: adds its hours and its cost.")
    )
    price: Annotated[hardware.Prices, Option(metavar="GPU=PRICE,…", panel=QUESTION, common=True)] = Field(
        default={}, description="Price of a GPU hour in any currency: h100=2.5,4090=0.4."
    )

    @model_validator(mode="after")
    def _check_question(self) -> Self:
        for name in ("faster", "explain", "verify", "try_compile"):
            if self.table and getattr(self, name):
                raise ValueError(
                    f"--table shows limits in place of changes, which {flag_of(name)} needs: drop one of them"
                )
        if self.table and self.max_time != "none":
            raise ValueError("--max-time limits a search for changes, and --table has none: drop one of them")
        if self.device != ("auto",):
            raise ValueError("--device names what to measure on, but fit simulates: --on names GPUs")
        for name in self.keep:
            if name not in remedy_names():
                raise ValueError(f"--keep {unknown(name, 'something that fit changes', remedy_names())}")
        if other := set(self.price) - set(self.gpus):
            raise ValueError(f"--price names {', '.join(sorted(other))}, but --on does not")
        for name in (*axes_of_model(ModelSpec), "d_model", "d_ff", "layers", "heads", "vocab", "model"):
            values = getattr(self, name)
            if isinstance(values, tuple) and len(values) > 1:
                listed = ",".join(map(str, values))
                raise ValueError(
                    f"{flag_of(name)} {listed}: fit answers one question at a time. Give one: {flag_of(name)} "
                    f"{values[0]}"
                )
        return self

    @model_validator(mode="after")
    def _check_kept(self) -> Self:
        if self.try_compile and self.execution != ("eager",):
            raise ValueError(f"--try-compile compares with the eager step: drop it, or --execution {self.execution[0]}")
        if "ranks" in self.keep and self.max_ranks != NODE_RANKS:
            raise ValueError(
                f"--keep ranks allows no other number of GPUs, --max-ranks {self.max_ranks} does: drop one"
            )
        if self.faster and not self.try_compile and set(remedy_names()) <= set(self.keep):
            raise ValueError("--keep names everything that fit can change, so --faster has nothing to try: drop one")
        return self

    @model_validator(mode="after")
    def _check_tokens_per_step(self) -> Self:
        if self.tokens_per_step is None:
            return self
        if self.grad_accum != (1,):
            raise ValueError("--tokens-per-step determines --grad-accum: drop one of them")
        each = self.batch[0] * self.ctx[0] * self.ranks[0]
        if self.tokens_per_step % each:
            nearest = max(1, round(self.tokens_per_step / each)) * each
            raise ValueError(
                f"--tokens-per-step {self.tokens_per_step} is not a multiple of --batch {self.batch[0]} × --ctx "
                f"{self.ctx[0]} × --ranks {self.ranks[0]}. Nearest: {nearest}"
            )
        return self

    def cells(self) -> Iterator[FitCell]:
        for point in self.grid():
            if self.tokens_per_step is not None:
                point["grad_accum"] = self.tokens_per_step // (self.batch[0] * self.ctx[0] * self.ranks[0])
            yield FitCell(
                **{**point, "device": "cpu"},
                on=self.gpus or ("h100",),
                **{name: getattr(self, name) for name in QUESTION_FIELDS},
            )


class FitOptions(SavedOptions):
    """Run options of `sysbench fit`. The one cell of a question runs here, so no option says where."""

    on: None = None
    on_arg: tuple[()] = ()
    parallel: None = None

    gate: Annotated[bool, Option(panel=OUTPUT, common=True)] = Field(
        default=False,
        description="Exit with 3 if the step as asked does not fit on every GPU: a check for CI, which searches for "
        "no changes.",
    )
    figure: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Draw step time against memory, with every combination tried: .png, .svg or .pdf."
    )
