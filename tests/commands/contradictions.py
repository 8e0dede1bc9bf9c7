"""Runs made of noise, and what their findings must not do: contradict the numbers they cite, or each other.

`python -m tests.commands.contradictions --runs 1000 --seed 7` tries as many as asked for and prints what it finds.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sysbench import cells as axes
from sysbench import statistics
from sysbench.commands.attention.findings import of_run as attention_findings
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.commands.time.findings import headlines
from sysbench.commands.time.record import TimeCellRecord
from sysbench.log.outcomes import EXCLUDING, CautionCode
from sysbench.render.sentences.findings import Finding
from tests import fixtures_attention
from tests.fixtures_findings import time_cell

FORMS = {
    "forward-backward": {"forward": 1.0, "backward": 2.0},
    "forward": {"forward": 1.0},
    "train": {"forward": 1.0, "backward": 2.0, "optimizer": 0.4},
}

CHOICES = [("precision", ("fp32", "bf16")), ("attention", ("naive", "sdpa")), ("precision", ("fp32",))]


@dataclass(frozen=True)
class Noise:
    """What disturbs a run."""

    share: float
    """Of a step, from one to the next."""
    between_cells: float
    """Of whole cells: another program ran meanwhile."""
    hiccups: float
    """How often a step takes several times as long."""
    cold: float
    """As many times as long takes the very first step."""
    cautioned: bool
    """Whether the detectors looked; a finding must not rest on their having seen it."""


def noise(dice: random.Random) -> Noise:
    return Noise(
        share=dice.choice([0.001, 0.01, 0.03, 0.1, 0.4]),
        between_cells=dice.choice([0.0, 0.0, 0.02, 0.3, 0.8]),
        hiccups=dice.choice([0.0, 0.0, 0.05, 0.2]),
        cold=dice.choice([1.0, 1.0, 1.2, 12.0]),
        cautioned=dice.random() < 0.5,
    )


def time_run(dice: random.Random) -> list[TimeCellRecord]:
    """A sweep over sizes, contexts and some choice, with effects that are real, small or none, and noise over them."""
    disturbed, mode, steps = noise(dice), dice.choice(list(FORMS)), dice.choice([3, 6, 10, 10, 20])
    sizes = dice.sample(["small", "medium", "large", "xl"], dice.choice([1, 1, 2, 3]))
    contexts = [32 * 2**power for power in range(dice.choice([1, 2, 3, 4]))]
    axis, arms = dice.choice(CHOICES)
    warmups = dice.choice([(0, 1, 5), (0, 5), (5,), (5,)])
    effect, grows = dice.choice([1.0, 1.02, 1.5, 0.5, 2.5]), dice.choice([0.0, 0.3, 1.0, 1.3])
    cells = []
    for size, ctx, arm, warmup in itertools.product(sizes, contexts, arms, warmups):
        seconds = 0.01 * (1 + 2 * ["small", "medium", "large", "xl"].index(size)) * (ctx / 32) ** grows
        seconds *= math.exp(dice.gauss(0, disturbed.between_cells)) / (effect if arm == arms[-1] else 1.0)
        fate = dice.choices(["ok", "oom", "crashed"], [0.93, 0.05, 0.02])[0]
        given = {"size": size, "ctx": ctx, axis: arm, "warmup": warmup, "steps": steps, "mode": mode}
        cells.append(_cell(dice, disturbed, seconds, given) if fate == "ok" else time_cell({}, outcome=fate, **given))
    return cells


def _cell(dice: random.Random, disturbed: Noise, seconds: float, given: dict[str, object]) -> TimeCellRecord:
    warmup, steps = int(str(given["warmup"])), int(str(given["steps"]))

    def taken(number: int) -> float:
        hiccup = dice.uniform(2, 8) if dice.random() < disturbed.hiccups else 1.0
        return math.exp(dice.gauss(0, disturbed.share)) * hiccup * (disturbed.cold if number == 0 else 1.0)

    phases = {
        phase: [seconds * share * taken(number) for number in range(warmup + steps)]
        for phase, share in FORMS[str(given["mode"])].items()
    }
    whole = [sum(step) for step in zip(*phases.values(), strict=True)]
    counted = {phase: values[warmup:] for phase, values in phases.items()}
    codes = _cautions(whole[:warmup], whole[warmup:]) if disturbed.cautioned else []
    if dice.random() < 0.05:
        codes.append(dice.choice(sorted(EXCLUDING["times"] | {"launch-bound"})))
    bytes_ = dice.randrange(1 << 28, 1 << 34)
    return time_cell(counted, warmup_s=whole[:warmup], cautions=codes, allocated=bytes_, **given)


def _cautions(warmup: Sequence[float], wall: Sequence[float]) -> list[CautionCode]:
    seen = {
        "warmup-unfinished": statistics.warmup_unfinished(warmup, wall),
        "two-modes": statistics.two_modes(wall),
        "drift": statistics.drift(wall),
        "autocorrelated": statistics.autocorrelation(wall),
        "too-few-steps": statistics.too_few(wall),
    }
    return [code for code, found in seen.items() if found]  # type: ignore[misc]


# --- what must not be


def of_time(cells: Sequence[TimeCellRecord]) -> Iterator[str]:
    """Every contradiction between the findings of a timing run and its numbers, or one another."""
    sentences = list(headlines(cells))
    for each in sentences:
        yield from (f"{what}: {each.text}" for what in (*_within(each), *_comparison(each)))
        yield from _doubtful(each)
    yield from _between(sentences)


def _within(each: Finding) -> Iterator[str]:
    """What a sentence says of its own numbers."""
    text = each.text
    if re.search(r"\bnan\b|\binf\b", text) or not text.endswith("."):
        yield "no sentence"
    for low, high in re.findall(r"do not differ measurably.*?interval of (?:a|the) ratio is ([\d.]+)–(\d+\.\d+)", text):
        if not float(low) <= 1 <= float(high):
            yield "an interval without 1 is said to be of equals"
    for value, low in re.findall(r"(?<!compiled )is (\d+\.\d+)× \(95% CI (\d+\.\d+)–[\d.]+\) as fast", text):
        if min(float(value), float(low)) < 1:
            yield "slower is said to be faster"
    for exponent, half in re.findall(r"\^(-?\d+\.\d+) ± (\d+\.\d+)", text):
        if float(exponent) - float(half) < -0.006:
            yield "growth may be none"
    for low, high in re.findall(r"backward takes ([\d.]+)× \(.*?\) to ([\d.]+)×", text):
        if float(low) > float(high):
            yield "a range goes down"
    yield from _extremes(text)


def _extremes(text: str) -> Iterator[str]:
    """What is more than there is, or less than is said."""
    frontier = re.search(r"ctx (\d+) fits, ctx (\d+) does not", text)
    if frontier and int(frontier[1]) >= int(frontier[2]):
        yield "what is larger fits"


COMPARED = re.compile(r"(\w+)(?: attention)? is .*? as fast as (\w+)")


def _comparison(each: Finding) -> Iterator[str]:
    """Of two ways of computing, whether the cells whose ratios are given are ordered in all that a table shows."""
    match = COMPARED.match(each.text)
    if match is None:
        return
    shown = [float(number) for number in re.findall(r"(\d+\.\d+)(?:×| to )", re.split(r"geometric|×\.", each.text)[0])]
    told = "the rest does not differ significantly" in each.text
    axis = "precision" if match[1] in ("fp32", "bf16") else "attention"
    for first, second in axes.pairs(list(each.cells), axis, match[2], match[1]):
        one, other = first.phases["step"].wall, second.phases["step"].wall
        assert one is not None
        assert other is not None
        value = one.median_s / other.median_s
        if told or not any(abs(value - number) <= 0.0051 for number in shown):
            continue
        if (value > 1) != (one.mean_s > other.mean_s):
            yield f"the table's means say the opposite of {value:.2f}"
        if value < 1 and "It is slower for" not in each.text:
            yield f"slower ({value:.2f}) is said to be faster"
        longer = sum(a > b for a in one.samples_s for b in other.samples_s) / len(one.samples_s) / len(other.samples_s)
        if 0.3 < longer < 0.7:
            yield f"only {longer:.0%} of steps are in that order"


def _between(sentences: Sequence[Finding]) -> Iterator[str]:
    """What two sentences say of the same cells."""
    claims = [match.groups() for each in sentences if (match := COMPARED.match(each.text))]
    for arm, base in claims:
        if (base, arm) in claims:
            yield f"{arm} is faster than {base}, and slower"


def of_attention(seed: int, noise_share: float) -> Iterator[str]:
    """The same of an attention sweep."""
    spec = AttentionSpec(impl="naive,compiled,sdpa-flash", dim="64", seq="256-2048*2", repeats=10)
    record = fixtures_attention.record(spec, seed=seed, noise=noise_share)
    sentences = list(attention_findings(record))
    for each in sentences:
        yield from (f"{what}: {each.text}" for what in _within(each))
        for tied, name in re.findall(
            r": ([\w, -]+) share the lead [^;]*; [\w-]+ is .*?as fast as ([\w-]+) at", each.text
        ):
            if name in re.split(r", | and ", tied):
                yield f"tied, and faster: {each.text}"
        yield from _doubtful(each)


def _doubtful(each: Finding) -> Iterator[str]:
    """The excluded cells that a finding rests on, by the cautions of each."""
    for cell in each.cells if not each.is_exclusion else ():
        if codes := {caution.code for caution in cell.cautions} & EXCLUDING[each.about]:
            yield f"rests on {cell.key} ({', '.join(sorted(codes))}): {each.text}"


def contradictions(runs: int, seed: int) -> Iterator[str]:
    """Of as many timing runs, and an attention sweep for every tenth."""
    for number in range(runs):
        dice = random.Random(f"{seed} {number}")
        for found in of_time(time_run(dice)):
            yield f"run {number}: {found}"
        if number % 10 == 0:
            for found in of_attention(number, dice.choice([0.01, 0.1, 0.5])):
                yield f"attention {number}: {found}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found = list(contradictions(asked.runs, asked.seed))
    print(*found, f"{len(found)} contradictions in {asked.runs} runs", sep="\n")
