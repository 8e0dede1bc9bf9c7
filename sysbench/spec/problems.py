"""Why a cell cannot run: combinations of its values that have no meaning, or that a device does not support."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sysbench.errors import Refusal
from sysbench.spec.cell import DeviceType
from sysbench.spec.grid import GridFields
from sysbench.spec.knobs import FP8, FP8_MULTIPLE, LOW_BIT, NONE, PAGED
from sysbench.spec.options import flag_of
from sysbench.spec.ranks import NODE_RANKS, ZERO, Strategy, layout
from sysbench.spec.steps import Attention, StepPrecision

ATTENTION_ON: Mapping[DeviceType, tuple[Attention, ...]] = {
    "cpu": ("naive", "sdpa", "flash", "math", "flex"),
    "mps": ("naive", "sdpa", "math"),
}
"""Implementations of attention on devices that do not have all of them."""


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


def modelled_parts(cell: GridFields) -> list[str]:
    """Return what a simulation of this cell follows by a description instead of running the code of a library."""
    is_low_bit = cell.optimizer in LOW_BIT and "optimizer" in cell.phases
    return [
        *["the optimizer (state as the library stores it, time by bytes moved)"] * is_low_bit,
        *["frozen weights (as bitsandbytes stores and dequantizes them)"] * (cell.quantize is not None),
    ]


def knobs_device_problem(cell: GridFields, device: str) -> Refusal | None:
    """Return why a type of device does not support a knob of this cell, or None if it supports all."""
    if device == "cuda":
        return None
    if cell.execution == "compiled-graphs":
        given = "--execution compiled-graphs"
        return Refusal(f"records CUDA graphs, which {device} lacks", "nearest: compiled", given)
    if cell.allocator != "default":
        return Refusal(
            f"is for CUDA; {device} has no caching allocator of torch", option=f"--allocator {cell.allocator}"
        )
    if cell.offload != NONE:
        given = f"--offload {cell.offload}"
        return Refusal("moves state from a GPU to the host: it needs CUDA", option=given)
    if cell.optimizer == PAGED:
        needs_cuda = "moves state between a GPU and the host: it needs CUDA"
        return Refusal(needs_cuda, "nearest: adamw-8bit", f"--optimizer {PAGED}")
    return None


def knobs_problem_of(cell: GridFields) -> Refusal | None:
    """Return why a knob has no meaning in the mode of this cell, or None if all have."""
    checks = (_micro_batches, _adapters, _fp8, _sharding, _shared_state, _in_backward, _offload, _recomputation)
    return next((refusal for check in checks for refusal in check(cell)), None)


def _micro_batches(cell: GridFields) -> Iterator[Refusal]:
    given = f"--grad-accum {cell.grad_accum}"
    if cell.grad_accum > 1 and "backward" not in cell.phases:
        yield Refusal(
            "adds up the gradients of several backward passes, but this mode has no backward pass",
            "nearest: --mode forward-backward",
            given,
        )
    if cell.grad_accum > 1 and cell.uses_cuda_graphs:
        yield Refusal(
            f"adds up gradients, but with --execution {cell.execution} they are in the memory of a CUDA "
            "graph, which the next micro-batch overwrites",
            "nearest: --execution compiled",
            given,
        )


def _recomputation(cell: GridFields) -> Iterator[Refusal]:
    if cell.checkpoint != NONE and cell.step is not None and "backward" not in cell.step.phases:
        yield Refusal(
            "computes activations again in the backward pass, but this mode has no backward pass",
            "nearest: --mode forward-backward",
            f"--checkpoint {cell.checkpoint}",
        )
    if cell.cross_entropy != "full" and "loss" not in cell.phases:
        yield Refusal(
            "computes the loss in another way, but this mode has no loss",
            "nearest: --mode forward-backward",
            f"--cross-entropy {cell.cross_entropy}",
        )


def _adapters(cell: GridFields) -> Iterator[Refusal]:
    given = f"--lora {cell.lora}"
    if cell.lora and cell.mode == "inference":
        no_training = "adds parameters to train, but this mode trains none"
        yield Refusal(no_training, "nearest: --mode forward-backward", given)
    if cell.lora and cell.adapter == "dora" and cell.quantize is not None:
        packed = f"needs the lengths of weights, which --quantize {cell.quantize} packs: not modelled"
        yield Refusal(packed, "nearest: --adapter lora, which needs less memory", "--adapter dora")
    if cell.lora and cell.strategy == "tp":
        yield Refusal("does not support --strategy tp", "nearest: --strategy ddp", given)


def _fp8(cell: GridFields) -> Iterator[Refusal]:
    if cell.precision not in FP8:
        return
    given, nearest, shape = f"--precision {cell.precision}", "nearest: --precision bf16", cell.shape
    if cell.lora:
        frozen = f"trains whole weights, but --lora {cell.lora} freezes them"
        yield Refusal(frozen, nearest, given)
    sides = {"d_model": shape.d_model, "d_ff": shape.d_ff} if shape is not None else {}
    sides["tokens (batch × ctx)"] = cell.tokens
    if odd := [f"{name} {size}" for name, size in sides.items() if size % FP8_MULTIPLE]:
        yield Refusal(f"needs sides divisible by {FP8_MULTIPLE}, but has {' and '.join(odd)}", nearest, given)


def _sharding(cell: GridFields) -> Iterator[Refusal]:
    if cell.strategy not in ("fsdp2", "hsdp", "tp"):
        return
    unsupported = f"does not support the sharded parameters of {cell.strategy}"
    if cell.precision in FP8:
        yield Refusal(unsupported, "nearest: --strategy ddp", f"--precision {cell.precision}")
    if cell.quantize is not None:
        yield Refusal(unsupported, "nearest: ddp", f"--quantize {cell.quantize}")
    if cell.optimizer == PAGED:
        yield Refusal(unsupported, "nearest: adamw-8bit", f"--optimizer {PAGED}")


def _shared_state(cell: GridFields) -> Iterator[Refusal]:
    if cell.strategy not in ZERO:
        return
    given = f"--strategy {cell.strategy}"
    if "optimizer" not in cell.phases:
        yield Refusal("shares the optimizer's state, but this mode has no optimizer", "nearest: --mode train", given)
    unsupported = f"does not support {given}"
    if cell.precision in ("fp16", *FP8):
        nearest = "fp16-true" if cell.precision == "fp16" else "bf16-true"
        yield Refusal(unsupported, f"nearest: {nearest}", f"--precision {cell.precision}")
    if cell.optimizer in ("muon", "adafactor", PAGED):
        of_matrices = f"updates matrices, but {given} makes all parameters one vector"
        reason = unsupported if cell.optimizer == PAGED else of_matrices
        yield Refusal(reason, "nearest: fused", f"--optimizer {cell.optimizer}")


def _in_backward(cell: GridFields) -> Iterator[Refusal]:
    if cell.optimizer_in_backward != "on":
        return
    given = "--optimizer-in-backward on"
    if "optimizer" not in cell.phases:
        yield Refusal("updates parameters, but this mode has no optimizer", "nearest: --mode train", given)
    if cell.grad_accum > 1:
        several = f"frees each gradient at once, but --grad-accum {cell.grad_accum} adds up several"
        yield Refusal(several, "drop one of them", given)
    if cell.precision == "fp16":
        unchecked = "updates before all gradients could be checked for infinities, as fp16 needs"
        yield Refusal(unchecked, "nearest: --precision bf16", given)
    if cell.ranks > 1:
        not_exchanged = f"updates before the {cell.ranks} ranks have exchanged gradients"
        yield Refusal(not_exchanged, "use --ranks 1", given)
    if ":" in cell.optimizer:
        all_at_once = f"takes one parameter at a time, but {cell.optimizer} takes them all"
        yield Refusal(all_at_once, "nearest: --optimizer foreach", given)


def _offload(cell: GridFields) -> Iterator[Refusal]:
    if cell.offload == NONE:
        return
    given = f"--offload {cell.offload}"
    if "optimizer" not in cell.phases:
        no_optimizer = "moves optimizer state to the host, but this mode has no optimizer"
        yield Refusal(no_optimizer, "nearest: --mode train", given)
    if cell.offload == "parameters" and cell.strategy not in ("fsdp2", "hsdp"):
        remedy = "add --ranks 2 --strategy fsdp2. Nearest without shards: --offload optimizer"
        yield Refusal("moves shards to the host", remedy, given)
    if cell.optimizer_in_backward == "on":
        elsewhere = "and --optimizer-in-backward on update parameters in different places"
        yield Refusal(elsewhere, "drop one of them", given)
    if cell.precision == "fp16":
        unscaled = "copies gradients before they are unscaled, as fp16 needs"
        yield Refusal(unscaled, "nearest: --precision bf16", given)
    if cell.offload == "optimizer" and cell.ranks > 1:
        one_process = f"runs one process, but the step has {cell.ranks} ranks"
        yield Refusal(one_process, "use --ranks 1, or --strategy fsdp2 --offload parameters", given)
    if cell.optimizer not in ("for-loop", "foreach", "fused"):
        yield Refusal(f"runs AdamW on the host, not {cell.optimizer}", "nearest: --optimizer fused", given)


def knobs_problem(
    strategies: Sequence[Strategy],
    knobs: Mapping[str, Sequence[object]],
    applicable: Mapping[str, Sequence[object]],
) -> Refusal | None:
    """Return a refusal if one of the given knobs applies to none of the strategies, otherwise None."""
    for name, values in knobs.items():
        if values and not set(applicable[name]) & set(strategies):
            needed = ", ".join(map(str, applicable[name]))
            reason = f"applies to --strategy {needed}; this run has {', '.join(strategies)}"
            return Refusal(reason, option=flag_of(name))
    return None


def ranks_problem(cell: GridFields) -> Refusal | None:
    """Return the reason why the cell cannot run on its number of ranks, or None if it can."""
    if cell.ranks > 1 and (refused := cell.ranks_unsupported_reason) is not None:
        return Refusal(refused, option=f"--ranks {cell.ranks}:")
    return layout_problem(cell)


def layout_problem(cell: GridFields) -> Refusal | None:
    """Return the reason why the model cannot be distributed with this strategy, or None if it can."""
    ranks, shape, given = cell.ranks, cell.shape, f"--ranks {cell.ranks}"
    if cell.strategy == "hsdp" and (ranks < 4 or ranks % (NODE_RANKS if ranks > NODE_RANKS else 2)):
        nearest = max(4, ranks - ranks % 2) if ranks <= NODE_RANKS else max(16, round(ranks / NODE_RANKS) * NODE_RANKS)
        uneven = "cannot form replicas of equal size for --strategy hsdp"
        return Refusal(uneven, f"use 4, 6, 8, or a multiple of {NODE_RANKS}. Nearest: {nearest}", given)
    if isinstance(cell.reshard, int) and cell.strategy is not None:
        shards = layout(cell.strategy, ranks)[1]
        groups = [size for size in range(2, shards) if shards % size == 0]
        if cell.reshard not in groups:
            wanted = cell.reshard
            closest = min(groups, key=lambda size: abs(size - wanted), default="on")
            return Refusal(
                f"does not divide the {shards} ranks of a --strategy {cell.strategy} shard group",
                f"use one of {', '.join(['on', 'off', *map(str, groups)])}. Nearest: {closest}",
                f"--reshard {wanted}",
            )
    if cell.strategy == "tp" and shape is not None:
        for name, size in (("heads", shape.heads), ("d_ff", shape.d_ff)):
            if size % ranks:
                fits = [each for each in range(1, size + 1) if shape.heads % each == 0 and shape.d_ff % each == 0]
                nearest = min(fits, key=lambda each: abs(each - ranks))
                split = f"splits the {size} {name.replace('d_ff', 'columns of d_ff')} of {cell.size} over {given}"
                return Refusal(
                    f"{split}, which does not divide them", f"nearest valid number: {nearest}", "--strategy tp"
                )
    return None
