"""Definitions of the terms and numbers that occur in a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sysbench.commands.attention.record import AttentionCellRecord
from sysbench.commands.loop.record import LoopCellRecord
from sysbench.commands.memory.record import MemoryCellRecord
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.commands.report.document import ReportedRun, Term, reported
from sysbench.commands.time.record import TimeCellRecord

_PHASES: Mapping[str, str] = {
    "zero_grad": "gradients are set to None.",
    "forward": "from tokens to logits, with the graph for backward kept unless the mode is inference.",
    "loss": "cross-entropy of the logits, in fp32.",
    "backward": "gradients of all parameters; each step begins without any.",
    "optimizer": "one step of AdamW on all parameters.",
    "step": "the phases of the mode, added up step by step; timed as one with --sync step.",
}
_MODES: Mapping[str, str] = {
    "inference": "forward alone, without a graph.",
    "forward": "forward with the graph kept, as in training.",
    "forward-backward": "zero_grad, forward, loss and backward; no optimizer.",
    "train": "zero_grad, forward, loss, backward and optimizer: a full step.",
}
_PROTOCOLS: Mapping[str, str] = {
    "inference": "no graph is kept: parameters, logits and what one layer needs.",
    "forward": "the graph is kept, logits and loss are alive; no gradients.",
    "forward-backward": "gradients, which are None before forward; no optimizer.",
    "train-first": "the first step: the optimizer's state appears in it.",
    "train": "a later step: the optimizer's state is there, gradients are None before forward.",
}
_PRECISIONS: Mapping[str, str] = {
    "fp32": "all products in fp32; TF32 is off.",
    "tf32": "fp32 with TF32 allowed for matrix products: 10 bits of mantissa.",
    "bf16": "autocast to bfloat16: products in bf16, parameters, gradients and the optimizer in fp32.",
    "fp16": "autocast to float16: products in fp16, parameters, gradients and the optimizer in fp32.",
}
_ATTENTION_PRECISIONS: Mapping[str, str] = {
    "fp32": "q, k and v in fp32; TF32 is off.",
    "tf32": "q, k and v in fp32, with TF32 allowed for matrix products.",
    "bf16": "q, k and v in bfloat16.",
    "fp16": "q, k and v in float16.",
}
_EXPERIMENTS: Mapping[str, str] = {
    "sums": "one number added to itself, in every format and order; errors are against exact arithmetic.",
    "autocast": "the types of parts of a model under autocast: measured on this device, and simulated by CUDA's rules.",
    "norm": "layer norm over inputs scaled by powers of two, against fp64.",
    "scaling": "gradients of one backward pass in 16 bits, with the loss scaled by powers of two.",
    "matmul": "products of random matrices against fp64, by the length of their sums.",
}


def terms(runs: Sequence[ReportedRun[Any]]) -> Iterator[Term]:
    """Yield the definition of each term once, in the order of the commands that use it."""
    said: dict[str, Term] = {}
    for command in reported():
        cells = [cell for run in runs if run.record.kind == command.name for cell in run.record.cells]
        for term in command.part("terms")(cells) if cells and command.terms else ():
            said.setdefault(term.word, term)
    yield from said.values()
    if any(cell.cautions for run in runs for cell in run.record.cells):
        yield Term("caution", "a reason to doubt a number, found in the data, with its remedy.")
    if any(run.origin in ("simulated", "mixed") for run in runs):
        yield Term(
            "simulated",
            "computed without the hardware: allocations of the step on tensors without data, under a model of CUDA's "
            "caching allocator. Simulated numbers among measured ones are always marked.",
        )
    if any(run.origin == "predicted" for run in runs):
        yield Term(
            "predicted",
            "computed without the hardware: every kernel of the step, timed by the rates of the GPU, behind a host "
            "that issues them one by one. The interval contains the time in 90 % of cases; the lower bound assumes "
            "data-sheet rates and no host, and is not a prediction. Predicted times are never in a column of measured "
            "ones.",
        )


def _used(meanings: Mapping[str, str], words: Iterable[object], named: str = "{}") -> Iterator[Term]:
    """Yield the definitions of those of the `words` that have one, in the order of the definitions."""
    there = set(words)
    yield from (Term(named.format(word), meaning) for word, meaning in meanings.items() if word in there)


def _modes(cells: Sequence[Any]) -> Iterator[Term]:
    return _used(_MODES, (cell.cell.mode for cell in cells), "mode {}")


def _precisions(cells: Sequence[Any]) -> Iterator[Term]:
    return _used(_PRECISIONS, (cell.cell.precision for cell in cells))


def of_time(cells: Sequence[TimeCellRecord]) -> Iterator[Term]:
    """Define the terms in the tables of `sysbench time`."""
    if not all(cell.prediction for cell in cells):
        yield Term(
            "time",
            "after the warm-up steps every phase is timed by the host's clock between two synchronizations of the "
            "device; by the device's own events where the host does not wait. Warm-up steps are kept and not counted.",
        )
        yield Term("± after a mean", "the standard deviation of the measured steps (n − 1); not that of their mean.")
        yield Term(
            "95 % interval",
            "of a median, or of a ratio of two medians: from the order of the samples, whatever their distribution; "
            "there is none of fewer than six.",
        )
        yield from _used(_PHASES, (phase for cell in cells for phase in cell.phases))
    if any(cell.cell.grad_accum > 1 for cell in cells):
        yield Term(
            "grad accum",
            "micro-batches per step, each of the batch: forward, loss and backward run once for each, and gradients "
            "add up before one step of the optimizer. Times of these phases are sums over the micro-batches, and rates "
            "count all of them.",
        )
    yield from _modes(cells)
    yield from _precisions(cells)
    yield from _rates(cells)


def _rates(cells: Sequence[TimeCellRecord]) -> Iterator[Term]:
    known = [cell.rates for cell in cells if cell.rates]
    if not known:
        return
    yield Term(
        "achieved",
        "model FLOPs of the step over its mean time. A forward pass has B·[L(8Td² + 4T²d + 6T·d·d_ff) + 2TdV], "
        "causality not exploited; backward twice that.",
    )
    sources = list(dict.fromkeys(rates.peak_source for rates in known if rates.peak_source))
    if sources:
        yield Term(
            "of peak", f"achieved over the dense rate of the data sheet at that precision: {'; '.join(sources)}."
        )
    if any(rates.ceiling_share is not None for rates in known):
        yield Term("of matmul", "achieved over what one large matrix product reached on this device in the same run.")


def of_profile(cells: Sequence[ProfileCellRecord]) -> Iterator[Term]:
    """Define the terms in the tables of `sysbench profile`."""
    if all(cell.prediction for cell in cells):
        yield from _modes(cells)
        yield from _precisions(cells)
        return
    yield Term(
        "profile",
        "steps under a profiler, in a separate process. Kernels of backward are attributed to the operator of forward "
        "that caused them."
        + (" Of several ranks, kernels are those of rank 0." if any(cell.cell.ranks > 1 for cell in cells) else ""),
    )
    if any(cell.unprofiled for cell in cells):
        yield Term("unprofiled", "the same step, timed first without a profiler, in another process; its median.")
    if any(cell.coverage is not None for cell in cells):
        yield Term("covered", "share of the unprofiled median step during which the device was busy.")
    if any(cell.cost_share is not None for cell in cells):
        yield Term("by profiling", "relative increase of the median step under the profiler.")
    yield from _modes(cells)
    yield from _precisions(cells)


def of_memory(cells: Sequence[MemoryCellRecord]) -> Iterator[Term]:
    """Define the terms in the tables of `sysbench memory`."""
    yield Term(
        "allocated",
        "peak bytes of tensors, as rounded by the allocator. Before each protocol, leftovers of a step are deleted and "
        "peaks are reset.",
    )
    if any(cell.peak_reserved_bytes is not None for cell in cells):
        yield Term("reserved", "device memory that the caching allocator holds, whether in use or not.")
    if any(cell.host_rss_peak_bytes is not None for cell in cells):
        yield Term("worker, host memory", "peak resident memory of the measuring process, everything included.")
    yield from _used(_PROTOCOLS, (cell.cell.mode for cell in cells), "memory of {}")
    yield from _precisions(cells)


def of_attention(cells: Sequence[AttentionCellRecord]) -> Iterator[Term]:
    """Define the terms in the tables of `sysbench attention`."""
    yield Term(
        "attention",
        "the operator alone, softmax(q kᵀ / √d) v and its gradients, on random inputs of (batch, N, d), with heads "
        "(batch, heads, N, d).",
    )
    if any(cell.source == "predicted" for cell in cells):
        yield Term(
            "attention, predicted",
            "the time of the kernels that one call launches, by the rates of the GPU, without the host. Memory is "
            "simulated: allocations on tensors without data, under a model of CUDA's caching allocator.",
        )
    if any(cell.forward for cell in cells):
        clock = "device events" if all(cell.device_events for cell in cells if cell.forward) else "the host's clock"
        yield Term("attention, forward and backward", f"each call is timed by itself, after warm-up calls, by {clock}.")
    if any(cell.saved_bytes is not None for cell in cells):
        yield Term("kept for backward", "memory that forward leaves allocated, besides inputs and output.")
    if any(cell.before_backward_bytes is not None for cell in cells):
        yield Term("before backward", "all memory that is allocated when backward begins, including inputs and output.")
    if any(cell.rates for cell in cells):
        yield Term(
            "of limit",
            "the least time that the data sheet allows, by FLOPs or by bytes moved, whichever is longer, over the "
            "median.",
        )
    yield from _used(_ATTENTION_PRECISIONS, (cell.cell.precision for cell in cells), "{} attention")


def of_accum(cells: Sequence[Any]) -> Iterator[Term]:
    """Define the terms in the tables of `sysbench accum`."""
    return _used(_EXPERIMENTS, (cell.experiment for cell in cells))


def of_loop(cells: Sequence[LoopCellRecord]) -> Iterator[Term]:
    """Define the terms in the tables of loops."""
    yield Term(
        "measured by the process itself",
        "a program timed its own training loop, by marks in it; the work of measuring is done between its steps, and "
        "no other process watched it.",
    )
    if any(cell.outside for cell in cells):
        yield Term("outside phases", "the rest of a step, which lasts from its first phase to that of the next one.")
