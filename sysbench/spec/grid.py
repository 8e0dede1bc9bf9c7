"""The points of a grid of Transformers: a model, an input, and the way in which the step is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sysbench.errors import Refusal
from sysbench.spec.axes import choices, integers, split_words
from sysbench.spec.axis import Axis, Remedy
from sysbench.spec.cell import DeviceType as DeviceType
from sysbench.spec.cell import RunCell
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
    parse_adapter_ranks,
    parse_adapter_targets,
    parse_allocators,
    parse_checkpoints,
    parse_cross_entropies,
)
from sysbench.spec.options import MODEL, RANKS, STEP, Option
from sysbench.spec.own_model import Code, OwnModel, code_reference
from sysbench.spec.quantities import Count, Seed, Size, stored_unless
from sysbench.spec.ranks import (
    BUCKETS,
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
    parse_dtypes,
    parse_reshards,
    parse_switches,
)
from sysbench.spec.steps import (
    COMPILE_MODES,
    AdamW,
    Attention,
    Execution,
    Mode,
    OtherOptimizer,
    Precision,
    StepPrecision,
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

PREDICTION = "Prediction"


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


class GridFields(RunCell):
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
        "parameters), tp (tensor parallel, one batch for all ranks), hsdp (sharded replicas), zero1 and zero2 "
        "(replicas that share optimizer state, and reduced gradients, as DeepSpeed does).",
    )
    bucket_mb: Annotated[
        Size | None,
        Axis("choice", "buckets of {} MiB", "bucket MiB", parse=integers(1, MAX_BUCKET_MB), applies_to=(BUCKETS,)),
        Option(metavar="AXIS", panel=RANKS),
    ] = stored_unless(
        None,
        description="ddp: capacity of each gradient bucket in MiB (bucket_cap_mb). Default: 25, and 1 for "
        "the first bucket. zero1, zero2: size of each of two buckets. Default: 500 million elements.",
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
        "keeping them. full, every-2 (every second block), selective (keep linear layers and fused attention), "
        "reentrant (every block, by torch's older way), or a pattern of module names: 'layers.*.attention'.",
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
        "nf4 (QLoRA: 4 bits), nf4-experts (those of a mixture too), int8 (LLM.int8), all by bitsandbytes, or none.",
    )
    seed: Annotated[Seed, replace(EFFORT, default=0), Option(metavar="N", panel=STEP)] = Field(
        description="Seed for parameters and tokens."
    )

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
