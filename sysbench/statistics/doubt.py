"""How far a median may be off: an interval with its parts, one for each sign of doubt.

Every table, finding, comparison and gate takes the interval of a time from `Estimate`, so that they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist, fmean, stdev
from typing import Literal

from sysbench.statistics.modes import two_modes
from sysbench.statistics.order import autocorrelation, drift, warmup_unfinished
from sysbench.statistics.samples import MIN_REPORTABLE_SHARE, Series, Stream, series
from sysbench.statistics.summary import median_interval, t_quantile

Cause = Literal["host-busy", "threads-wait", "gpu-shared", "warmup-unfinished", "two-modes", "drift"]
"""What makes a median doubtful beyond the scatter of its samples; each is also the code of a caution."""

MIN_INTERVAL_SAMPLES = 3
"""Fewer samples do not show their scatter: with two, Student's t would span a factor of a thousand for one of 20%."""

OTHERS_CORES, OTHERS_SHARE = 0.15, 0.02
"""What other processes may use without any doubt, the larger of both: the engine and the sensors use less."""

CACHE_SHARE = 0.15
"""By how much of its processor time other processes may slow a step down through caches and memory: an assumption."""

WAITING_SHARE = 0.05
"""A step on a CPU keeps at least one thread working. If its processor time is shorter than its duration by more than
this share, its threads waited for a core."""

CPU_REPEAT_SD = 0.07
"""Standard deviation of the logarithm of a median on a CPU when the same code runs again, a moment later: clocks,
placement in memory and neighbours on shared cores, which no reading shows. Measured on a virtual machine with two cores
and nothing else running, by `python -m tests.bench.same_code`: mostly 5%, and episodes of 15% that last a whole run.
With this value, 4 of 120 pairs of the same code have a verdict. Nothing is added on a GPU."""

MIN_UNDISTURBED_SHARE = 0.02
"""A step that others disturbed took at most fifty times as long as it would alone."""


@dataclass(frozen=True)
class Doubt:
    """The range in which a median may lie because of one cause; it contains the measured median."""

    cause: Cause
    low: float
    high: float


@dataclass(frozen=True)
class Load:
    """What else ran on the cores that computed a step."""

    cores: int
    threads: int
    """Threads that the step has when nothing disturbs it."""
    others_share: float | None
    """Share of all cores that other processes used; None if it was not read, as in a run of a few seconds."""

    @property
    def disturbing_cores(self) -> float:
        """How many cores others used, beyond what always runs; 0 if the cores were quiet, or if this is unknown."""
        return max(0.0, (self.others_share or 0.0) * self.cores - max(OTHERS_CORES, OTHERS_SHARE * self.cores))


@dataclass(frozen=True)
class Signs:
    """What is known about samples besides their values."""

    warmup: Sequence[float] = ()
    """Times of the warm-up steps."""
    processor: Sequence[float] = ()
    """Processor time of each sample, over all threads; empty if unknown."""
    load: Load | None = None
    """None if the work did not run on the host's cores, or if nothing is known about them."""
    on_fewer_threads: float | None = None
    """Median time on fewer threads, if that was tried."""
    gpu_sharers: int = 0
    """Number of other processes on the GPU."""


def doubts(samples: Stream, signs: Signs) -> Iterator[Doubt]:
    """Yield each cause for which the median of these samples may not be the time that the work takes by itself.

    - `host-busy`: others used the cores, or all threads waited for one. Without others, at least the processor time
      would remain, spread over all threads, and at least what is left if every moment of theirs delayed the step;
      either is shorter by CACHE_SHARE.
    - `threads-wait`: the step was faster on fewer threads.
    - `gpu-shared`: processes take turns on a GPU, in equal parts.
    - `warmup-unfinished`: the slow first steps are left out.
    - `two-modes`: both levels.
    - `drift`: the trend goes on for half as many samples again.
    """
    checked = series(samples)
    middle = checked.median
    if middle <= 0:
        return
    if signs.load is not None and (share := _undisturbed_share(checked, signs.processor, signs.load)) < 1:
        yield Doubt("host-busy", share * middle, middle)
    if signs.on_fewer_threads is not None and signs.on_fewer_threads < middle:
        yield Doubt("threads-wait", signs.on_fewer_threads, middle)
    if signs.gpu_sharers:
        yield Doubt("gpu-shared", middle / (1 + signs.gpu_sharers), middle)
    if slow := warmup_unfinished(signs.warmup, checked):
        later = series(checked.values[slow.slow_steps :]).median
        yield Doubt("warmup-unfinished", min(later, middle), middle)
    if modes := two_modes(checked):
        yield Doubt("two-modes", min(modes.lower, middle), max(modes.upper, middle))
    elif trend := drift(checked):
        further = max(trend.end + (trend.end - trend.start) / 2, MIN_UNDISTURBED_SHARE * middle)
        yield Doubt("drift", min(further, middle), max(further, middle))


def waiting_share(duration: float, processor: float | None) -> float:
    """Return in which share of its duration a step on a CPU kept no thread working, beyond WAITING_SHARE."""
    return 0.0 if processor is None else max(0.0, 1 - WAITING_SHARE - processor / duration)


def _undisturbed_share(samples: Series, processor: Sequence[float], load: Load) -> float:
    """Return which share of the median would at least remain if no other process had used the cores; 1 for quiet ones.

    The processor time may be unknown: then the step had no more than what the others left.
    """
    known = series(processor).median if len(processor) == len(samples) else None
    cores, waiting = load.disturbing_cores, waiting_share(samples.median, known)
    if not cores and not waiting:
        return 1.0
    working = load.cores * (1 - (load.others_share or 0.0)) if known is None else known / samples.median
    undelayed = 1 - cores if cores else 0.0
    share = max(min(working / load.threads, 1.0), undelayed)
    return max((1 - CACHE_SHARE * min(1.0, cores + waiting)) * share, MIN_UNDISTURBED_SHARE)


Distances = tuple[float, float]
"""Distances from a median to both ends of an interval, below and above it, in natural logarithms."""


@dataclass(frozen=True)
class Estimate:
    """A median with all its doubts. `interval` and `ratio` say how far it, and a quotient of two, may be off."""

    samples: Series
    doubts: tuple[Doubt, ...] = ()
    repeat_sd: float = 0.0
    """Standard deviation of the median's logarithm over repetitions of the measurement."""

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def median(self) -> float:
        """The median of the samples."""
        return self.samples.median

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Return the range in which the median lies if the work is measured again, with the range of every doubt.

        Returns None if the median is not positive, or if there are fewer than three samples and nothing is known of
        repetitions.
        """
        distances = self.distances(confidence)
        if distances is None:
            return None
        (below, above), (more_below, more_above) = distances
        repeats = _normal_distance(confidence) * self.repeat_sd
        low, high = math.hypot(below, repeats) + more_below, math.hypot(above, repeats) + more_above
        return self.median * math.exp(-low), self.median * math.exp(high)

    def distances(self, confidence: float = 0.95) -> tuple[Distances, Distances] | None:
        """Return the distances to the ends of the median's interval, and by how much the doubts exceed them."""
        sampling = self._sampling(confidence)
        if sampling is None:
            return None
        lows, highs = ([getattr(doubt, end) for doubt in self.doubts] for end in ("low", "high"))
        below = math.log(self.median / min([self.median, *lows]))
        above = math.log(max([self.median, *highs]) / self.median)
        return sampling, (max(0.0, below - sampling[0]), max(0.0, above - sampling[1]))

    def _sampling(self, confidence: float) -> Distances | None:
        """Return the distances to the ends of the interval from scatter alone, which correlated samples widen.

        Where there are too few samples for `median_interval`, it is that of Student's t for the mean logarithm, and
        contains the median. Of fewer than MIN_INTERVAL_SAMPLES, each is taken to scatter as much as repetitions do, if
        that is known.
        """
        if self.median <= 0:
            return None
        if len(self) < MIN_INTERVAL_SAMPLES:
            half = _normal_distance(confidence) * self.repeat_sd / math.sqrt(len(self))
            return (half, half) if half else None
        interval = median_interval(self.samples, confidence)
        if interval is None:
            if self.samples.ordered[0] <= 0:
                return None
            logs = [math.log(value / self.median) for value in self.samples.values]
            center = fmean(logs)
            scatter = max(stdev(logs), MIN_REPORTABLE_SHARE)  # so few may agree by chance
            half = t_quantile(confidence, len(logs) - 1) * scatter / math.sqrt(len(logs))
            below, above = half - center, half + center
        else:
            low, high = interval
            below, above = math.log(self.median / low) if low > 0 else math.inf, math.log(high / self.median)
        correlation = autocorrelation(self.samples)
        widening = math.sqrt(len(self) / correlation.effective_count) if correlation else 1.0
        return max(0.0, below) * widening, max(0.0, above) * widening


def _normal_distance(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)


def estimate(samples: Stream | Estimate, doubts: Sequence[Doubt] = (), repeat_sd: float = 0.0) -> Estimate:
    """Return samples with their doubts; raises ValueError if there are none, or if one is not finite."""
    return samples if isinstance(samples, Estimate) else Estimate(series(samples), tuple(doubts), repeat_sd)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians with its interval; the ends are None if a stream is too short for an interval."""

    value: float
    low: float | None
    high: float | None


def ratio(numerator: Stream | Estimate, denominator: Stream | Estimate, confidence: float = 0.95) -> Ratio:
    """Return the ratio of the medians of two streams, with its interval, which is wider by the doubts about them.

    The intervals of the two medians are combined on the logarithmic scale by variance estimates recovery (Zou and
    Donner, Statistics in Medicine 27, 2008): the distances from each median to the relevant end of its interval add in
    quadrature, and so does the spread of repeated measurements. Simulated coverage is 95.1–97.5% for streams of 10 to
    200 samples. By how much doubts exceed these distances is no matter of chance, so it adds as it is.

    Raises ValueError if there are no samples, if a sample is not finite, or if a median is not positive.
    """
    upper, lower = estimate(numerator), estimate(denominator)
    for each in (upper, lower):
        if each.median <= 0:
            raise ValueError(f"the median is {each.median}: a ratio needs positive medians")
    value = upper.median / lower.median
    over, under = upper.distances(confidence), lower.distances(confidence)
    if over is None or under is None:
        return Ratio(value, None, None)
    (above, beyond_above), (below, beyond_below) = over, under
    repeats = _normal_distance(confidence) * math.hypot(upper.repeat_sd, lower.repeat_sd)
    return Ratio(
        value,
        low=value * math.exp(-math.hypot(above[0], below[1], repeats) - beyond_above[0] - beyond_below[1]),
        high=value * math.exp(math.hypot(above[1], below[0], repeats) + beyond_above[1] + beyond_below[0]),
    )
