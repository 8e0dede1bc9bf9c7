"""Every statistic is what its definition says: worked out anew with plain loops, over streams of every kind."""

from __future__ import annotations

import itertools
import math
import random
import statistics as plain
from collections.abc import Callable, Sequence
from fractions import Fraction
from statistics import NormalDist

import pytest

from sysbench import statistics
from sysbench.statistics.modes import dip
from sysbench.statistics.summary import summarize, t_quantile
from sysbench.statistics.verdict import ComparedRatio, compare_processes, compare_rounds, compare_runs

KINDS = ("even", "trend", "wander", "slow start", "two levels", "spikes", "ticks")


def streams(each: int = 12) -> list[list[float]]:
    """Streams of 6 to 40 samples: many lie close to the limits of the detectors."""
    chance = random.Random(20)
    steady = [[2.0, 2.1, 2.05, 1.0, 1.001, 0.999], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [1.5, 1.4, 1.3, 1.2, 1.1, 1.0]]
    return [*steady, *(stream(kind, chance) for kind in KINDS for _ in range(each))]


def stream(kind: str, chance: random.Random) -> list[float]:
    count = chance.choice([6, 7, 8, 9, 10, 12, 15, 20, 25, 40])
    size = chance.uniform(0.0, 0.15)
    found = [1 + chance.gauss(0, 0.01) for _ in range(count)]
    if kind == "trend":
        found = [value + size * place / count for place, value in enumerate(found)]
    elif kind == "wander":
        for place in range(1, count):
            found[place] = 1 + (found[place] - 1) + 0.8 * (found[place - 1] - 1)
    elif kind == "slow start":
        found = [value + size * 2.0 ** -(place / chance.choice([1, 1, 2])) for place, value in enumerate(found)]
    elif kind == "two levels":
        found = [value + size * (chance.random() < 0.4) for value in found]
    elif kind == "spikes":
        found = [value + size * 3 * (chance.random() < 0.1) for value in found]
    elif kind == "ticks":
        found = [round(value * 200) / 200 + size * (place < 2) for place, value in enumerate(found)]
    return found


ALL = streams()


def ranks(values: Sequence[float]) -> list[float]:
    """Mean ranks about zero."""
    middle = (len(values) + 1) / 2
    return [sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 - middle
            for value in values]  # fmt: skip


def sigma(values: Sequence[float]) -> float:
    level = plain.median(values)
    return 1.4826 * plain.median(abs(value - level) for value in values)


def percentile(values: Sequence[float], percent: float) -> float:
    return plain.quantiles(values, n=100, method="inclusive")[round(percent) - 1]


def alike(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= 0.001 * abs(plain.median(values))


def without_ties(values: list[float]) -> list[float]:
    """Equal readings of a clock, spread evenly over its tick."""
    readings = sorted(set(values))
    if len(readings) == len(values) or len(readings) == 1:
        return values
    level = abs(plain.median(values))
    tick = min(*(b - a for a, b in itertools.pairwise(readings)), 0.01 * level)
    seen: dict[float, int] = {}
    found = []
    for value in values:
        place = seen[value] = seen.get(value, -1) + 1
        found.append(value + tick * ((place + 0.5) / values.count(value) - 0.5))
    return found


def drift(values: list[float]) -> tuple[float, float] | None:
    """Fieller, Hartley and Pearson's test of Spearman's correlation; Theil and Sen's line."""
    n = len(values)
    if n < 6 or alike(values):
        return None
    rank, time = ranks(values), [place - (n - 1) / 2 for place in range(n)]
    rho = plain.correlation(time, rank)
    slope = sum(a * b for a, b in zip(time, rank, strict=True)) / sum(a * a for a in time)
    rest = [r - slope * t for r, t in zip(rank, time, strict=True)]
    phi = 0.0
    if abs(rho) < 1 - 1e-9:
        observed = sum(a * b for a, b in itertools.pairwise(rest)) / sum(a * a for a in rest)
        phi = min(max((n * observed + 2) / (n - 4), 0), 0.97)
    m = n * (1 - phi) / (1 + phi)
    bound = 1 - 1e-9
    if m <= 3 or abs(math.atanh(min(max(rho, -bound), bound))) * math.sqrt((m - 3) / 1.06) <= 3.09:
        return None
    pairs = itertools.combinations(enumerate(values), 2)
    steepness = plain.median((b - a) / (j - i) for (i, a), (j, b) in pairs)
    start = plain.median(value - steepness * place for place, value in enumerate(values))
    end = start + steepness * (n - 1)
    return (start, end) if start > 0 and abs(end - start) >= 0.001 * start else None


def test_a_drift_is_that_of_the_definition() -> None:
    chance = random.Random(2)
    every = ALL + [stream("trend", chance) for _ in range(60)]
    expected = [drift(values) for values in every]
    found = [statistics.drift(values) for values in every]
    assert [each is not None for each in found] == [each is not None for each in expected]
    assert 10 < sum(each is not None for each in found) < len(every) - 10
    for each, other in zip(found, expected, strict=True):
        if each is not None and other is not None:
            assert (each.start, each.end) == pytest.approx(other, rel=1e-9)
            assert each.change_share == pytest.approx(other[1] / other[0] - 1)


def autocorrelation(values: list[float]) -> tuple[float, float] | None:
    """Bartels' rank version of von Neumann's ratio."""
    n = len(values)
    if n < 6 or alike(values):
        return None
    rank = ranks(values)
    ratio = sum((b - a) ** 2 for a, b in itertools.pairwise(rank)) / sum(a * a for a in rank)
    variance = Fraction(4 * (n - 2) * (5 * n * n - 2 * n - 9), 5 * n * (n + 1) * (n - 1) ** 2)
    rho = 1 - ratio / 2
    return (rho, n * (1 - rho) / (1 + rho)) if (2 - ratio) / math.sqrt(variance) > 2.65 else None


@pytest.mark.parametrize(("highest", "is_noticed"), [(1001.0, False), (1001.01, True)])
def test_a_difference_of_a_tenth_of_a_percent_is_none(highest: float, is_noticed: bool) -> None:
    assert (statistics.autocorrelation([1000.0] * 11 + [highest] * 9) is not None) == is_noticed


def test_an_autocorrelation_is_that_of_the_definition() -> None:
    expected = [autocorrelation(values) for values in ALL]
    found = [statistics.autocorrelation(values) for values in ALL]
    assert 10 < sum(each is not None for each in found) < len(ALL) - 10
    for each, other in zip(found, expected, strict=True):
        assert (each is None) == (other is None)
        if each is not None and other is not None:
            assert (each.lag1, each.effective_count) == pytest.approx(other)


def slow_start(warmup: list[float], values: list[float]) -> tuple[int, float] | None:
    n = len(values)
    run = next((place for place in range(n) if place == n - 1 or values[place] <= max(values[place + 1 :])), 0)
    settled = len(warmup) > 3  # the last three warm-up steps, which must confirm the sign, do not include the first one
    spread = without_ties(values)

    def score(head: int) -> float:
        excess = plain.median(values[:head]) - plain.median(values[head:])
        return excess / sigma(spread[head:]) if sigma(spread[head:]) else math.inf * excess if excess > 0 else 0.0

    signs = (
        math.factorial(n - run) / math.factorial(n) < (0.012 if warmup else 0.0025),
        run > 0 and score(1) > (2.3 + 74 / (n - 1) ** 1.5 if settled else 3.0 + 112 / (n - 1) ** 1.5),
        n > 6
        and plain.median(values[:3]) > percentile(values[3:], 95)
        and score(3) > (1.5 + 62 / (n - 3) ** 1.5 if settled else 2.0 + 95 / (n - 3) ** 1.5),
    )
    later = values[n // 2 :]
    level = plain.median(later)
    slow = next(place for place, value in enumerate(values) if value <= percentile(later, 75))
    if n < 6 or not any(signs) or slow == 0:
        return None
    excess = plain.mean(values[:slow]) - level
    unconfirmed = warmup and plain.median(warmup[-3:]) - level < excess / 2
    return None if excess < 0.001 * level or unconfirmed else (slow, excess / level)


@pytest.mark.parametrize("warmup", [[], [1.0, 1.2, 1.02, 1.05, 1.04], [1.3, 1.1, 1.15]])
def test_a_slow_start_is_that_of_the_definition(warmup: list[float]) -> None:
    chance = random.Random(3)
    every = ALL + [stream("slow start", chance) for _ in range(100)]
    expected = [slow_start(warmup, values) for values in every]
    found = [statistics.warmup_unfinished(warmup, values) for values in every]
    assert 10 < sum(each is not None for each in found) < len(every) - 10
    for each, other in zip(found, expected, strict=True):
        assert (each and (each.slow_steps, pytest.approx(each.excess_share))) == other


@pytest.mark.parametrize("count", [20, 40, 60])
@pytest.mark.parametrize(
    ("head", "warmup_steps", "least", "more"),
    [(1, 0, 3.0, 112), (1, 3, 3.0, 112), (1, 4, 2.3, 74), (3, 0, 2.0, 95), (3, 3, 2.0, 95), (3, 4, 1.5, 62)],
)
def test_a_start_is_slow_from_as_many_deviations_on_as_is_said(
    count: int, head: int, warmup_steps: int, least: float, more: int
) -> None:
    rest = [1 + 0.01 * NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
    random.Random(count).shuffle(rest)
    limit = least + more / count**1.5
    for share, is_slow in ((0.999, False), (1.001, True)):
        level = plain.median(rest) + share * limit * sigma(rest)
        # The first of three is no slower than the others: the run of slow steps has no length.
        first = [level] if head == 1 else [level - 1e-6, level, level + 1e-6]
        warmup = [2.0] * warmup_steps
        assert (statistics.warmup_unfinished(warmup, first + rest) is not None) == is_slow


@pytest.mark.parametrize(("count", "is_slow"), [(400, False), (401, True)])
def test_a_first_step_slower_than_400_others_is_no_chance(count: int, is_slow: bool) -> None:
    values = [1.1] + [1 + 0.098 * ((7 * place) % 100) / 100 for place in range(count - 1)]
    assert (statistics.warmup_unfinished((), values) is not None) == is_slow


def outliers(values: list[float]) -> tuple[tuple[int, ...], float] | None:
    n, level = len(values), plain.median(values)
    fence = max((4.1 + 0.15 * math.log(n) + 130 / n**1.5) * sigma(without_ties(values)), 0.001 * level)
    apart = tuple(place for place, value in enumerate(values) if abs(value - level) > fence)
    rest = [value for place, value in enumerate(values) if place not in apart]
    return (apart, (plain.mean(values) - plain.mean(rest)) / level) if apart else None


def test_outliers_are_those_of_the_definition() -> None:
    found = [statistics.outliers(values) for values in ALL]
    assert 10 < sum(each is not None for each in found) < len(ALL) - 10
    for each, values in zip(found, ALL, strict=True):
        assert (each and (each.indices, pytest.approx(each.mean_shift_share))) == outliers(values)


def modes(values: list[float]) -> tuple[float, float, float, int] | None:
    n, ordered = len(values), sorted(without_ties(values))
    tail, smallest = math.ceil(0.05 * n), max(3, math.ceil(0.1 * n))
    clipped = [min(max(value, ordered[tail]), ordered[n - 1 - tail]) for value in ordered]

    def between(cut: int) -> float:
        return cut * (n - cut) * (plain.mean(clipped[:cut]) - plain.mean(clipped[cut:])) ** 2

    cut = max(range(smallest, n - smallest + 1), key=between)
    lower, upper = plain.median(ordered[:cut]), plain.median(ordered[cut:])
    smaller = min(cut, n - cut)
    m = 2 * smaller
    if upper - lower < 0.001 * lower or greatest_distance(ordered[cut - smaller : cut + smaller]) <= (
        0.70 - 0.44 / math.sqrt(m)
    ) / math.sqrt(m):
        return None
    sides = [value > (lower + upper) / 2 for value in values if abs((value - lower) / (upper - lower) - 0.5) > 0.25]
    return lower, upper, (n - cut) / n, sum(a != b for a, b in itertools.pairwise(sides))


def greatest_distance(ordered: list[float]) -> float:
    import numpy as np

    return dip(np.array(ordered))  # which is held to the published algorithm elsewhere


def test_two_modes_are_those_of_the_definition() -> None:
    chance = random.Random(5)
    every = ALL + [stream("two levels", chance) for _ in range(60)]
    for upper in range(2, 22):  # the smaller group has a tenth at least
        level = [1.2] * upper + [1.0] * (100 - upper)
        every.append([value + chance.gauss(0, 0.004) for value in chance.sample(level, 100)])
    found = [statistics.two_modes(values) for values in every]
    assert 10 < sum(each is not None for each in found) < len(every) - 10
    for each, values in zip(found, every, strict=True):
        other = modes(values)
        assert (each is None) == (other is None)
        if each is not None and other is not None:
            assert (each.lower, each.upper, each.upper_share, each.switches) == pytest.approx(other)
            assert each.gap_share == pytest.approx(other[1] / other[0] - 1)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.995])
def test_an_interval_of_the_median_is_that_of_the_definition(confidence: float) -> None:
    for values in [*ALL, [2.0], [1.0, 2.0], [1.0, 2.0, 4.0], [1.0, 2.0, 4.0, 8.0], [1.0, 2.0, 4.0, 8.0, 16.0]]:
        n, ordered = len(values), sorted(values)
        inside = [1 - 2 * sum(math.comb(n, k) for k in range(d)) / 2**n for d in range(n // 2 + 1)]
        depth = max((d for d in range(1, n // 2 + 1) if inside[d] >= confidence), default=0)
        expected = None
        if depth == n // 2 and depth:
            expected = (ordered[depth - 1], ordered[n - depth])
        elif depth:
            share = (inside[depth] - confidence) / (inside[depth] - inside[depth + 1])
            inward = (n - depth) * share / (depth + (n - 2 * depth) * share)
            low, high = ordered[depth - 1 : depth + 1], ordered[n - depth - 1 : n - depth + 1]
            expected = (low[0] + inward * (low[1] - low[0]), high[1] - inward * (high[1] - high[0]))
        found = statistics.median_interval(values, confidence)
        assert found == (expected and pytest.approx(expected, rel=1e-9))


def test_a_summary_is_that_of_the_definition() -> None:
    for values in ALL:
        found = summarize(values)
        mean = plain.fmean(values)
        assert (found.mean, found.std) == pytest.approx((mean, plain.stdev(values)))
        quartiles = [percentile(values, percent) for percent in (5, 25, 50, 75, 95)]
        assert (found.p5, found.p25, found.median, found.p75, found.p95) == pytest.approx(tuple(quartiles))
        about = [value - mean for value in values]
        lag1 = sum(a * b for a, b in itertools.pairwise(about)) / sum(a * a for a in about)
        assert found.lag1 == pytest.approx(lag1)


def normal_rank_sum(a: list[float], b: list[float]) -> float:
    wins = sum((x > y) + (x == y) / 2 for x in a for y in b)
    mean, deviation = len(a) * len(b) / 2, math.sqrt(len(a) * len(b) * (len(a) + len(b) + 1) / 12)
    return min(1.0, 2 * NormalDist().cdf(-max(abs(wins - mean) - 0.5, 0) / deviation))


def test_a_rank_sum_is_that_of_all_orders() -> None:
    chance = random.Random(7)
    for _ in range(30):
        a = [float(chance.randint(0, 9)) for _ in range(chance.randint(1, 4))]
        b = [float(chance.randint(0, 9)) + 0.5 for _ in range(chance.randint(1, 5))]
        every = a + b
        order = sorted(range(len(every)), key=lambda place: every[place])

        def wins(places: tuple[int, ...], others: int = len(b)) -> int:
            return sum(places) - len(places) * (len(places) - 1) // 2

        own = wins(tuple(order.index(place) for place in range(len(a))))
        extreme = min(own, len(a) * len(b) - own)
        counted = [wins(places) for places in itertools.combinations(range(len(every)), len(a))]
        share = sum(each <= extreme for each in counted) / len(counted)
        assert statistics.rank_sum(a, b) == pytest.approx(min(1.0, 2 * share))
    for shift in (0.0, 0.2, 0.5):
        a, b = [chance.gauss(0, 1) for _ in range(60)], [chance.gauss(shift, 1) for _ in range(41)]
        assert statistics.rank_sum(a, b) == pytest.approx(normal_rank_sum(a, b), rel=1e-9)


def judged_rounds(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Tukey and McLaughlin's interval of a trimmed mean."""
    logs = sorted(math.log(y / x) for x, y in zip(a, b, strict=True))
    n, cut = len(logs), len(logs) // 5
    kept = logs[cut : n - cut]
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    error = plain.stdev(winsorized) * math.sqrt((n - 1) / (len(kept) * (len(kept) - 1)))
    half = t_quantile(0.995, len(kept) - 1) * error
    return plain.fmean(kept), half, half


def judged_runs(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Welch's interval."""
    logs = [[math.log(each) for each in side] for side in (a, b)]
    parts = [plain.variance(side) / len(side) for side in logs]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    half = t_quantile(0.995, max(1, int(freedom))) * math.sqrt(sum(parts))
    return plain.fmean(logs[1]) - plain.fmean(logs[0]), half, half


def judged_steps(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Zou and Donner's interval, widened where steps are correlated."""
    distances = []
    for side in (a, b):
        interval = statistics.median_interval(side, 0.995)
        assert interval is not None
        alike_steps = autocorrelation(side)
        wider = math.sqrt(len(side) / alike_steps[1]) if alike_steps else 1.0
        level = plain.median(side)
        distances.append((math.log(level / interval[0]) * wider, math.log(interval[1] / level) * wider))
    (low_a, high_a), (low_b, high_b) = distances
    center = math.log(plain.median(b) / plain.median(a))
    return center, math.hypot(low_b, high_a), math.hypot(high_b, low_a)


@pytest.mark.parametrize(
    ("compare", "reference", "fewest"),
    [(compare_rounds, judged_rounds, 3), (compare_runs, judged_runs, 3), (compare_processes, judged_steps, 9)],
)
def test_a_verdict_is_that_of_the_definition(
    compare: Callable[..., ComparedRatio],
    reference: Callable[[list[float], list[float]], tuple[float, float, float]],
    fewest: int,
) -> None:
    chance = random.Random(11)
    said = set()
    for _ in range(120):
        count, scatter = chance.randint(fewest, fewest + 12), chance.choice([0.0005, 0.005, 0.03])
        ratio = chance.choice([1.0, 0.9, 1.02, 1.1])
        more = 0 if compare is compare_rounds else chance.randint(0, 3)
        a = [math.exp(chance.gauss(0, scatter)) for _ in range(count)]
        b = [ratio * math.exp(chance.gauss(0, scatter)) for _ in range(count + more)]
        if compare is compare_processes and chance.random() < 0.3:
            a.sort()
        found = compare(a, b)
        center, below, above = reference(a, b)
        assert found.count == count
        assert found.ratio == pytest.approx(math.exp(center))
        assert (found.low, found.high) == pytest.approx((math.exp(center - below), math.exp(center + above)))
        assert found.low is not None
        assert found.high is not None
        same = found.low >= 1 / 1.01 and found.high <= 1.01
        faster_or_slower = "FASTER" if found.high < 1 else "SLOWER" if found.low > 1 else "AMBIGUOUS"
        assert found.verdict == ("SAME" if same else faster_or_slower)
        said.add(found.verdict)
    assert len(said) == 4


def test_runs_that_agree_exactly_have_an_interval_of_no_width() -> None:
    found = compare_runs([1.0] * 3, [2.0] * 4)
    assert (found.ratio, found.low, found.high, found.verdict) == (pytest.approx(2.0),) * 3 + ("SLOWER",)


def pooled(ratios: list[statistics.Ratio]) -> tuple[float, float] | None:
    """Geometric mean, and the distance of the farthest ratio or the uncertainty of the mean."""
    logs = [math.log(each.value) for each in ratios]
    mean = plain.fmean(logs)
    normal = NormalDist()
    wider = normal.inv_cdf(1 - 0.05 / 2 / len(ratios)) / normal.inv_cdf(1 - 0.05 / 2)
    variances = []
    for each, log in zip(ratios, logs, strict=True):
        if each.low is None or each.high is None:
            return None
        variances.append((math.log(each.high / each.low) / 2) ** 2)
        end = each.high if mean > log else each.low
        if abs(math.exp(mean) / each.value - 1) > 0.01 and abs(mean - log) > wider * abs(math.log(end / each.value)):
            return None
    value = math.exp(mean)
    uncertain = value * (math.exp(math.sqrt(sum(variances)) / len(ratios)) - 1)
    reach = max(uncertain, *(abs(each.value - value) for each in ratios))
    return (value, reach) if reach <= 0.05 * value else None


def test_a_common_ratio_is_that_of_the_definition() -> None:
    chance = random.Random(13)
    found = 0
    for _ in range(400):
        center, scatter = chance.choice([0.5, 1.0, 3.0]), chance.choice([0.005, 0.02, 0.05])
        ratios = []
        for _ in range(chance.randint(1, 5)):
            value = center * math.exp(chance.gauss(0, scatter))
            ratios.append(statistics.Ratio(value, value * (1 - chance.uniform(0, 0.1)), value * chance.uniform(1, 1.1)))
        each, other = statistics.pooled(ratios), pooled(ratios)
        assert (each is None) == (other is None)
        if each is not None:
            assert (each.value, each.max_deviation) == pytest.approx(other)
            assert each.count == len(ratios)
            found += 1
    assert 50 < found < 350


def fitted(points: list[tuple[float, float]]) -> tuple[float, float, float, float, float]:
    """Slope, value at 0, deviation, mean and spread of x, by least squares."""
    x, y = [a for a, _ in points], [b for _, b in points]
    slope, at_zero = plain.linear_regression(x, y)
    deviation = math.sqrt(sum((b - at_zero - slope * a) ** 2 for a, b in points) / (len(points) - 2))
    mean = plain.fmean(x)
    return slope, at_zero, deviation, mean, sum((a - mean) ** 2 for a in x)


def power(points: list[tuple[float, float]]) -> tuple[int, float, float] | None:
    """Sizes left out, exponent, and half its interval; None for no single exponent."""
    starts = [start for start in range(len(points) - 2) if fitted(points[start:])[2] <= 0.1]
    if not starts:
        return None
    first = starts[0]
    while len(points) - first > 3:
        slope, at_zero, deviation, mean, spread = fitted(points[first + 1 :])
        rest = len(points) - first - 1
        distance = abs(points[first][1] - at_zero - slope * points[first][0])
        reach = deviation * math.sqrt(1 + 1 / rest + (points[first][0] - mean) ** 2 / spread)
        if distance <= max(0.02, t_quantile(0.99, rest - 2) * reach):
            break
        first += 1
    slope, _, deviation, _, spread = fitted(points[first:])
    half = t_quantile(0.95, len(points) - first - 2) * deviation / math.sqrt(spread)
    return (first, slope, half) if half <= 0.25 else None


def test_a_power_law_is_that_of_the_definition() -> None:
    chance = random.Random(17)
    found = left_out = 0
    for _ in range(300):
        sizes = [2.0**k for k in range(4, 4 + chance.randint(3, 8))]
        cost, exponent = chance.choice([0.0, 0.0, 3.0, 30.0, 300.0]), chance.choice([1.0, 1.5, 2.0])
        scatter = chance.choice([0.0, 0.001, 0.01, 0.05, 0.2])
        values = [(cost + size**exponent / 16) * math.exp(chance.gauss(0, scatter)) for size in sizes]
        law = statistics.power_law(sizes, values)
        expected = power([(math.log(a), math.log(b)) for a, b in zip(sizes, values, strict=True)])
        assert isinstance(law, statistics.PowerLaw) == (expected is not None)
        if isinstance(law, statistics.PowerLaw) and expected is not None:
            first, slope, half = expected
            assert (law.excluded_sizes, law.sizes) == (tuple(sizes[:first]), tuple(sizes[first:]))
            assert law.exponent == pytest.approx(slope)
            assert (law.low, law.high) == pytest.approx((slope - half, slope + half), abs=1e-9)
            found += 1
            left_out += first > 0
    assert 100 < found < 290
    assert left_out > 20
