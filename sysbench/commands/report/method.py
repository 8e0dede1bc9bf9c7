"""Definitions of the terms and numbers that occur in a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sysbench.commands.attention.record import AttentionCellRecord
from sysbench.commands.loop.record import LoopCellRecord
from sysbench.commands.memory.record import MemoryCellRecord
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.commands.report.document import ReportedRun, Term, reported_commands
from sysbench.commands.time.record import TimeCellRecord

_PHASE_MEANINGS: Mapping[str, str] = {
    "zero_grad": "gradients are set to None.",
    "forward": "from tokens to logits; the graph for backward is kept, except in inference.",
    "loss": "cross-entropy of the logits, in fp32.",
    "backward": "gradients of all parameters; gradients are None at the start of each step.",
    "optimizer": "one step of AdamW on all parameters.",
    "step": "the sum of the phases of the mode, step by step; with --sync step, one timed interval.",
}
_MODE_MEANINGS: Mapping[str, str] = {
    "inference": "forward only, without a graph.",
    "forward": "forward with the graph kept, as in training.",
    "forward-backward": "zero_grad, forward, loss and backward; no optimizer.",
    "train": "zero_grad, forward, loss, backward and optimizer: a full step.",
}
_PROTOCOL_MEANINGS: Mapping[str, str] = {
    "inference": "no graph is kept: parameters, logits and the activations of one layer.",
    "forward": "the graph is kept; logits and loss are alive; no gradients.",
    "forward-backward": "gradients, which are None before forward; no optimizer.",
    "train-first": "the first step, which allocates the optimizer's state.",
    "train": "a later step: the optimizer's state exists; gradients are None before forward.",
}
_PRECISION_MEANINGS: Mapping[str, str] = {
    "fp32": "all matrix products in fp32; TF32 is off.",
    "tf32": "fp32 with TF32 (10 bits of mantissa) for matrix products.",
    "bf16": "autocast to bfloat16: matrix products in bf16; parameters, gradients and optimizer in fp32.",
    "fp16": "autocast to float16: matrix products in fp16; parameters, gradients and optimizer in fp32.",
}
_ATTENTION_PRECISION_MEANINGS: Mapping[str, str] = {
    "fp32": "q, k and v in fp32; TF32 is off.",
    "tf32": "q, k and v in fp32, with TF32 for matrix products.",
    "bf16": "q, k and v in bfloat16.",
    "fp16": "q, k and v in float16.",
}
_EXPERIMENT_MEANINGS: Mapping[str, str] = {
    "sums": "one number added to itself repeatedly, in every format and order; errors are relative to exact "
    "arithmetic.",
    "autocast": "dtypes of parts of a model under autocast: measured on this device, and as simulated under CUDA's "
    "rules.",
    "norm": "layer norm over inputs scaled by powers of two, compared with fp64.",
    "scaling": "gradients of one backward pass in 16 bits, with the loss scaled by powers of two.",
    "matmul": "products of random matrices compared with fp64, by the length of the dot products.",
}


def terms(runs: Sequence[ReportedRun[Any]]) -> Iterator[Term]:
    """Yield the definition of every term in the report once, in the order of the commands that use the terms."""
    term_by_word: dict[str, Term] = {}
    for command in reported_commands():
        cells = [cell for run in runs if run.record.kind == command.name for cell in run.record.cells]
        for term in command.part("terms")(cells) if cells and command.terms else ():
            term_by_word.setdefault(term.word, term)
    yield from term_by_word.values()
    if any(cell.cautions for run in runs for cell in run.record.cells):
        yield Term("caution", "a reason to doubt a number, detected in the data, with a remedy.")
    if any(run.origin in ("simulated", "mixed") for run in runs):
        yield Term(
            "simulated",
            "computed without the hardware: the allocations of the step, replayed with a model of CUDA's caching "
            "allocator on tensors without data. Simulated numbers next to measured ones are always marked.",
        )
    if any(run.origin == "predicted" for run in runs):
        yield Term(
            "predicted",
            "computed without the hardware: every kernel of the step is timed with the rates of the GPU, and a host "
            "issues the kernels one by one. The interval contains the time in 90 % of cases; the lower bound "
            "assumes data-sheet rates and zero host time, and is not a prediction. Predicted times never share a "
            "column with measured ones.",
        )


def _used_terms(meanings: Mapping[str, str], words: Iterable[object], term_format: str = "{}") -> Iterator[Term]:
    """Yield the definitions in `meanings` whose words occur in `words`; `term_format` formats the word as a term."""
    used = set(words)
    yield from (Term(term_format.format(word), meaning) for word, meaning in meanings.items() if word in used)


def _mode_terms(cells: Sequence[Any]) -> Iterator[Term]:
    return _used_terms(_MODE_MEANINGS, (cell.cell.mode for cell in cells), "mode {}")


def _precision_terms(cells: Sequence[Any]) -> Iterator[Term]:
    return _used_terms(_PRECISION_MEANINGS, (cell.cell.precision for cell in cells))


def time_terms(cells: Sequence[TimeCellRecord]) -> Iterator[Term]:
    """Yield definitions of the terms in the tables of `sysbench time`."""
    if not all(cell.cell.simulate for cell in cells):
        yield Term(
            "time",
            "after the warm-up steps, every phase is timed with the host's clock between two device "
            "synchronizations, or with device events if the host does not wait. Warm-up steps are recorded but not "
            "counted.",
        )
        yield Term("± after a mean", "the standard deviation of the measured steps (n − 1), not of their mean.")
        yield Term(
            "95 % interval",
            "of a median, or of a ratio of two medians: from order statistics, without assuming a distribution; "
            "omitted for fewer than six samples.",
        )
        yield from _used_terms(_PHASE_MEANINGS, (phase for cell in cells for phase in cell.phases))
    if any(cell.cell.grad_accum > 1 for cell in cells):
        yield Term(
            "grad accum",
            "micro-batches per step, each of the batch size: forward, loss and backward run once for each, and "
            "gradients accumulate before one optimizer step. Times of these phases are sums over the micro-batches, "
            "and rates count all of them.",
        )
    yield from _mode_terms(cells)
    yield from _precision_terms(cells)
    yield from _rate_terms(cells)


def _rate_terms(cells: Sequence[TimeCellRecord]) -> Iterator[Term]:
    known = [cell.rates for cell in cells if cell.rates]
    if not known:
        return
    yield Term(
        "achieved",
        "model FLOPs of the step divided by its mean time. A forward pass has B·[L(8Td² + 4T²d + 6T·d·d_ff) + "
        "2TdV], without a discount for causality; backward has twice that.",
    )
    sources = list(dict.fromkeys(rates.peak_source for rates in known if rates.peak_source))
    if sources:
        yield Term(
            "of peak", f"achieved rate relative to the dense data-sheet rate at that precision: {'; '.join(sources)}."
        )
    if any(rates.ceiling_share is not None for rates in known):
        yield Term(
            "of matmul",
            "achieved rate relative to the fastest large matrix product that any run has seen on this device with this "
            "torch.",
        )


def profile_terms(cells: Sequence[ProfileCellRecord]) -> Iterator[Term]:
    """Yield definitions of the terms in the tables of `sysbench profile`."""
    if all(cell.cell.simulate for cell in cells):
        yield from _mode_terms(cells)
        yield from _precision_terms(cells)
        return
    yield Term(
        "profile",
        "steps under a profiler, in a separate process. Backward kernels are attributed to the forward operator "
        "that caused them."
        + (" With several ranks: the kernels of rank 0." if any(cell.cell.ranks > 1 for cell in cells) else ""),
    )
    if any(cell.unprofiled for cell in cells):
        yield Term(
            "unprofiled", ("median time of the same step without a profiler, measured first in a separate process.")
        )
    if any(cell.coverage is not None for cell in cells):
        yield Term("covered", "share of the unprofiled median step during which the device was busy.")
    if any(cell.cost_share is not None for cell in cells):
        yield Term("by profiling", "relative increase of the median step under the profiler.")
    yield from _mode_terms(cells)
    yield from _precision_terms(cells)


def memory_terms(cells: Sequence[MemoryCellRecord]) -> Iterator[Term]:
    """Yield definitions of the terms in the tables of `sysbench memory`."""
    yield Term(
        "allocated",
        "peak bytes of tensors, as rounded by the allocator. Before each protocol, tensors left from earlier steps "
        "are deleted and peaks are reset.",
    )
    if any(cell.peak_reserved_bytes is not None for cell in cells):
        yield Term("reserved", "device memory held by the caching allocator, in use or not.")
    if any(cell.host_rss_peak_bytes is not None for cell in cells):
        yield Term("worker, host memory", "peak resident memory of the whole measuring process.")
    yield from _used_terms(_PROTOCOL_MEANINGS, (cell.cell.mode for cell in cells), "memory of {}")
    yield from _precision_terms(cells)


def attention_terms(cells: Sequence[AttentionCellRecord]) -> Iterator[Term]:
    """Yield definitions of the terms in the tables of `sysbench attention`."""
    yield Term(
        "attention",
        "the operator alone, softmax(q kᵀ / √d) v and its gradients, on random inputs of (batch, N, d), with heads "
        "(batch, heads, N, d).",
    )
    if any(cell.source == "predicted" for cell in cells):
        yield Term(
            "attention, predicted",
            "the time of the kernels that one call launches, at the rates of the GPU, without the host. Memory is "
            "simulated: allocations of tensors without data, with a model of CUDA's caching allocator.",
        )
    if any(cell.forward for cell in cells):
        clock = "device events" if all(cell.device_events for cell in cells if cell.forward) else "the host's clock"
        yield Term(
            "attention, forward and backward", (f"each call is timed separately, after warm-up calls, with {clock}.")
        )
    if any(cell.saved_bytes is not None for cell in cells):
        yield Term("kept for backward", "memory that forward leaves allocated, excluding inputs and output.")
    if any(cell.before_backward_bytes is not None for cell in cells):
        yield Term("before backward", "all memory allocated when backward starts, including inputs and output.")
    if any(cell.rates for cell in cells):
        yield Term(
            "of limit",
            "the minimum time according to the data sheet, limited by FLOPs or by bytes moved, whichever is longer, "
            "divided by the median.",
        )
    yield from _used_terms(_ATTENTION_PRECISION_MEANINGS, (cell.cell.precision for cell in cells), "{} attention")


def accum_terms(cells: Sequence[Any]) -> Iterator[Term]:
    """Yield definitions of the terms in the tables of `sysbench accum`."""
    return _used_terms(_EXPERIMENT_MEANINGS, (cell.experiment for cell in cells))


def loop_terms(cells: Sequence[LoopCellRecord]) -> Iterator[Term]:
    """Yield definitions of the terms in the tables of a recorded training loop."""
    yield Term(
        "self-measured process",
        "a program timed its own training loop with marks; the bookkeeping happens between its steps, and no other "
        "process monitored it.",
    )
    if any(cell.outside for cell in cells):
        yield Term(
            "outside phases",
            ("the rest of a step; a step lasts from its first phase to the first phase of the next step."),
        )
