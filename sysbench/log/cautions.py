"""What makes the numbers of a cell doubtful: codes, numbers and remedies. `render.sentences.cautions` has the words."""

from __future__ import annotations

import statistics as standard
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sysbench import statistics
from sysbench.log.collect import CellEvents, Run
from sysbench.log.events import OwnModelBuilt, ReadingsLost, ThreadsTried
from sysbench.log.outcomes import Caution, CautionCode, caution
from sysbench.log.records import Samples
from sysbench.spec import hardware
from sysbench.spec.cell import RunCell
from sysbench.spec.knobs import FP8
from sysbench.spec.model import ModelCell, step_of
from sysbench.spec.problems import modelled_parts
from sysbench.spec.quantities import time_limit_word
from sysbench.spec.steps import Execution, Sync

WIDE_INTERVAL = 0.05
"""A 95% interval wider than this share of the median does not support a comparison of a few percent; nor does a median
that may be off by as much."""

CAUSES_FIRST: Final[tuple[CautionCode, ...]] = (
    "throttled",
    "cores-shared",
    "threads-wait",
    "host-busy",
    "gpu-shared",
    "warmup-unfinished",
    "two-modes",
    "drift",
    "autocorrelated",
    "outliers",
    "interval-too-wide",
)
"""What makes times scatter or change: each may be the effect of one before it."""


def causes(found: Iterable[Caution]) -> list[Caution]:
    """Return cautions without the effects of a cause that is among them; the cause comes first.

    Of CAUSES_FIRST, only the first is kept, and what is said of something else than the step.
    """
    listed = list(found)
    codes = {caution.code for caution in listed}
    cause = next((code for code in CAUSES_FIRST if code in codes), None)
    kept = [caution for caution in listed if caution.code == cause or caution.code not in CAUSES_FIRST]
    return sorted(kept, key=lambda caution: caution.code != cause)


LONGER_LIMIT = 4
"""How many times as long a time limit to suggest, if it ended a measurement too early."""

THROTTLED_SHARE = 0.1
"""A cell counts as throttled if more than this share of its readings report a reason; a single one may be chance."""

BUSY_SHARE = 0.15
"""Share of all cores used by other processes beyond which a running CPU measurement is said to be disturbed."""

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
    """Yield what a simulation assumed: kernels of AMD GPUs, elements that masks select, and libraries without data."""
    if cell.simulated is not None and (step := step_of(cell)) and (modelled := modelled_parts(step)):
        yield caution("modelled", "measure on a GPU with the library installed", about=modelled)
    gpu = hardware.by_slug(cell.simulated) if cell.simulated is not None else None
    if gpu is not None and gpu.architecture is not None:
        yield caution("never-compared", "measure on the GPU itself", about=(gpu.title,))
    model = seen.last(OwnModelBuilt)
    if model is not None and model.assumed:
        yield caution("selection-assumed", "measure on a device to see what real inputs select", about=model.assumed)
    if cell.simulated is not None and seen.compiled is not None:
        yield caution("compiled-simulated", "measure on the GPU itself")
        yield from compilation(seen)
        if seen.compiled.breaks:
            yield caution("graph-breaks", "avoid what breaks the graph there", about=seen.compiled.breaks)
    if model is not None and model.run_eagerly:
        yield caution("own-compiling", "measure on a device what compiling saves", about=model.run_eagerly)


def stability(warmup: Sequence[float], steps: Samples, warmup_option: str = "--warmup ") -> Iterator[Caution]:
    """Yield reasons to doubt the median or the mean of these step times, which are in seconds.

    `warmup_option` is how the user gives the number of warm-up steps: `warmup=` in a program.
    """
    wall = steps.estimate.samples
    if unfinished := statistics.warmup_unfinished(warmup, wall):
        yield caution(
            "warmup-unfinished",
            f"use {warmup_option}{max(len(warmup) + unfinished.slow_steps, 2 * len(warmup), 5)}",
            about=("after warm-up",) if warmup else (),
            excess_share=unfinished.excess_share,
            slow_steps=unfinished.slow_steps,
        )
    if modes := statistics.two_modes(wall):
        remedy = "check for other running programs or changing clock rates; quote both values, or measure again"
        yield two_modes("step", modes, remedy)
    elif change := statistics.drift(wall):
        # Only a device that heats up, and therefore slows down, gains from cooling.
        cooler = ", or let the device cool down first" if change.change_share > 0 else ""
        yield drift("step", change, f"use a longer {warmup_option.strip()}{cooler}")
    if outliers := statistics.outliers(wall):
        yield caution(
            "outliers",
            "quote the median; close other programs; use more --steps",
            mean_shift_share=abs(outliers.mean_shift_share),
            outliers=len(outliers.indices),
            steps=len(wall),
        )
    if correlation := statistics.autocorrelation(wall):
        yield caution(
            "autocorrelated",
            "use more --steps",
            lag1_correlation=correlation.lag1,
            effective_steps=max(correlation.effective_count, 1),
            steps=len(wall),
        )


def two_modes(what: str, modes: statistics.Modes, remedy: str) -> Caution:
    """Return the caution that times of `what`, a step or a phase, lie at two levels."""
    levels = {"gap_share": modes.gap_share, "lower_s": modes.lower, "upper_s": modes.upper}
    slow = {"upper_share": modes.upper_share} if modes.switches != 1 else {}
    return caution("two-modes", remedy, about=(what,), **levels, **slow)


def drift(what: str, found: statistics.Drift, remedy: str) -> Caution:
    """Return the caution that times of `what`, a step or a phase, rise or fall."""
    direction = "slower" if found.change_share > 0 else "faster"
    return caution("drift", remedy, about=(what, direction), change_share=abs(found.change_share))


def precision_of_the_median(
    steps: Samples, until: float | None, max_steps: int, limit_s: float | None = None
) -> Iterator[Caution]:
    """Warn if the interval of the median is too wide, or if there are too few steps for an interval.

    What repetitions of the run differ by is left out: more steps do not lessen it, unless there are so few that their
    scatter is taken from it. `limit_s` is the time limit that ended the measurement, if it did.
    """
    longer = f"use --max-time {time_limit_word(limit_s * LONGER_LIMIT)}, or none" if limit_s else None
    interval_s = replace(steps.estimate, repeat_sd=0.0).interval() or steps.estimate.interval()
    if interval_s is None:
        yield caution("too-few-steps", longer or "use --steps 10, or --until 1%", steps=len(steps.samples_s))
        return
    width, allowed = (interval_s[1] - interval_s[0]) / steps.median_s, until or WIDE_INTERVAL
    if width > allowed:
        yield caution(
            "interval-too-wide",
            longer or (f"use --steps {2 * max_steps}" if until else "use more --steps, or --until 1%"),
            width_share=width,
        )


def suspensions(left_out_s: Sequence[float]) -> Iterator[Caution]:
    """Say that steps are left out, because time passed during them in which nothing ran; `left_out_s` has each time."""
    if left_out_s:
        yield caution(
            "suspended",
            "keep the machine awake and its clock unchanged; measure again if too few steps are left",
            suspended_s=sum(left_out_s),
            steps=len(left_out_s),
        )


def launch_bound(seen: CellEvents, execution: Execution = "eager") -> Iterator[Caution]:
    """Warn if forward or backward is launch-bound: the device finishes as soon as the host has launched its kernels."""
    if seen.started is None or seen.started.device.type != "cuda":
        return
    phases = [phase for phase in ("forward", "backward") if _is_launch_bound(seen, phase)]
    if phases:
        yield caution("launch-bound", more_work_a_launch(execution), about=phases)


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


def environment_cautions(
    seen: CellEvents, lost: Sequence[ReadingsLost], load: statistics.Load | None, *times: Samples | None
) -> Iterator[Caution]:
    """Warn about the environment: throttled clocks, other processes, lost sensor readings.

    `load` is what else ran on the cores, if these compute the step (`collect.signs_of`). Other processes that hardly
    change the `times` of the cell are left out.
    """
    readings = seen.measured_readings or seen.readings
    throttled = [reading.throttle_reasons for reading in readings if reading.throttle_reasons]
    if readings and len(throttled) > THROTTLED_SHARE * len(readings):
        reasons = sorted({reason for reasons in throttled for reason in reasons})
        yield caution(
            "throttled",
            "compare only with runs under the same limit; check power limit and cooling",
            about=reasons,
            readings_share=len(throttled) / len(readings),
        )
    others = max((reading.other_processes or 0 for reading in seen.readings), default=0)
    if others:
        yield caution("gpu-shared", "stop them, or choose another --device", processes=others)
    excess_shares = [
        1 - doubt.low_s / samples.median_s
        for samples in times
        if samples is not None
        for doubt in samples.doubts
        if doubt.cause == "host-busy"
    ]
    is_timed, excess_share = any(times), max(excess_shares, default=0.0)
    if excess_share > WIDE_INTERVAL or (load is not None and load.disturbing_cores and not is_timed):
        numbers = {"excess_share": excess_share} if is_timed else {}
        if load is not None and load.others_share is not None:
            numbers["busy_share"] = load.others_share
        yield caution("host-busy", "close them and measure again", about=(), **numbers)
    for loss in lost:
        yield caution(
            "readings-lost",
            "clocks, power and memory of the device are unknown from that point on",
            about=(loss.source, loss.detail),
        )


def emulation(precision: str, seen: CellEvents) -> Iterator[Caution]:
    """Warn if the processor emulates this number format."""
    device = seen.started.device if seen.started is not None else None
    if precision == "bf16" and device is not None and device.type == "cpu" and device.bf16 is False:
        yield caution(
            "emulated", "use --precision fp32 for times on this machine; dtypes and memory are correct", about=("bf16",)
        )
    if precision in FP8 and device is not None and device.type == "cpu":
        yield caution("emulated", "use --simulate h100 for memory and time there; losses are correct", about=("fp8",))


def precision_overridden(precision: str, seen: CellEvents) -> Iterator[Caution]:
    """Warn if the model's own code had switched TF32 on or off; the worker switches it back."""
    kernels = seen.built.precision_overridden if seen.built is not None else ()
    if kernels:
        was, other = ("off", "fp32") if precision == "tf32" else ("on", "tf32")
        yield caution(
            "precision-overridden",
            f"use --precision {other} to measure what the model's code asks for",
            about=(precision, was, *kernels),
        )


def compilation(seen: CellEvents) -> Iterator[Caution]:
    """Warn if torch.compile ran part of the model eagerly, or without the CUDA graphs that the cell asks for."""
    if seen.compiled is not None and seen.compiled.fell_back:
        yield caution(
            "compile-fell-back",
            "this is not a compiled measurement; compare it with --execution eager",
            about=(str(seen.compiled.detail),),
        )
    on_cuda = seen.started is not None and seen.started.device.type == "cuda"
    if on_cuda and seen.compiled is not None and (skipped := seen.compiled.graphs_skipped):
        yield caution(
            "graphs-skipped",
            "TORCH_LOGS=cudagraphs says why; without graphs, this is --execution compiled",
            parts=skipped,
        )


def phases_not_measured(sync: Sync, seen: CellEvents) -> Iterator[Caution]:
    """Warn if the phases have no separate times."""
    if sync == "step" and not any(sample.device_s for step in seen.steps for sample in step.phases.values()):
        yield caution("not-measured", "use --sync phase")


def memory_pressure(alloc_retries: int, margin_bytes: int | None, simulated_bytes: int | None) -> Iterator[Caution]:
    """Warn about a step that barely fits in memory: the allocator had to release its cache, or the margin is narrow.

    alloc_retries    number of times the allocator released its whole cache to serve a request
    margin_bytes     free device memory at the peak; None if unknown
    simulated_bytes  memory of the simulated GPU; None if the peak was measured, because its margin is then certain
    """
    if alloc_retries:
        yield caution("allocator-retried", "use a smaller --batch, or --allocator expandable", retries=alloc_retries)
    if simulated_bytes is None or margin_bytes is None:
        return
    uncertainty_bytes = margin_uncertainty_bytes(simulated_bytes)
    if margin_bytes < uncertainty_bytes:
        yield caution(
            "narrow-margin",
            "use a slightly smaller --batch or --ctx, or measure on the GPU itself",
            margin_bytes=margin_bytes,
            uncertainty_bytes=uncertainty_bytes,
        )


def shared_cores(cell: ModelCell, seen: CellEvents, run: Run) -> Iterator[Caution]:
    """Warn if a cell has more ranks than the CPU has cores, so that the ranks take turns."""
    cores = run.started.host.logical_cores
    if cell.workers > cores and seen.started is not None and seen.started.device.type == "cpu":
        yield caution(
            "cores-shared",
            f"use --ranks {max(cores, 2)} or fewer; these times only show that the run works; they are not a "
            "performance measurement",
            ranks=cell.ranks,
            cores=cores,
        )


def on_fewer_threads_s(seen: CellEvents) -> float | None:
    """Return the median time of a step on fewer threads; None if it was not tried, or hardly faster."""
    tried = seen.last(ThreadsTried)
    if tried is None or not seen.steps:
        return None
    median_s = standard.median(step.step.wall_s or 0.0 for step in seen.steps)
    return standard.median(tried.wall_s) if max(tried.wall_s) < WAITING_THREADS_SHARE * median_s else None


def thread_contention(seen: CellEvents) -> Iterator[Caution]:
    """Yield a caution if threads wait for each other: the same step is much faster on fewer threads."""
    tried, fewer_s = seen.last(ThreadsTried), on_fewer_threads_s(seen)
    if tried is None or fewer_s is None:
        return
    median_s = standard.median(step.step.wall_s or 0.0 for step in seen.steps)
    yield caution(
        "threads-wait",
        f"use --threads {tried.threads}, or close the other processes",
        step_s=median_s,
        threads=tried.before,
        step_on_fewer_s=fewer_s,
        fewer_threads=tried.threads,
    )
