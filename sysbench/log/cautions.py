"""Cautions about a cell's numbers, each with a remedy."""

from __future__ import annotations

import statistics as standard
from collections.abc import Iterator, Sequence

from sysbench import statistics, units
from sysbench.command import Kind, command_of
from sysbench.log.collect import CellEvents, Run
from sysbench.log.events import OwnModelBuilt, ReadingsLost, ThreadsProbe, ThreadsTried
from sysbench.log.outcomes import Caution
from sysbench.spec.cell import RunCell
from sysbench.spec.knobs import FP8, modelled_parts
from sysbench.spec.model import Execution, ModelCell, Sync
from sysbench.spec.time_limit import time_limit_word

WIDE_INTERVAL = 0.05
"""A 95% interval wider than this share of the median does not support a comparison of a few percent."""

LONGER_LIMIT = 4
"""How many times as long a time limit to suggest, if it ended a measurement too early."""

THROTTLED_SHARE = 0.1
"""A cell counts as throttled if more than this share of its readings report a reason; a single one may be chance."""

BUSY_SHARE = 0.15
"""Share of all cores used by other processes beyond which a CPU measurement is doubtful."""

WAITING_THREADS_SHARE = 0.8
"""Threads count as waiting only if every step on fewer threads takes less than this share of the median step."""

MARGIN_UNCERTAINTY_SHARE = 0.02
"""A margin below this share of the GPU's memory is uncertain: CUDA contexts take 300 to 600 MiB, and simulated peaks
are within 1% of recorded snapshots."""


def margin_uncertainty_bytes(memory_bytes: int) -> int:
    """Return the uncertainty of a simulated margin on a GPU with this memory."""
    return round(MARGIN_UNCERTAINTY_SHARE * memory_bytes)


LAUNCH_BOUND_SHARE = 0.05
"""A phase is launch-bound if, after the last launch, the device works for less than this share of the phase. A full
launch queue (1,024 entries in CUDA) takes far longer to drain.
"""


def assumptions(cell: RunCell, seen: CellEvents) -> Iterator[Caution]:
    """Yield what a simulation assumed: how many elements masks select, and what a library does that has no data."""
    if cell.simulated is not None and cell.step is not None and (modelled := modelled_parts(cell.step)):
        yield Caution(
            code="modelled",
            message=f"modelled, not traced: {'; '.join(modelled)}",
            remedy="measure on a GPU with the library installed",
        )
    model = seen.last(OwnModelBuilt)
    if model is not None and model.assumed:
        yield Caution(
            code="selection-assumed",
            message=f"shapes depend on values, which a simulation does not have; assumed: {'; '.join(model.assumed)}",
            remedy="measure on a device to see what real inputs select",
        )


def stability(warmup: Sequence[float], steps: statistics.Stream) -> Iterator[Caution]:
    """Yield reasons to doubt the mean of these step times, which are in seconds."""
    wall = statistics.series(steps)
    if unfinished := statistics.warmup_unfinished(warmup, wall):
        yield Caution(
            code="warmup-unfinished",
            message=f"the first {_count_of_steps(unfinished.slow_steps)} {'still ' if warmup else ''}took "
            f"{units.share(unfinished.excess_share)} longer than the later ones",
            remedy=f"use --warmup {max(len(warmup) + unfinished.slow_steps, 2 * len(warmup), 5)}",
        )
    if modes := statistics.two_modes(wall):
        levels = f"{units.seconds(modes.lower)} and {units.seconds(modes.upper)}"
        yield Caution(
            code="two-modes",
            message=f"the step time shifted once between {levels}: the mean represents neither"
            if modes.switches == 1
            else f"step times switch between {levels}, and {units.share(modes.upper_share)} of the steps are slow: "
            "the mean represents neither",
            remedy="check for other running programs or changing clock rates; quote both values, or measure again",
        )
    elif drift := statistics.drift(wall):
        slower = drift.change_share > 0
        yield Caution(
            code="drift",
            message=f"steps get {'slower' if slower else 'faster'}, by {units.share(abs(drift.change_share))} from the "
            "first to the last",
            # Only a device that heats up, and therefore slows down, gains from cooling.
            remedy=f"use a longer --warmup{', or let the device cool down first' if slower else ''}",
        )
    if outliers := statistics.outliers(wall):
        yield Caution(
            code="outliers",
            # One wording for any number, so that cautions of several cells combine into one sentence.
            message=f"outliers among the steps ({len(outliers.indices)} of {len(wall)}) move the mean by "
            f"{units.share(abs(outliers.mean_shift_share))}",
            remedy="quote the median; close other programs; use more --steps",
        )
    if correlation := statistics.autocorrelation(wall):
        yield Caution(
            code="autocorrelated",
            message=f"steps are autocorrelated (lag-1 correlation {correlation.lag1:.2f}): "
            f"effective sample size {max(correlation.effective_count, 1):.0f} of {len(wall)}, "
            "so the interval is too narrow",
            remedy="use more --steps",
        )


def precision_of_the_median(
    wall: statistics.Stream, until: float | None, max_steps: int, limit_s: float | None = None
) -> Iterator[Caution]:
    """Warn if the interval of the median is too wide, or if there are too few steps for an interval.

    `limit_s` is the time limit that ended the measurement, if it did.
    """
    longer = f"use --max-time {time_limit_word(limit_s * LONGER_LIMIT)}, or none" if limit_s else None
    if statistics.too_few(wall):
        yield Caution(
            code="too-few-steps",
            message=f"{len(wall)} measured {'step is' if len(wall) == 1 else 'steps are'} too few for a 95% interval",
            remedy=longer or "use --steps 10, or --until 1%",
        )
        return
    width, allowed = statistics.relative_width(wall), until or WIDE_INTERVAL
    if width is not None and width > allowed:
        yield Caution(
            code="interval-too-wide",
            message=f"the 95% CI of the median step spans {units.share(width)}",
            remedy=longer or (f"use --max-steps {2 * max_steps}" if until else "use more --steps, or --until 1%"),
        )


def launch_bound(seen: CellEvents, execution: Execution = "eager") -> Iterator[Caution]:
    """Warn if forward or backward is launch-bound: the device finishes as soon as the host has launched its kernels."""
    if seen.started is None or seen.started.device.type != "cuda":
        return
    phases = [phase for phase in ("forward", "backward") if _is_launch_bound(seen, phase)]
    if phases:
        yield Caution(
            code="launch-bound",
            message=f"{' and '.join(phases)} {'is' if len(phases) == 1 else 'are'} launch-bound: the device "
            "finishes as soon as the host has launched its kernels",
            remedy=more_work_a_launch(execution),
        )


def more_work_a_launch(execution: Execution) -> str:
    """Return the remedy for a step that waits for its host."""
    faster = {"eager": "--compile", "compiled": "--execution compiled-graphs"}.get(execution)
    return f"use {faster}, a larger --batch, or a longer --ctx" if faster else "use a larger --batch or a longer --ctx"


def _is_launch_bound(seen: CellEvents, phase: str) -> bool:
    waiting_shares = [
        (sample.wall_s - sample.enqueue_s) / sample.wall_s
        for step in seen.steps
        if (sample := step.phases.get(phase)) is not None and sample.wall_s and sample.enqueue_s is not None
    ]
    return bool(waiting_shares) and standard.median(waiting_shares) < LAUNCH_BOUND_SHARE


def environment_cautions(seen: CellEvents, lost: Sequence[ReadingsLost]) -> Iterator[Caution]:
    """Warn about the environment: throttled clocks, other processes, lost sensor readings."""
    readings = seen.measured_readings or seen.readings
    throttled = [reading.throttle_reasons for reading in readings if reading.throttle_reasons]
    if readings and len(throttled) > THROTTLED_SHARE * len(readings):
        reasons = sorted({reason for reasons in throttled for reason in reasons})
        yield Caution(
            code="throttled",
            message=f"the GPU throttled its clocks in {units.share(len(throttled) / len(readings))} of the readings: "
            f"{', '.join(reasons)}",
            remedy="compare only with runs under the same limit; check power limit and cooling",
        )
    others = max((reading.other_processes or 0 for reading in seen.readings), default=0)
    if others:
        yield Caution(
            code="gpu-shared",
            message=f"{others} other process{'es' if others > 1 else ''} used the GPU",
            remedy="stop them, or choose another --device",
        )
    busy = [reading.host_cpu_share for reading in readings if reading.host_cpu_share is not None]
    on_cpu = seen.started is not None and seen.started.device.type == "cpu"
    if on_cpu and busy and (typical := standard.median(busy)) > BUSY_SHARE:
        yield Caution(
            code="host-busy",
            message=f"other processes used {units.share(typical)} of the CPU during the run",
            remedy="close them and measure again",
        )
    for loss in lost:
        yield Caution(
            code="readings-lost",
            message=f"{loss.source} stopped answering: {loss.detail}",
            remedy="clocks, power and memory of the device are unknown from that point on",
        )


def emulation(precision: str, seen: CellEvents) -> Iterator[Caution]:
    """Warn if the processor emulates this number format."""
    device = seen.started.device if seen.started is not None else None
    if precision == "bf16" and device is not None and device.type == "cpu" and device.bf16 is False:
        yield Caution(
            code="emulated",
            message="this CPU has no bf16 instructions (AMX, AVX512-BF16) and emulates bf16, many times slower than "
            "fp32: the time says nothing about bf16 on other hardware",
            remedy="use --precision fp32 for times on this machine; dtypes and memory are correct",
        )
    if precision in FP8 and device is not None and device.type == "cpu":
        yield Caution(
            code="emulated",
            message="a CPU has no products in fp8: torchao rounds operands to fp8, and multiplies them in another "
            "format; time and memory say nothing about fp8 on a GPU",
            remedy="use --simulate h100 for memory and time there; losses are correct",
        )


def precision_overridden(precision: str, seen: CellEvents) -> Iterator[Caution]:
    """Warn if the model's own code had switched TF32 on or off; the worker switches it back."""
    kernels = seen.built.precision_overridden if seen.built is not None else ()
    if kernels:
        was, other = ("off", "fp32") if precision == "tf32" else ("on", "tf32")
        yield Caution(
            code="precision-overridden",
            message=f"the model's code had switched TF32 {was} for {' and '.join(kernels)} kernels; this was undone, "
            f"because the cell is {precision}",
            remedy=f"use --precision {other} to measure what the model's code asks for",
        )


def compilation(seen: CellEvents) -> Iterator[Caution]:
    """Warn if torch.compile ran part of the model eagerly, or without the CUDA graphs that the cell asks for."""
    if seen.compiled is not None and seen.compiled.fell_back:
        yield Caution(
            code="compile-fell-back",
            message=f"torch.compile gave up on part of the model and ran it eagerly: {seen.compiled.detail}",
            remedy="this is not a compiled measurement; compare it with --execution eager",
        )
    on_cuda = seen.started is not None and seen.started.device.type == "cuda"
    if on_cuda and seen.compiled is not None and (skipped := seen.compiled.graphs_skipped):
        yield Caution(
            code="graphs-skipped",
            message=f"torch.compile recorded no CUDA graph for {skipped} compiled part{'' if skipped == 1 else 's'}",
            remedy="TORCH_LOGS=cudagraphs says why; without graphs, this is --execution compiled",
        )


def phases_not_measured(sync: Sync, seen: CellEvents) -> Iterator[Caution]:
    """Warn if the phases have no separate times."""
    if sync == "step" and not any(sample.device_s for step in seen.steps for sample in step.phases.values()):
        yield Caution(
            code="not-measured",
            message="phases have no separate times: with --sync step, only device events could provide them",
            remedy="use --sync phase",
        )


def memory_pressure(alloc_retries: int, margin_bytes: int | None, simulated_bytes: int | None) -> Iterator[Caution]:
    """Warn about a step that barely fits in memory: the allocator had to release its cache, or the margin is narrow.

    alloc_retries    number of times the allocator released its whole cache to serve a request
    margin_bytes     free device memory at the peak; None if unknown
    simulated_bytes  memory of the simulated GPU; None if the peak was measured, because its margin is then certain
    """
    if alloc_retries:
        times = "once" if alloc_retries == 1 else f"{alloc_retries} times"
        yield Caution(
            code="allocator-retried",
            message=f"the allocator had to release its whole cache {times}: "
            "steps stall while it does, and a slightly larger step would not fit",
            remedy="use a smaller --batch, or --allocator expandable",
        )
    if simulated_bytes is None or margin_bytes is None:
        return
    uncertainty_bytes = margin_uncertainty_bytes(simulated_bytes)
    if margin_bytes < uncertainty_bytes:
        yield Caution(
            code="narrow-margin",
            message=f"only {units.size(margin_bytes)} to spare: less than the uncertainty of a simulation "
            f"({units.size(uncertainty_bytes)}, {MARGIN_UNCERTAINTY_SHARE * 100:g}% of the "
            "memory: the CUDA context is assumed)",
            remedy="use a slightly smaller --batch or --ctx, or measure on the GPU itself",
        )


def _count_of_steps(steps: int) -> str:
    return "measured step" if steps == 1 else f"{steps} measured steps"


def shared_cores(cell: ModelCell, seen: CellEvents, run: Run) -> Iterator[Caution]:
    """Warn if a cell has more ranks than the CPU has cores, so that the ranks take turns."""
    cores = run.started.host.logical_cores
    if cell.workers > cores and seen.started is not None and seen.started.device.type == "cpu":
        yield Caution(
            code="cores-shared",
            message=f"{cell.ranks} ranks share {cores} core{'' if cores == 1 else 's'} and take turns",
            remedy=f"use --ranks {max(cores, 2)} or fewer; these times only show that the run works; they are not a "
            "performance measurement",
        )


def thread_contention(seen: CellEvents) -> Iterator[Caution]:
    """Yield a caution if threads wait for each other: the same step is much faster on fewer threads."""
    tried = seen.last(ThreadsTried)
    if tried is None or not seen.steps:
        return
    median_s = standard.median(step.step.wall_s or 0.0 for step in seen.steps)
    if max(tried.wall_s) >= WAITING_THREADS_SHARE * median_s:
        return
    yield Caution(
        code="threads-wait",
        message=f"the threads of a step wait for each other: a step takes {units.seconds(median_s)} on {tried.before} "
        f"threads and {units.seconds(standard.median(tried.wall_s))} on {tried.threads}, because other processes use "
        "some of the cores",
        remedy=f"use --threads {tried.threads}, or close the other processes",
    )


def fewer_threads(probe: ThreadsProbe | None, kind: Kind) -> tuple[str, str] | None:
    """Say that a run of the command `kind` uses fewer threads than torch would, and why; None if it uses all."""
    if probe is None or not probe.is_reduced:
        return None
    times = ", ".join(f"{units.seconds(mean_s)} on {threads}" for threads, mean_s in probe.mean_s)
    return (
        f"using {probe.threads} of {probe.default} threads, because other processes use some of the cores: "
        f"the same work took {times}",
        f"--threads {probe.default} uses all"
        if "threads" in command_of(kind).models().spec.model_fields
        else "close the other processes to use all",
    )


def interference(busy_share: float) -> str:
    """Say during a run that other processes disturb it, which use this share of all cores."""
    return f"other processes are using {units.share(busy_share)} of the CPU: these times will be too long"
