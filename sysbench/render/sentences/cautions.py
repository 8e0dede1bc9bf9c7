"""Cautions in words: one sentence for each code, about one cell or about several whose numbers differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sysbench import cells as axes
from sysbench import units
from sysbench.log.cautions import MARGIN_UNCERTAINTY_SHARE
from sysbench.log.outcomes import Caution, CautionCode, NamedNumber
from sysbench.log.records import AnyCell, RunRecord
from sysbench.render.sentences.phrases import join_words, name_among
from sysbench.render.table import Remark

Doubted = TypeVar("Doubted")
"""What a caution is about: a cell, or a cell of a run."""


@dataclass(frozen=True)
class Stated:
    """What a sentence states: of each number the smallest and the largest value, which are equal for one cell."""

    ends: Mapping[str, tuple[NamedNumber, NamedNumber]]
    about: tuple[str, ...]
    ranges: set[str] = field(default_factory=set)
    """Names of the numbers that were said as a range."""

    @classmethod
    def of(cls, cautions: Sequence[Caution]) -> Stated:
        """Return what cautions that are alike state together."""
        by_name = zip(*(caution.numbers for caution in cautions), strict=True)
        ordered = [sorted(numbers, key=lambda number: number.value) for numbers in by_name]
        return cls({numbers[0].name: (numbers[0], numbers[-1]) for numbers in ordered}, cautions[0].about)

    def __getitem__(self, name: str) -> _Shown:
        least, most = map(show, self.ends[name])
        if least == most:
            return _Shown(least)
        self.ranges.add(name)
        return _Shown(f"{least} to {most}")


class _Shown(str):
    """A number as text; `{steps:step|steps}` is the noun for it."""

    def __format__(self, forms: str) -> str:
        one, _, many = forms.partition("|")
        return (one if self == "1" else many) if forms else self


def show(number: NamedNumber) -> str:
    """Format a number: `11%`, `8.10 ms`, and counts in full."""
    match number.unit:
        case "share":
            return units.share(number.value)
        case "ratio":
            return units.ratio(number.value)
        case "count":
            return f"{number.value:,.0f}"
    return units.quantity(number.unit, number.value)


def _warmup_unfinished(said: Stated) -> str:
    count, took = said["slow_steps"], "still took" if said.about else "took"
    steps = f"the first {count:|{count} }measured {count:step|steps}"
    return f"{steps} {took} {said['excess_share']} longer than the later ones"


def _two_modes(said: Stated) -> str:
    (what,), levels = said.about, f"{said['lower_s']} and {said['upper_s']}"
    if "upper_share" not in said.ends:
        return f"the {what} time shifted once between {levels}: the mean represents neither"
    which = "the steps" if what == "step" else "them"
    return (
        f"{what} times switch between {levels}, and {said['upper_share']} of {which} are slow: "
        "the mean represents neither"
    )


def _launch_bound(said: Stated) -> str:
    if "waiting_share" in said.ends:
        (step,), share = said.about, said["waiting_share"]
        return f"the device waited for the host in {share} of the {step} step: the host limits the speed"
    phases = f"{join_words(said.about)} {'is' if len(said.about) == 1 else 'are'}"
    return f"{phases} launch-bound: the device finishes as soon as the host has launched its kernels"


def _host_busy(said: Stated) -> str:
    share = said["busy_share"] if "busy_share" in said.ends else "some"
    effect = f": the median may be up to {said['excess_share']} too long" if "excess_share" in said.ends else ""
    return f"other processes used {share} of the CPU during the run{effect}"


def _below_lower_bound(said: Stated) -> str:
    if said.about:
        rest = f"{said['step_flops']} and {said['moved_bytes']}"
        return f"{said.about[0]} is faster than the data sheet's rates allow for {rest}"
    return f"the median step is shorter than the {said['bound_s']} that its matrix products take at data-sheet peak"


def _operators_unknown(said: Stated) -> str:
    names = ", ".join(f"{name} ({said[name]})" for name in said.ends if name != "unknown_share")
    return (
        f"{said['unknown_share']} of a cell's work is in operators that the model does not know and treats as "
        f"elementwise: {names}"
    )


_EMULATED: Final = {
    "bf16": "this CPU has no bf16 instructions (AMX, AVX512-BF16) and emulates bf16, many times slower than fp32: the "
    "time says nothing about bf16 on other hardware",
    "fp8": "a CPU has no products in fp8: torchao rounds operands to fp8, and multiplies them in another format; time "
    "and memory say nothing about fp8 on a GPU",
}

_SLOWED: Final = {
    "kernels": "kernel times are unaffected",
    "operators": "small operators appear slower than they are",
}

SENTENCES: Final[Mapping[CautionCode, str | Callable[[Stated], str]]] = {
    "warmup-unfinished": _warmup_unfinished,
    "outliers": "outliers among the steps ({outliers} of {steps}) move the mean by {mean_shift_share}",
    "drift": lambda said: (
        f"{'steps get' if said.about[0] == 'step' else f'{said.about[0]} gets'} {said.about[1]}, by "
        f"{said['change_share']} from the first to the last"
    ),
    "two-modes": _two_modes,
    "autocorrelated": "steps are autocorrelated (lag-1 correlation {lag1_correlation}): effective sample size "
    "{effective_steps} of {steps}, which widens the interval",
    "too-few-steps": "{steps} measured {steps:step is|steps are} too few for a 95% interval",
    "interval-too-wide": "the 95% CI of the median step spans {width_share}",
    "throttled": lambda said: (
        f"the GPU throttled its clocks in {said['readings_share']} of the readings: {', '.join(said.about)}"
    ),
    "launch-bound": _launch_bound,
    "gpu-shared": "{processes} other {processes:process|processes} used the GPU",
    "host-busy": _host_busy,
    "suspended": "the machine was suspended, or its clock was set, by {suspended_s}: "
    "{steps} {steps:step is|steps are} left out",
    "threads-wait": "the threads of a step wait for each other: a step takes {step_s} on {threads} threads and "
    "{step_on_fewer_s} on {fewer_threads}, because other processes use some of the cores",
    "cores-shared": "{ranks} ranks share {cores} {cores:core|cores} and take turns",
    "emulated": lambda said: _EMULATED[said.about[0]],
    "parameters-unchanged": "the optimizer step changed no parameter: a no-op was timed",
    "gradients-missing": "some parameters had no gradient, so the optimizer step updated fewer parameters than usual",
    "loss-not-finite": "the loss of the first measured step is {0}",
    "below-lower-bound": _below_lower_bound,
    "ceiling-doubtful": "the step was faster than the measured matmul ceiling of {ceiling_flops_per_s}",
    "compile-fell-back": "torch.compile gave up on part of the model and ran it eagerly: {0}",
    "compiled-simulated": "compiled for this GPU without it: what the compiler tries out in its first step is left out",
    "graph-breaks": lambda said: f"the compiler divides the step at {join_words(said.about)}: nothing is fused across",
    "graphs-skipped": "torch.compile recorded no CUDA graph for {parts} compiled {parts:part|parts}",
    "readings-lost": "{0} stopped answering: {1}",
    "not-measured": lambda said: (
        f"the step time is withheld: {said.about[0]}"
        if said.about
        else "phases have no separate times: with --sync step, only device events could provide them"
    ),
    "allocator-retried": "the allocator had to release its whole cache {retries:once|{retries} times}: steps stall "
    "while it does, and a slightly larger step would not fit",
    "narrow-margin": "only {margin_bytes} to spare: less than the uncertainty of a simulation ({uncertainty_bytes}, "
    f"{MARGIN_UNCERTAINTY_SHARE * 100:g}% of the memory: the CUDA context is assumed)",
    "check-failed": "{0}: found {found}, expected {expected}; the profile is incomplete, or the model differs",
    "kernels-missing": "the profiler recorded no kernels of the device: tables show operators by their host time",
    "kernels-unlinked": "{unlinked_share} of the kernel time has no recorded launch: it belongs to no range",
    "kernels-slower": "kernels took {step_share} of the unprofiled step time: they ran slower, or overlap",
    "precision-differs": "{matmul_share} of matrix product time is in {0} kernels, not {1}",
    "precision-overridden": lambda said: (
        f"the model's code had switched TF32 {said.about[1]} for {join_words(said.about[2:])} kernels; this was "
        f"undone, because the cell is {said.about[0]}"
    ),
    "not-checked": "the results were not compared with fp64, because memory ran out",
    "profiler-costly": lambda said: (
        f"the profiled step took {said['profiled_s']} instead of {said['unprofiled_s']}: {_SLOWED[said.about[0]]}"
    ),
    "trace-damaged": "{0}",
    "calibration-differs": "{0}",
    "operators-unknown": _operators_unknown,
    "selection-assumed": lambda said: (
        "shapes depend on values, which a simulation does not have; assumed: " + "; ".join(said.about)
    ),
    "own-compiling": lambda said: f"simulated as eager, although the code compiles at {join_words(said.about)}",
    "modelled": lambda said: f"modelled, not traced: {'; '.join(said.about)}",
    "never-compared": "no step on an AMD GPU has been compared with {0}: its kernels and scratch memory are assumed",
    "host-time-missing": "the prediction leaves out the host time of the Python code of {0}: phases that the host "
    "limits take longer than predicted",
    "device-unused": "nothing was allocated on {0}: the steps may have run elsewhere",
}

LEAST_IS_WORST: Final[frozenset[CautionCode]] = frozenset({"too-few-steps", "narrow-margin"})
"""Codes of which the worst cell is that with the smallest first number; of the others, with the largest."""


def alike(found: Iterable[tuple[Doubted, Caution]]) -> list[list[tuple[Doubted, Caution]]]:
    """Group cautions that differ at most in the values of their numbers, so that one sentence can say them."""
    grouped: dict[tuple[object, ...], list[tuple[Doubted, Caution]]] = {}
    for doubted, caution in found:
        names = tuple(number.name for number in caution.numbers)
        key = (caution.code, caution.about, names, caution.remedy)
        grouped.setdefault(key, []).append((doubted, caution))
    return list(grouped.values())


def say(group: Sequence[tuple[Doubted, Caution]], name: Callable[[Doubted], str]) -> str:
    """Say cautions that are alike in one sentence.

    A number that differs between cells is said as a range. If several differ, their ranges would say nothing about any
    one cell: the sentence is that of the worst cell, and `name` names it.
    """
    cautions = [caution for _, caution in group]
    text, ranges = _sentence(cautions)
    if ranges < 2:
        return text
    choose = min if cautions[0].code in LEAST_IS_WORST else max
    worst, caution = choose(group, key=lambda each: each[1].numbers[0].value)
    return f"{_sentence([caution])[0]} (the worst of {len(group)} cells: {name(worst)})"


def _sentence(cautions: Sequence[Caution]) -> tuple[str, int]:
    """Return the sentence of cautions that are alike, and how many of its numbers are ranges."""
    said, code = Stated.of(cautions), cautions[0].code
    sentence = SENTENCES[code]
    try:
        if callable(sentence):
            text = sentence(said)
        else:
            stated = {name: said[name] for name in said.ends if f"{{{name}" in sentence}
            text = sentence.format(*said.about, **stated)
    except (LookupError, ValueError):  # the record is not of this program, and lacks what the sentence states
        text = ", ".join([code, *said.about, *(f"{name} {said[name]}" for name in said.ends)])
    return text, len(said.ranges)


def cautions_of(record: RunRecord[AnyCell]) -> list[Remark]:
    """Return the cautions of all cells as remarks; cautions that differ only in numbers share one."""
    differing = axes.varying(record.cells)
    remarks = []
    for group in alike((cell, caution) for cell in record.cells for caution in cell.cautions):
        named = name_among([cell for cell, _ in group], record.cells)
        said = say(group, lambda cell: axes.label(cell, differing))
        remarks.append(Remark("caution", f"{named}: {said}", group[0][1].remedy))
    return remarks
