"""What a training step does, by name: its phases and modes, number formats, ways to compute it, protocols of memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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

Execution = Literal["eager", "compiled", "compiled-graphs", "compiled-autotune"]

COMPILE_MODES: Mapping[Execution, str] = {
    "compiled": "default",
    "compiled-graphs": "reduce-overhead",
    "compiled-autotune": "max-autotune",
}
"""`mode` of torch.compile, by execution."""

AdamW = Literal["for-loop", "foreach", "fused"]
OtherOptimizer = Literal["sgd", "adafactor", "muon", "adamw-8bit", "adamw-4bit", "adamw-8bit-paged"]

PHASES_OF: dict[Mode, tuple[Phase, ...]] = {
    "inference": ("forward",),
    "forward": ("forward",),
    "forward-backward": ("zero_grad", "forward", "loss", "backward"),
    "train": ("zero_grad", "forward", "loss", "backward", "optimizer"),
}
"""Every mode is a named sequence of phases. `inference` runs forward without a graph, `forward` keeps the graph."""

Protocol = Literal["inference", "forward", "forward-backward", "train-first", "train"]
"""inference         no graph; only the logits are kept
forward           the graph, the logits and the loss are kept
forward-backward  also gradients, which are cleared before forward; no optimizer
train-first       the first step, in which the optimizer allocates its state
train             a later step: the optimizer's state exists, gradients are cleared before forward
"""

SearchAxis = Literal["batch", "ctx", "ranks"]


@dataclass(frozen=True)
class Procedure:
    """How to run a protocol: mode of the steps, phases of the measured step, and number of earlier steps."""

    mode: Mode
    phases: tuple[Phase, ...]
    earlier_steps: int


PROCEDURES: Mapping[Protocol, Procedure] = {
    "inference": Procedure("inference", ("forward",), 1),
    "forward": Procedure("forward-backward", ("forward", "loss"), 1),
    "forward-backward": Procedure("forward-backward", ("zero_grad", "forward", "loss", "backward"), 1),
    "train-first": Procedure("train", ("zero_grad", "forward", "loss", "backward", "optimizer"), 0),
    "train": Procedure("train", ("zero_grad", "forward", "loss", "backward", "optimizer"), 1),
}
