"""Model sizes, the axes common to all commands that run a Transformer, and the cells that these axes expand to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sysbench.errors import Refusal
from sysbench.spec import published
from sysbench.spec.axes import Sizes, choices, integers, split_words
from sysbench.spec.axis import Axis, Remedy, axes_of_model, in_order_of_names, value_if_not_stored
from sysbench.spec.cell import DeviceType as DeviceType
from sysbench.spec.cell import RunCell, RunSpec, asks_for, threads_problem
from sysbench.spec.knobs import (
    ADAPTED,
    ADAPTERS,
    ALLOCATORS,
    CHECKPOINTS,
    CROSS_ENTROPIES,
    FP8,
    NONE,
    OFFLOADS,
    QUANTIZED,
    knobs_device_problem,
    knobs_problem_of,
    parse_adapter_ranks,
    parse_adapter_targets,
    parse_allocators,
    parse_checkpoints,
    parse_cross_entropies,
)
from sysbench.spec.options import MODEL, OWN_MODEL, RANKS, STEP, Option, flag_of
from sysbench.spec.own_model import Arguments, Code, DescribedInputs, OwnModel, Targets, code_reference
from sysbench.spec.quantities import Count, Seed, Size, stored_unless
from sysbench.spec.ranks import (
    DDP,
    DISTRIBUTED,
    MAX_BUCKET_MB,
    MAX_PREFETCH,
    MAX_RANKS,
    SHARDED,
    Reshard,
    ShardDtype,
    Strategy,
    Switch,
    knobs_problem,
    parse_dtypes,
    parse_reshards,
    parse_switches,
    ranks_problem,
)

DEFAULT_VOCAB = 10_000


class ModelShape(BaseModel):
    """The dimensions that determine a Transformer's parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    d_model: Size
    d_ff: Size
    layers: Size
    heads: Size
    vocab: Size = DEFAULT_VOCAB

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.heads

    def problem(self) -> Refusal | None:
        """Return the reason why this shape is invalid, or None if it is valid."""
        if self.d_model % self.heads:
            fits = [heads for heads in range(1, self.d_model + 1) if self.d_model % heads == 0]
            nearest = min(fits, key=lambda heads: abs(heads - self.heads))
            indivisible = f"does not divide --d-model {self.d_model}"
            return Refusal(indivisible, f"nearest that does: {nearest}", f"--heads {self.heads}")
        if self.d_head % 2:
            return Refusal(
                f"over --heads {self.heads} gives a head width of {self.d_head}, which must be even for rotary "
                "embeddings",
                option=f"--d-model {self.d_model}",
            )
        return None


SIZES: dict[str, ModelShape] = {
    "tiny": ModelShape(d_model=256, d_ff=1024, layers=4, heads=4),
    "small": ModelShape(d_model=768, d_ff=3072, layers=12, heads=12),
    "medium": ModelShape(d_model=1024, d_ff=4096, layers=24, heads=16),
    "large": ModelShape(d_model=1280, d_ff=5120, layers=36, heads=20),
    "xl": ModelShape(d_model=1600, d_ff=6400, layers=48, heads=25),
    "2.7b": ModelShape(d_model=2560, d_ff=10240, layers=32, heads=32),
    "2026/xl": ModelShape(d_model=2560, d_ff=10240, layers=32, heads=32),
    "10b": ModelShape(d_model=4608, d_ff=12288, layers=50, heads=36),
}
"""Table 1 of Stanford CS336, assignment 2 (2025 edition); `2026/` marks a name whose dimensions differ in the later
edition.

`tiny` is sysbench's own: one step takes well under a second on two CPU cores.
"""


Precision = Literal["fp32", "tf32", "bf16", "fp16"]
StepPrecision = Literal["fp32", "tf32", "bf16", "fp16", "bf16-true", "fp16-true", "fp8", "fp8-rowwise"]
"""`bf16` and `fp16` are autocast over fp32 parameters; with `bf16-true` and `fp16-true`, parameters are 16 bits wide,
and all else follows, without a gradient scaler.
`fp8` is `bf16` with products of linear layers in fp8: one scale for each tensor, or for each row."""

TRUE_PRECISIONS: Mapping[StepPrecision, Literal["bfloat16", "float16"]] = {
    "bf16-true": "bfloat16",
    "fp16-true": "float16",
}
"""torch's names of the number formats of parameters, by those precisions without autocast that are 16 bits wide."""

Mode = Literal["inference", "forward", "forward-backward", "train"]
Phase = Literal["zero_grad", "forward", "loss", "backward", "optimizer"]
Sync = Literal["phase", "step"]
Attention = Literal["naive", "sdpa", "flash", "efficient", "cudnn", "math", "flex", "own"]
"""`own` is the unchanged attention of the user's model."""

ATTENTION_ON: Mapping[DeviceType, tuple[Attention, ...]] = {
    "cpu": ("naive", "sdpa", "flash", "math", "flex"),
    "mps": ("naive", "sdpa", "math"),
}
"""Implementations of attention on devices that do not have all of them."""

Execution = Literal["eager", "compiled", "compiled-graphs", "compiled-autotune"]

COMPILE_MODES: Mapping[Execution, str] = {
    "compiled": "default",
    "compiled-graphs": "reduce-overhead",
    "compiled-autotune": "max-autotune",
}
"""`mode` of torch.compile, by execution."""

AdamW = Literal["for-loop", "foreach", "fused"]
OtherOptimizer = Literal["sgd", "adafactor", "muon", "adamw-8bit", "adamw-4bit", "adamw-8bit-paged"]
Optimizer = AdamW | OtherOptimizer | Code
"""An implementation of AdamW, another optimizer of torch, torchao or bitsandbytes, or the user's factory."""

PRECISION = Option(
    flags=("--precision", "--dtype"),
    metavar="NAME,…",
    panel=STEP,
    shorthands=(("--bf16", "bf16"),),
    common=True,
)
BATCH = Axis("extent", "batch {}", parse=integers(1), default=(4,), comparison="controlled")
MODE = Axis("work", comparison="controlled", parse=choices("a mode", get_args(Mode)), default=("train",))
WARMUP = Axis("effort", "{} warm-up", "warm-up", parse=integers(0), is_count=True)
STEPS = Axis("effort", "{} step", parse=integers(1), is_count=True)

EFFORT = Axis("setting", comparison="effort")

HOST = Axis("setting", phrase="host {}")
HOST_LINK = Axis("setting", applies_to=(("offload", ()),), phrase="host link {}")

PHASES_OF: dict[Mode, tuple[Phase, ...]] = {
    "inference": ("forward",),
    "forward": ("forward",),
    "forward-backward": ("zero_grad", "forward", "loss", "backward"),
    "train": ("zero_grad", "forward", "loss", "backward", "optimizer"),
}
"""Every mode is a named sequence of phases. `inference` runs forward without a graph, `forward` keeps the graph."""

PREDICTION = "Prediction"


def precision_problem(precision: StepPrecision, device: DeviceType) -> Refusal | None:
    """Return the reason why a type of device does not support a precision, or None if it does."""
    given = f"--precision {precision}"
    if precision in ("fp16", "fp16-true") and device == "cpu":
        emulated = "is not supported on the CPU, which would emulate it"
        return Refusal(emulated, "use bf16 there, or --device cuda", given)
    if precision == "tf32" and device != "cuda":
        return Refusal("is a CUDA format", f"on {device} use fp32", given)
    if precision in FP8 and device == "mps":
        return Refusal("needs fp8 units, which mps lacks", "nearest: bf16", given)
    return None


def _parse_optimizers(value: object) -> tuple[str, ...]:
    words = split_words(value)
    # `adamw` is its implementation that torch chooses on a GPU.
    named = (code_reference(word) if ":" in word else _OPTIMIZER(word)[0] for word in words)
    return tuple(dict.fromkeys("foreach" if word == "adamw" else word for word in named))


OPTIMIZERS = (*get_args(AdamW), *get_args(OtherOptimizer))
OPTIMIZER_NAMES = ("adamw", *OPTIMIZERS)
_OPTIMIZER = choices("an optimizer", OPTIMIZER_NAMES)

BUILT_IN_ATTENTION: tuple[Attention, ...] = get_args(Attention)[:-1]


def _none_if_plain(value: object) -> object:
    return None if value == "lora" else value


def _none_if_unturned(value: object) -> object:
    return None if value == NONE else value


class GridCell(RunCell):
    """One point of a grid: a model, an input, and the way in which the step is computed."""

    ranks: Annotated[
        Size,
        Axis("scale", "{} rank", parse=integers(1, MAX_RANKS), is_count=True, unset="1 rank"),
        Option(metavar="AXIS", panel=RANKS, common=True),
    ] = stored_unless(
        1,
        description="Number of processes that take each step together, each on its own device; on a CPU they share "
        "its cores.",
    )
    strategy: Annotated[
        Strategy | None,
        Axis("choice", parse=choices("a strategy", get_args(Strategy)), applies_to=(("ranks", ()),)),
        Option(metavar="NAME,…", panel=RANKS),
    ] = stored_unless(
        None,
        description="How the model is distributed: ddp (a replica on each rank, the default), fsdp2 (sharded "
        "parameters), tp (tensor parallel, one batch for all ranks), hsdp (sharded replicas).",
    )
    bucket_mb: Annotated[
        Size | None,
        Axis("choice", "buckets of {} MiB", "bucket MiB", parse=integers(1, MAX_BUCKET_MB), applies_to=(DDP,)),
        Option(metavar="AXIS", panel=RANKS),
    ] = stored_unless(
        None,
        description="ddp: capacity of each gradient bucket in MiB (bucket_cap_mb). Default: 25, and 1 for "
        "the first bucket.",
    )
    gradient_as_bucket_view: Annotated[
        Switch | None,
        Axis("choice", "gradient as bucket view {}", "bucket view", parse=parse_switches, applies_to=(DDP,)),
        Option(metavar="on,off", panel=RANKS),
    ] = stored_unless(
        None,
        description="ddp: 'on' makes gradients views of the buckets, which saves one copy of all gradients. "
        "Default: off.",
    )
    reshard: Annotated[
        Reshard | None,
        Axis("choice", "reshard {}", parse=parse_reshards, applies_to=(SHARDED,)),
        Option(metavar="on,off,N", panel=RANKS),
    ] = stored_unless(
        None,
        description="fsdp2, hsdp: 'on' frees gathered parameters after forward and gathers them again in backward; "
        "'off' keeps them; N keeps them sharded over groups of N ranks. Default: on for blocks, off for "
        "the rest.",
    )
    param_dtype: Annotated[
        ShardDtype | None,
        Axis("choice", "{} parameters", parse=parse_dtypes, applies_to=(SHARDED,)),
        Option(metavar="NAME,…", panel=RANKS),
    ] = stored_unless(
        None,
        description="fsdp2, hsdp: dtype in which parameters are gathered and the model computes: fp32 or bf16. The "
        "optimizer keeps its own dtype.",
    )
    reduce_dtype: Annotated[
        ShardDtype | None,
        Axis("choice", "{} reduction", parse=parse_dtypes, applies_to=(SHARDED,)),
        Option(metavar="NAME,…", panel=RANKS),
    ] = stored_unless(
        None,
        description="fsdp2, hsdp: dtype in which gradients are reduced: fp32 or bf16. Default: same as --param-dtype.",
    )
    prefetch: Annotated[
        Count | None,
        Axis("choice", "prefetch {}", parse=integers(0, MAX_PREFETCH), applies_to=(SHARDED,)),
        Option(metavar="AXIS", panel=RANKS),
    ] = stored_unless(
        None,
        description="fsdp2, hsdp: number of blocks to prefetch explicitly, in forward and backward; 0, the default, "
        "leaves prefetching to torch.",
    )
    no_sync: Annotated[
        Switch | None,
        Axis("choice", "no_sync {}", "no_sync", parse=parse_switches, applies_to=(DISTRIBUTED, ("grad_accum", ()))),
        Option(metavar="on,off", panel=RANKS),
    ] = stored_unless(
        None,
        description="ddp, fsdp2, hsdp, with --grad-accum: 'on' exchanges gradients only in the last micro-batch of "
        "a step (no_sync(), set_requires_gradient_sync). Default: off, as in torch.",
    )
    size: Annotated[
        str,
        Axis("extent", parse=choices("a size", SIZES), default=("small",)),
        Option(metavar="NAME,…", panel=MODEL, values=tuple(SIZES), common=True),
    ] = Field(description=f"Named model size: {', '.join(SIZES)}.")
    model: ModelShape | OwnModel
    batch: Annotated[
        Size, BATCH, Option(flags=("--batch", "--batch-size"), metavar="AXIS", panel=MODEL, common=True)
    ] = Field(description="Sequences per step, on each rank; per micro-batch with --grad-accum.")
    grad_accum: Annotated[
        Size,
        Axis("extent", "grad accum {}", parse=integers(1), unset="grad accum 1", comparison="controlled"),
        Option(metavar="AXIS", panel=STEP),
    ] = stored_unless(
        1,
        description="Micro-batches per step: run forward and backward this many times, each on --batch sequences, "
        "and accumulate gradients before one optimizer step.",
    )
    ctx: Annotated[
        Size,
        Axis("extent", "ctx {}", parse=integers(1), default=(128, 256, 512, 1024)),
        Option(flags=("--ctx", "--seq-len"), metavar="AXIS", panel=MODEL, common=True),
    ] = Field(description="Context length, in tokens.")
    mode: str
    """Name of a sequence of phases; commands differ in the modes that they have."""
    attention: Annotated[
        Attention,
        Axis(
            "choice",
            "{} attention",
            parse=choices("an attention kind", get_args(Attention)),
            default=("naive",),
            remedy=Remedy(("sdpa",), built_in_only=True),
        ),
        Option(metavar="KIND,…", panel=STEP, values=BUILT_IN_ATTENTION),
    ] = Field(description=f"Attention implementation: {', '.join(BUILT_IN_ATTENTION)}.")
    execution: Annotated[
        Execution,
        Axis("choice", parse=choices("an execution", get_args(Execution)), default=("eager",)),
        Option(
            flags=("--execution", "--compile-mode"),
            metavar="KIND,…",
            panel=STEP,
            shorthands=(("--compile", "compiled"),),
            common=True,
        ),
    ] = Field(
        description="eager, or torch.compile in one of its modes: compiled (default), compiled-graphs "
        "(reduce-overhead: forward and backward are CUDA graphs), compiled-autotune (max-autotune: graphs, and a "
        "search for the fastest kernels).",
    )
    optimizer: Annotated[
        Optimizer,
        Axis(
            "choice",
            "{} AdamW",
            parse=_parse_optimizers,
            default=("foreach",),
            phrases=(
                ("sgd", "SGD"),
                ("adafactor", "Adafactor"),
                ("muon", "Muon"),
                ("adamw-8bit", "8-bit AdamW"),
                ("adamw-4bit", "4-bit AdamW"),
                ("adamw-8bit-paged", "paged 8-bit AdamW"),
            ),
            remedy=Remedy(("fused",), relearns=("adamw-8bit", "adamw-4bit", "adafactor"), frees_state=True),
        ),
        Option(metavar="KIND,…", panel=STEP, values=OPTIMIZER_NAMES, names_code=True),
    ] = Field(
        description="AdamW as torch.optim implements it: for-loop, foreach (or adamw), fused; or torch's sgd (no "
        "momentum), adafactor, or muon (AdamW outside blocks); or AdamW with moments of few bits: adamw-8bit and "
        "adamw-4bit (by torchao), adamw-8bit-paged (by bitsandbytes). With --model also module:factory for your own "
        "optimizer.",
    )
    precision: Annotated[
        StepPrecision,
        Axis(
            "choice",
            parse=choices("a precision", get_args(StepPrecision)),
            default=("fp32",),
            comparison="controlled",
            remedy=Remedy(relearns=("bf16", "bf16-true"), frees_state=True),
        ),
        PRECISION,
    ] = Field(
        description="Numeric format: fp32 and tf32 compute in that format; bf16 and fp16 use autocast over fp32 "
        "parameters; with bf16-true and fp16-true, parameters, gradients and optimizer state are bf16 or fp16; fp8 and "
        "fp8-rowwise are bf16 with products of linear layers in fp8.",
    )
    checkpoint: Annotated[
        str,
        Axis(
            "choice",
            "{} checkpointing",
            parse=parse_checkpoints,
            unset="no checkpointing",
            remedy=Remedy(("every-2", "selective", "full"), costs_time=True),
        ),
        Option(metavar="CHOICE,…", panel=STEP, values=CHECKPOINTS),
    ] = stored_unless(
        NONE,
        description="Activation checkpointing: compute the activations of these blocks again in backward instead of "
        "keeping them. full, every-2 (every second block), selective (keep linear layers and fused attention), or a "
        "pattern of module names: 'layers.*.attention'.",
    )
    cross_entropy: Annotated[
        str,
        Axis(
            "choice",
            "{} cross-entropy",
            parse=parse_cross_entropies,
            unset="full cross-entropy",
            remedy=Remedy(("chunked",), costs_time=True),
        ),
        Option(metavar="CHOICE,…", panel=STEP, values=CROSS_ENTROPIES),
    ] = stored_unless(
        "full",
        description="How the loss is computed from the last hidden states: full logits, chunked (the logits of 1,024 "
        "tokens at a time, in forward and backward; chunked-N for another number), or linear "
        "(torch.nn.functional.linear_cross_entropy).",
    )
    optimizer_in_backward: Annotated[
        Switch,
        Axis(
            "choice",
            "optimizer in backward {}",
            parse=parse_switches,
            unset="optimizer after backward",
            phrases=(("on", "optimizer in backward"),),
            remedy=Remedy(("on",), costs_time=True, frees_state=True),
        ),
        Option(metavar="on,off", panel=STEP),
    ] = stored_unless(
        "off",
        description="on: update each parameter in backward, as soon as its gradient is complete, and free it.",
    )
    allocator: Annotated[
        str,
        Axis(
            "choice",
            "{} segments",
            parse=parse_allocators,
            unset="default allocator",
            remedy=Remedy(("expandable",), costs_time=True, replays=True),
        ),
        Option(metavar="CHOICE,…", panel=STEP, values=ALLOCATORS),
    ] = stored_unless(
        "default",
        description="CUDA's caching allocator: default, expandable (segments that grow, against fragmentation), or "
        "options of PYTORCH_CUDA_ALLOC_CONF joined by +: max_split_size_mb:128.",
    )
    lora: Annotated[
        Count,
        Axis(
            "choice",
            "LoRA {}",
            "LoRA",
            parse=parse_adapter_ranks,
            unset="no LoRA",
            remedy=Remedy(relearns=(16,), frees_state=True),
        ),
        Option(metavar="AXIS", panel=STEP),
    ] = stored_unless(
        0,
        description="LoRA: freeze the model, and train adapters of this rank beside its linear layers (by peft); none "
        "or 0 trains the whole model.",
    )
    offload: Annotated[
        str,
        Axis(
            "choice",
            "{} on the host",
            parse=choices("what to offload", OFFLOADS),
            unset="no offloading",
            remedy=Remedy(("optimizer",), costs_time=True, frees_state=True),
        ),
        Option(metavar="CHOICE,…", panel=STEP, values=OFFLOADS),
    ] = stored_unless(
        NONE,
        description="optimizer: keep AdamW's state in the host's memory, and update parameters there (by torchao); "
        "parameters, with --strategy fsdp2 or hsdp: keep shards, their gradients and state there.",
    )
    lora_targets: Annotated[
        str | None,
        Axis("choice", "adapters at {}", "LoRA targets", parse=parse_adapter_targets, applies_to=(("lora", ()),)),
        Option(metavar="CHOICE,…", panel=STEP, values=ADAPTED),
    ] = stored_unless(
        None,
        description="Linear layers that get adapters with --lora: all-linear (all but the output layer), or patterns "
        "of their names joined by +: q_proj+v_proj. Default: peft's for the type of the model, else all-linear.",
    )
    adapter: Annotated[
        str | None,
        BeforeValidator(_none_if_plain),
        Axis(
            "choice",
            "{}",
            parse=choices("a kind of adapter", ADAPTERS),
            unset="plain LoRA",
            applies_to=(("lora", ()),),
            phrases=(("lora", "plain LoRA"), ("dora", "DoRA")),
        ),
        Option(metavar="CHOICE,…", panel=STEP, values=ADAPTERS),
    ] = stored_unless(
        None,
        description="Kind of adapter with --lora: lora, or dora, which also trains the length of each row of the "
        "adapted weights. rsLoRA is lora with another factor: the same memory and time.",
    )
    quantize: Annotated[
        str | None,
        BeforeValidator(_none_if_unturned),
        Axis(
            "choice",
            "{} weights",
            "weights",
            parse=choices("a format of frozen weights", QUANTIZED),
            unset="unquantized weights",
            applies_to=(("lora", ()),),
            phrases=((NONE, "unquantized weights"),),
            remedy=Remedy(relearns=("nf4",), frees_state=True),
        ),
        Option(metavar="FORMAT,…", panel=STEP, values=QUANTIZED),
    ] = stored_unless(
        None,
        description="With --lora: format in which linear layers, except the output layer, store their frozen weights: "
        "nf4 (QLoRA: 4 bits, by bitsandbytes), or none.",
    )
    seed: Annotated[Seed, replace(EFFORT, default=0), Option(metavar="N", panel=STEP)] = Field(
        description="Seed for parameters and tokens."
    )

    def step_with(self, **changed: object) -> ModelCell:
        """Return the training step of this cell, with other values for some of its fields."""
        return ModelCell(**{name: getattr(self, name) for name in ModelCell.model_fields} | changed)

    @property
    def is_compiled(self) -> bool:
        """Whether torch.compile compiles the model, in any of its modes."""
        return self.execution in COMPILE_MODES

    @property
    def uses_cuda_graphs(self) -> bool:
        """Whether torch.compile records CUDA graphs, where the device has them: forward and backward are one launch."""
        return self.execution in ("compiled-graphs", "compiled-autotune")

    @property
    def compute_precision(self) -> Precision:
        """The number format in which matrix products are computed."""
        if self.precision in ("bf16-true", *FP8) or (self.param_dtype == "bf16" and self.precision in ("fp32", "tf32")):
            return "bf16"
        return cast("Precision", self.precision.removesuffix("-true"))

    @property
    def tokens(self) -> int:
        """Tokens in one micro-batch of one rank."""
        return self.batch * self.ctx

    @property
    def batches(self) -> int:
        """Number of different micro-batches in one step of all ranks."""
        return self.grad_accum * (1 if self.strategy == "tp" else self.ranks)

    def occurrences(self, phase: str) -> int:
        """Return how often a phase runs per step: forward, loss and backward run once for each micro-batch."""
        return 1 if phase in ("zero_grad", "optimizer") else self.grad_accum

    @property
    def shape_with_formulas(self) -> ModelShape | None:
        """Shape of a model whose parameters and FLOPs formulas describe; None for a user's model, and with adapters."""
        return None if self.lora else self.shape

    @property
    def repeats_forward(self) -> bool:
        """Whether backward computes a part of forward again: of blocks, or of the logits."""
        return self.checkpoint != NONE or self.cross_entropy != "full"

    @property
    def ranks_unsupported_reason(self) -> str | None:
        """Reason why the cell cannot have several ranks, regardless of how many; None if it can."""
        return f"sysbench {self.kind} runs one process"

    @property
    def memory_dimensions(self) -> tuple[int, ...]:
        """Sizes that increase the cell's memory when they grow."""
        shape = self.shape
        if shape is None:
            return (self.ctx, self.batch)
        return (shape.d_model, shape.d_ff, shape.layers, shape.heads, shape.vocab, self.ctx, self.batch)

    @property
    def comparability_key(self) -> tuple[str, ...]:
        """Properties that two cells must share for their extents to be comparable."""
        own = () if self.own is None else (self.own.model_dump_json(),)
        return (*(str(self.axis_value(axis)) for axis in (*CHOICES, "grad_accum", "ranks")), *own)

    @property
    def shape(self) -> ModelShape | None:
        """The dimensions of the built-in Transformer; None for the user's own model."""
        return self.model if isinstance(self.model, ModelShape) else None

    @property
    def own(self) -> OwnModel | None:
        """The user's own model; None for the built-in Transformer."""
        return self.model if isinstance(self.model, OwnModel) else None

    @property
    def title(self) -> str:
        """Short description of the cell: the values with the largest effect on its memory."""
        accumulated = f" × {self.grad_accum}" if self.grad_accum > 1 else ""
        return f"{self.size}, ctx {self.ctx}, batch {self.batch}{accumulated}"

    def problem(self, device: DeviceType | None) -> Refusal | None:
        """Return the reason why this cell cannot run, or None if it can."""
        device = "cuda" if self.simulated else device
        precision_reason = precision_problem(self.precision, device) if device else None
        return (
            self.model.problem()
            or precision_reason
            or (knobs_device_problem(self, device) if device else None)
            or knobs_problem_of(self)
            or threads_problem(self, device)
            or ranks_problem(self)
        )

    def unavailable(self, device: DeviceType) -> Refusal | None:
        """Return why the device does not support this combination of attention and precision; None if it does."""
        device = "cuda" if self.simulated else device
        given = f"--attention {self.attention}"
        there = f"available on {device}: {', '.join(ATTENTION_ON.get(device, ()))}"
        if self.attention in ("efficient", "cudnn") and device != "cuda":
            return Refusal("is a CUDA kernel", there, given)
        if self.attention in ("flash", "flex") and device == "mps":
            return Refusal("is not available on mps", there, given)
        if self.attention in ("flash", "cudnn") and device == "cuda" and self.compute_precision in ("fp32", "tf32"):
            return Refusal("takes 16-bit inputs", "use --precision bf16, or --attention efficient", given)
        return None


@asks_for(GridCell)
class ModelSpec(RunSpec):
    """The axes of a run of Transformers, each a tuple of values; the cells of the run are the product of all axes."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, validate_default=True)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the values for a field of the cells."""

    model: Annotated[
        Targets,
        Option(metavar="MODEL,…", panel=OWN_MODEL, values=published.names(), common=True, names_code=True),
    ] = stored_unless(
        (),
        description="Measure another model instead: a published one (llama-3.1-8b; sysbench models lists them), "
        "hf:ORGANISATION/NAME or hf:DIRECTORY with a config.json, package.module:Class, or path/to/file.py:factory.",
    )
    model_arg: Annotated[Arguments, Option(metavar="NAME=AXIS", panel=OWN_MODEL, repeated=True)] = stored_unless(
        {},
        description="A constructor argument of --model, or a field of its config: layers=12,24. Can be repeated.",
    )
    inputs: Annotated[Code | None, Option(metavar="CODE", panel=OWN_MODEL, names_code=True)] = stored_unless(
        None,
        description="A function of (batch, ctx) that returns the model's inputs: a tensor, a tuple, or a dict. "
        "Default: get_inputs beside the model, or else token ids for its first embedding.",
    )
    input: Annotated[DescribedInputs, Option(metavar="SHAPE", panel=OWN_MODEL, repeated=True)] = stored_unless(
        (),
        description="Description of one input: tokens=int64[B,T]<vocab, or image=float32[B,3,224,224]. Can be "
        "repeated.",
    )
    loss: Annotated[Code | None, Option(metavar="CODE", panel=OWN_MODEL, names_code=True)] = stored_unless(
        None,
        description="A function of (output) or (output, inputs) that returns the loss. Default: output.loss, cross "
        "entropy of the logits, or the mean of the output.",
    )
    app_dir: Annotated[str, Option(metavar="DIRECTORY", panel=OWN_MODEL, names_code=True)] = stored_unless(
        "",
        description="Directory to import your code from, instead of the current directory.",
    )
    d_model: Annotated[
        tuple[int, ...],
        BeforeValidator(integers(2)),
        Option(flags=("--d-model", "--hidden-size"), metavar="AXIS", panel=MODEL),
    ] = Field(default=(), description="Width of the residual stream; overrides --size.")
    d_ff: Annotated[Sizes, Option(metavar="AXIS", panel=MODEL)] = Field(
        default=(), description="Width inside the feed-forward block; overrides --size."
    )
    layers: Annotated[Sizes, Option(flags=("--layers", "--num-layers"), metavar="AXIS", panel=MODEL)] = Field(
        default=(), description="Number of Transformer blocks; overrides --size."
    )
    heads: Annotated[Sizes, Option(flags=("--heads", "--num-heads"), metavar="AXIS", panel=MODEL)] = Field(
        default=(), description="Attention heads per block; overrides --size."
    )
    vocab: Annotated[tuple[int, ...], BeforeValidator(integers(2)), Option(metavar="AXIS", panel=MODEL)] = Field(
        default=(DEFAULT_VOCAB,), description="Vocabulary size."
    )

    @model_validator(mode="before")
    @classmethod
    def _own_model_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("model"):
            return given
        fields = {"attention": "own", **given}
        default = cls.model_fields["size"].default
        shape = SIZES[default[0]].model_dump(exclude={"vocab"})
        if split_words(fields.get("size", ())) == default and not fields.keys() & shape.keys():
            # The default size would mean the model's own dimensions; if the user requests it, list its dimensions.
            return {**fields, **shape}
        return fields

    @property
    def is_distributed(self) -> bool:
        """Whether the run has cells with several ranks."""
        return any(ranks > 1 for ranks in self.ranks)

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """The strategies of cells with several ranks; default: ddp."""
        return self.strategy or ("ddp",)

    @model_validator(mode="after")
    def _refuse_problems(self) -> Self:
        if (problem := self._ranks_problem() or self._adapters_problem() or self._own_model_problem()) is not None:
            raise ValueError(problem)
        return self

    def _ranks_problem(self) -> Refusal | None:
        knobs = {name: getattr(self, name) for name in KNOBS}
        for name, values in {"strategy": self.strategy, **knobs}.items():
            if values and not self.is_distributed:
                given = f"{flag_of(name)} {','.join(map(str, values))}"
                return Refusal("distributes a model over ranks", "add --ranks 2", given)
        if self.no_sync and max(self.grad_accum) == 1:
            return knobs_problem(self.strategies, knobs, KNOBS) or Refusal(
                "controls the exchange of gradients between micro-batches, but each step has only one",
                "add --grad-accum 2",
                f"--no-sync {','.join(self.no_sync)}",
            )
        return knobs_problem(self.strategies, knobs, KNOBS)

    def _adapters_problem(self) -> Refusal | None:
        if any(self.adapter) and not any(self.lora):
            given = f"--adapter {','.join(filter(None, self.adapter))}"
            return Refusal("is a kind of adapter", "add --lora 8", given)
        if self.lora_targets and not any(self.lora):
            given = f"--lora-targets {','.join(self.lora_targets)}"
            return Refusal("chooses layers for adapters", "add --lora 8", given)
        if set(self.quantize) - {NONE} and not any(self.lora):
            given = f"--quantize {','.join(self.quantize)}"
            return Refusal("freezes weights, which leaves nothing to train", "add --lora 8", given)
        return None

    def _own_model_problem(self) -> Refusal | None:
        if self.model:
            both = self.inputs and self.input
            twice = Refusal("and --input both describe the model's inputs", "give only one of them", "--inputs")
            return twice if both else None
        given = {
            "--model-arg": self.model_arg,
            "--inputs": self.inputs,
            "--input": self.input,
            "--loss": self.loss,
            "--attention own": "own" in self.attention,
            "--optimizer module:factory": any(":" in each for each in self.optimizer),
        }
        option = next((option for option, value in given.items() if value), None)
        needs_model = "applies to a model of your own"
        return Refusal(needs_model, "add --model package.module:Class", option) if option else None

    def grid(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of every grid point: a value for each axis that applies to the point, and the settings."""
        declared = axes_of_model(self.cell_class)
        fixed = {name: getattr(self, name) for name, axis in declared.items() if axis.role == "setting"}
        axes = {name: axis for name, axis in declared.items() if name not in fixed}
        names = sorted(axes, key=lambda name: name not in ModelSpec.model_fields)  # a command's own axes vary fastest
        listed = {name: self._values(name) for name in names}
        dependent = [name for name in names if axes[name].applies_to and listed[name] != (None,)]
        fixed |= {name: values[0] for name, values in listed.items() if len(values) == 1}
        varying = {name: values for name, values in listed.items() if name not in fixed}
        determining = {other for name in dependent for other, _ in axes[name].applies_to} & varying.keys()
        unused_at: dict[tuple[object, ...], dict[str, None]] = {}
        for values in itertools.product(*varying.values()):
            point = dict(zip(varying, values, strict=True))
            key = tuple([point[name] for name in determining])
            if (unused := unused_at.get(key)) is None:
                point = {**fixed, **point}
                unused = dict.fromkeys(name for name in dependent if not self._applies(axes, name, point))
                unused_at[key] = unused
            if not any(name in varying and point[name] != varying[name][0] for name in unused):
                point = {**fixed, **point, **unused}
                point["size"], point["model"] = point["size"]
                yield point

    def _values(self, axis: str) -> tuple[Any, ...]:
        match axis:
            case "size":
                return tuple(self._models())
            case "strategy":
                return self.strategies
        values: tuple[Any, ...] = getattr(self, axis)
        return values or (() if type(self).model_fields[axis].default else (None,))

    def _applies(self, axes: Mapping[str, Axis], name: str, point: Mapping[str, Any]) -> bool:
        return all(
            self._applies(axes, other, point)
            and (
                point[other] in values
                if values
                else point[other] != value_if_not_stored(type(self).model_fields[other])
            )
            for other, values in axes[name].applies_to
        )

    def _models(self) -> Iterator[tuple[str, ModelShape | OwnModel]]:
        if not self.model:
            yield from self._shapes().items()
            return
        names = ("d_model", "d_ff", "layers", "heads", "vocab")
        given = tuple(name for name in names if getattr(self, name) != type(self).model_fields[name].default)
        sized = self.size != type(self).model_fields["size"].default or set(names[:4]) <= set(given)
        single = () if sized else given
        swept = [name for name, values in self.model_arg.items() if len(values) > 1]
        for target, (label, shape), values in itertools.product(
            self.model, self._shapes().items(), itertools.product(*self.model_arg.values())
        ):
            arguments = dict(zip(self.model_arg, values, strict=True))
            own = OwnModel(
                target=target,
                arguments=arguments,
                dimensions=shape.model_dump(),
                sized=sized,
                single_dimensions=single,
                inputs=self.inputs,
                described=self.input,
                loss=self.loss,
                directory=self.app_dir,
            )
            named = [label] if sized else [f"{name}={getattr(shape, name)}" for name in single]
            yield " ".join([own.title, *named, *(f"{name}={arguments[name]}" for name in swept)]), own

    def _shapes(self) -> dict[str, ModelShape]:
        given = {name: values for name in ("d_model", "d_ff", "layers", "heads") if (values := getattr(self, name))}
        labelled: dict[str, ModelShape] = {}
        for size, vocab in itertools.product(self.size, self.vocab):
            for values in itertools.product(*given.values()):
                overrides = dict(zip(given, values, strict=True))
                swept = {name: value for name, value in overrides.items() if len(given) < 4 or len(given[name]) > 1}
                shape = SIZES[size].model_copy(update=overrides)
                named = "custom" if len(given) == 4 and (swept or shape != SIZES[size]) else size
                if len(self.vocab) > 1:
                    swept["vocab"] = vocab
                label = " ".join([named, *(f"{name}={value}" for name, value in swept.items())])
                labelled[label] = shape.model_copy(update={"vocab": vocab})
        return labelled


STEP_AXES: Mapping[str, Axis] = in_order_of_names(
    {name: axis for name, axis in axes_of_model(GridCell).items() if axis.role not in ("device", "setting")}
)
"""Axes that identify a training step, besides its mode, in the order of names."""

CHOICES = tuple(name for name, axis in STEP_AXES.items() if axis.role == "choice")
"""Axes that choose how a training step is computed, the most frequently compared first."""

KNOBS: Mapping[str, tuple[object, ...]] = {
    name: strategies for name, axis in STEP_AXES.items() if (strategies := dict(axis.applies_to).get("strategy"))
}
"""Axes that apply only to some strategies, with those strategies."""


class ModelCell(GridCell):
    """A cell whose step is the fixed sequence of phases of its mode."""

    mode: Annotated[Mode, MODE, Option(metavar="MODE,…", panel=STEP, common=True)] = Field(
        description=f"Which phases a step has: {', '.join(get_args(Mode))}."
    )

    @property
    def comparability_key(self) -> tuple[str, ...]:
        """Properties that two cells must share for their extents to be comparable."""
        return (self.mode, *super().comparability_key)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the cell's mode, in order."""
        return PHASES_OF[self.mode]

    @property
    def step(self) -> ModelCell:
        """The training step that the cell runs: the cell itself."""
        return self
