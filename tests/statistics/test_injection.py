"""Faults put into simulated streams must be found, and clean streams must not raise an alarm.

Streams have a level of one, so that sigma is also the noise as a share of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sysbench import statistics

Streams = np.ndarray
"""(streams, samples)."""

Detector = Callable[[statistics.Stream], object]

CLEAN: list[Callable[[np.random.Generator, tuple[int, int]], Streams]] = [
    lambda random, shape: 1 + 0.005 * random.standard_normal(shape),
    lambda random, shape: 1 + 0.05 * random.standard_normal(shape),
    lambda random, shape: np.exp(0.005 * random.standard_normal(shape)),
    lambda random, shape: np.exp(0.05 * random.standard_normal(shape)),
]

COUNTS = [10, 20, 50, 200]


def warmup_too_short(samples: statistics.Stream) -> object:
    return statistics.warmup_unfinished((), samples)


def alarms(detector: Detector, streams: Streams) -> float:
    return float(np.mean([detector(stream) is not None for stream in streams]))


def quiet(random: np.random.Generator, streams: int, count: int) -> Streams:
    return 1 + 0.005 * random.standard_normal((streams, count))


def spiked(random: np.random.Generator, streams: Streams) -> Streams:
    """2% of the samples take 2 to 10 times as long."""
    return streams * np.where(random.random(streams.shape) < 0.02, random.uniform(2, 10, streams.shape), 1)


def wandering(random: np.random.Generator, streams: int, count: int, phi: float) -> Streams:
    """First-order autoregression of 0.5% about 1, stationary from the first sample on."""
    noise = random.standard_normal((streams, count))
    state = noise.copy()
    for index in range(1, count):
        state[:, index] = phi * state[:, index - 1] + np.sqrt(1 - phi**2) * noise[:, index]
    return 1 + 0.005 * state


def ramp(count: int) -> np.ndarray:
    return np.linspace(0, 1, count)


def in_runs(random: np.random.Generator, count: int, upper: int, runs: int) -> np.ndarray:
    """1 for `upper` samples and 0 for the others, in that many runs of each, of random lengths."""

    def lengths(total: int) -> np.ndarray:
        cuts = np.sort(random.choice(np.arange(1, total), runs - 1, replace=False))
        return np.diff(np.concatenate(([0], cuts, [total])))

    both = zip(lengths(count - upper), lengths(upper), strict=True)
    return np.concatenate([np.repeat([0.0, 1.0], pair) for pair in both])


# Clean streams.


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("detector", "streams"),
    [
        (statistics.drift, 500),
        (statistics.outliers, 500),
        (statistics.autocorrelation, 500),
        (warmup_too_short, 500),
        (statistics.two_modes, 150),
    ],
)
def test_a_clean_stream_raises_an_alarm_at_most_once_in_a_hundred(detector: Detector, streams: int, count: int) -> None:
    random = np.random.default_rng(count)
    clean = np.concatenate([noise(random, (streams, count)) for noise in CLEAN])
    assert alarms(detector, clean) <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("detector", [statistics.drift, statistics.two_modes])
def test_spikes_are_neither_a_drift_nor_a_mode(detector: Detector, count: int) -> None:
    random = np.random.default_rng(count)
    assert alarms(detector, spiked(random, quiet(random, 400, count))) <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("tick", [0.001, 0.005, 0.01])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "detector",
    [statistics.drift, statistics.two_modes, statistics.outliers, statistics.autocorrelation, warmup_too_short],
)
def test_a_coarse_clock_raises_no_alarm(detector: Detector, count: int, tick: float) -> None:
    """From a fifth of the noise up to twice the noise."""
    readings = (quiet(np.random.default_rng(count), 200, count) / tick).round() * tick
    assert alarms(detector, readings) <= 0.01


# Drift.


def test_a_drift_of_one_percent_over_200_steps_is_found() -> None:
    slower = quiet(np.random.default_rng(1), 200, 200) + 0.01 * ramp(200)
    assert alarms(statistics.drift, slower) >= 0.95
    assert alarms(statistics.drift, slower[:, ::-1]) >= 0.95


def test_a_drift_is_found_between_spikes_and_its_size_is_right() -> None:
    random = np.random.default_rng(2)
    found = [statistics.drift(stream) for stream in spiked(random, quiet(random, 200, 200) + 0.01 * ramp(200))]
    drifts = [drift for drift in found if drift is not None]
    assert len(drifts) >= 190
    assert np.median([drift.change_share for drift in drifts]) == pytest.approx(0.01, rel=0.05)
    assert np.median([drift.start for drift in drifts]) == pytest.approx(1.0, rel=0.001)
    assert np.median([drift.end for drift in drifts]) == pytest.approx(1.01, rel=0.001)


def test_a_drift_without_noise_is_measured_to_the_digit() -> None:
    drift = statistics.drift([100.0 - k for k in range(11)])
    assert drift == statistics.Drift(change_share=pytest.approx(-0.1), start=100.0, end=90.0)
    long = statistics.drift(np.linspace(2, 3, 5001))
    assert long is not None
    assert (long.start, long.end, long.change_share) == pytest.approx((2, 3, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize("count", [50, 200])
def test_a_stream_that_wanders_about_one_level_does_not_drift(count: int) -> None:
    assert alarms(statistics.drift, wandering(np.random.default_rng(count), 1_500, count, 0.5)) <= 0.01


def test_a_drift_is_found_in_a_stream_that_wanders() -> None:
    wanders = wandering(np.random.default_rng(4), 200, 200, 0.5)
    assert alarms(statistics.drift, wanders + 0.02 * ramp(200)) >= 0.95


# Two modes.


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.3, 0.5])
def test_a_gap_of_three_percent_between_modes_is_found(share: float) -> None:
    random = np.random.default_rng(5)
    streams = quiet(random, 300, 200) + 0.03 * (random.random((300, 200)) < share)
    assert alarms(statistics.two_modes, streams) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("upper", [40, 70, 100])
def test_modes_that_come_in_runs_are_found(upper: int) -> None:
    random = np.random.default_rng(6)
    streams = quiet(random, 300, 200) + 0.03 * np.array([in_runs(random, 200, upper, 8) for _ in range(300)])
    assert alarms(statistics.two_modes, streams) >= 0.95


def test_a_level_that_shifts_for_good_is_two_modes_with_one_switch_and_a_drift() -> None:
    for stream in quiet(np.random.default_rng(8), 50, 200) + 0.03 * (ramp(200) > 0.4):
        modes = statistics.two_modes(stream)
        assert modes is not None
        assert modes.switches == 1
        assert statistics.drift(stream) is not None


def test_modes_are_found_between_spikes() -> None:
    random = np.random.default_rng(9)
    streams = spiked(random, quiet(random, 200, 200) + 0.03 * (random.random((200, 200)) < 0.35))
    assert alarms(statistics.two_modes, streams) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "shape",
    [
        lambda random, shape: np.exp(0.5 * random.standard_normal(shape)),
        lambda random, shape: 1 + random.exponential(0.1, shape),
        lambda random, shape: 1 + 0.1 * random.pareto(2, shape),
        lambda random, shape: 1 + 0.005 * random.standard_normal(shape) + 0.05 * ramp(shape[1]),
    ],
    ids=["lognormal 0.5", "exponential", "pareto", "drifting"],
)
def test_one_skewed_or_drifting_hump_is_not_two_modes(
    shape: Callable[[np.random.Generator, tuple[int, int]], Streams], count: int
) -> None:
    assert alarms(statistics.two_modes, shape(np.random.default_rng(count), (200, count))) <= 0.01


# Outliers.


@pytest.mark.parametrize("count", COUNTS)
def test_a_sample_that_took_twice_as_long_is_found(count: int) -> None:
    for index, stream in enumerate(quiet(np.random.default_rng(count), 50, count)):
        stream[index % count] *= 2
        found = statistics.outliers(stream)
        assert found is not None
        assert index % count in found.indices


# Autocorrelation.


def test_an_autocorrelated_stream_is_found_and_worth_fewer_samples() -> None:
    found = [statistics.autocorrelation(stream) for stream in wandering(np.random.default_rng(13), 200, 200, 0.6)]
    known = [finding for finding in found if finding is not None]
    assert len(known) >= 190
    # 200 · (1 - 0.6) / (1 + 0.6) = 50; ranks see a little less of the correlation than the samples have.
    assert np.median([finding.effective_count for finding in known]) == pytest.approx(55, abs=10)
    assert np.median([finding.lag1 for finding in known]) == pytest.approx(0.57, abs=0.05)


def test_a_stream_that_alternates_is_not_reported() -> None:
    assert statistics.autocorrelation([1.0, 1.03] * 50) is None


# Warm-up.


def test_a_cold_first_step_is_found_without_any_warmup() -> None:
    for stream in quiet(np.random.default_rng(14), 100, 10):
        stream[0] *= 30
        found = statistics.warmup_unfinished((), stream)
        assert found is not None
        assert found.slow_steps >= 1


@pytest.mark.parametrize("count", [10, 50, 200])
def test_a_start_that_still_settles_is_found(count: int) -> None:
    random = np.random.default_rng(count)
    settling = 0.5 * np.exp(-np.arange(5 + count) / 2)
    streams = quiet(random, 200, 5 + count) + settling
    found = [statistics.warmup_unfinished(stream[:5], stream[5:]) for stream in streams]
    assert np.mean([finding is not None for finding in found]) >= 0.9


@pytest.mark.parametrize(("count", "least"), [(10, 0.55), (20, 0.8), (50, 0.9)])
def test_a_start_that_has_nearly_settled_is_found_after_a_warmup(count: int, least: float) -> None:
    random = np.random.default_rng(count)
    settling = 0.5 * np.exp(-np.arange(5 + count) / 2)  # 4% in the first sample, 1% in the fourth
    streams = 1 + 0.01 * random.standard_normal((600, 5 + count)) + settling
    assert alarms(lambda stream: statistics.warmup_unfinished(stream[:5], stream[5:]), streams) >= least


@pytest.mark.slow
@pytest.mark.parametrize("warmup_steps", [3, 4, 10])
@pytest.mark.parametrize("count", [6, *COUNTS])
def test_a_slow_first_warmup_step_confirms_no_false_alarm(count: int, warmup_steps: int) -> None:
    random = np.random.default_rng([count, warmup_steps])
    for make in CLEAN:
        streams = make(random, (2000, warmup_steps + count))
        streams[:, 0] *= random.uniform(1.5, 10, len(streams))
        found = alarms(lambda each: statistics.warmup_unfinished(each[:warmup_steps], each[warmup_steps:]), streams)
        # A rate of 1% stays below 1.7% in 2,000 streams with a probability of 99.9%.
        assert found <= 0.017


def test_a_spike_that_comes_first_is_not_the_warmup_when_the_warmup_had_settled() -> None:
    samples = [1.5, *quiet(np.random.default_rng(15), 1, 20)[0]]
    assert statistics.warmup_unfinished((), samples) is not None
    assert statistics.warmup_unfinished([50.0, 1.6, 1.0, 1.0, 1.0], samples) is None
    assert statistics.outliers(samples) is not None


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_spikes_after_a_settled_warmup_raise_no_alarm(count: int) -> None:
    random = np.random.default_rng(count)
    streams = spiked(random, quiet(random, 600, 5 + count))
    assert alarms(lambda stream: statistics.warmup_unfinished(stream[:5], stream[5:]), streams) <= 0.01
