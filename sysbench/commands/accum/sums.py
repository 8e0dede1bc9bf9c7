"""Sum many copies of one number, for each format and order of summation."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from sysbench import units
from sysbench.commands.accum.record import SumMeasured
from sysbench.commands.accum.spec import AccumCell, Order
from sysbench.errors import UnavailableError
from sysbench.lab.devices import torch_device
from sysbench.lab.precision import Arithmetic
from sysbench.log.events import DeviceInfo, Event
from sysbench.rounding import FormatName

_TRIAL_STEPS = 200
_UNCHECKED_STEPS = 10_000
"""Sums with at most this many steps run without a check against the budget."""

_OPERATIONS: dict[Order, float] = {"sequential": 1, "kahan": 4, "blocked": 0, "pairwise": 0}
"""Dependent operations per number; blocked summation has only one dependent operation per block."""


class Summation(NamedTuple):
    """One way to compute `accumulator += addend`."""

    accumulator: FormatName
    addend: FormatName
    order: Order = "sequential"
    upcast: bool = False


def run(cell: AccumCell, device: DeviceInfo) -> Iterator[Event]:
    value, count, block = cell.value, cell.count, cell.block
    if value is None or count is None or block is None:
        raise ValueError("a sums cell needs a value and a count")
    where = torch_device(device)
    requested = list(summations(cell))
    _refuse_over_budget(cell, requested, count, block, where)
    for summation in requested:
        narrow, wide = Arithmetic.of(summation.addend, where), Arithmetic.of(summation.accumulator, where)
        addend = narrow.number(value)
        rounded_addend = narrow.value(addend)
        if summation.upcast or narrow.source != wide.source:
            addend = wide.number(rounded_addend)
        match summation.order:
            case "sequential":
                result = sequential(wide, addend, count)
            case "kahan":
                result = compensated(wide, addend, count)
            case "pairwise":
                result = pairwise(wide, addend, count)
            case "blocked":
                result = blocked(wide, addend, count, block)
        yield SumMeasured(
            at_s=time.time(),
            cell=cell.key,
            **summation._asdict(),
            source="rounded" if "rounded" in (narrow.source, wide.source) else "device",
            rounded_addend=rounded_addend,
            result=result,
        )


def summations(cell: AccumCell) -> Iterator[Summation]:
    """Yield each format in each order, and all except fp32 with an fp32 accumulator, with and without upcast."""
    for name in cell.dtypes:
        for order in dict.fromkeys(("sequential", *(cell.orders or ()))):
            yield Summation(name, name, order)
        if name != "fp32":
            yield Summation("fp32", name)
            yield Summation("fp32", name, upcast=True)


def sequential(arithmetic: Arithmetic, addend: object, count: int) -> float:
    """Add `addend` to 0 `count` times."""
    add, total = arithmetic.add, arithmetic.number(0.0)
    for _ in range(count):
        total = add(total, addend)
    return arithmetic.value(total)


def compensated(arithmetic: Arithmetic, addend: object, count: int) -> float:
    """Sum with Kahan summation, which carries the rounding error of each step to the next (Kahan, CACM 8(1), 1965)."""
    add, subtract = arithmetic.add, arithmetic.subtract
    total, correction = arithmetic.number(0.0), arithmetic.number(0.0)
    for _ in range(count):
        corrected = subtract(addend, correction)
        reached = add(total, corrected)
        correction = subtract(subtract(reached, total), corrected)
        total = reached
    return arithmetic.value(total)


def pairwise(arithmetic: Arithmetic, addend: object, count: int) -> float:
    """Add neighbours, then neighbouring sums, and so on, so that each number is affected by only log₂ n roundings.

    In each round, all sums are equal, except possibly the last one, so the common sum is computed once.
    """
    common, last = addend, None
    while count + (last is not None) > 1:
        if count % 2:
            last = common if last is None else arithmetic.add(common, last)
        if count > 1:
            common = arithmetic.add(common, common)
        count //= 2
    return arithmetic.value(common if count else last)


def blocked(arithmetic: Arithmetic, addend: object, count: int, block: int) -> float:
    blocks, rest = divmod(count, block)
    block_sum = sequential(arithmetic, addend, block) if blocks else 0.0
    total = sequential(arithmetic, arithmetic.number(block_sum), blocks)
    if not rest:
        return total
    rest_sum = sequential(arithmetic, addend, rest)
    return arithmetic.value(arithmetic.add(arithmetic.number(total), arithmetic.number(rest_sum)))


def _refuse_over_budget(
    cell: AccumCell, requested: list[Summation], count: int, block: int, device: torch.device
) -> None:
    if count <= _UNCHECKED_STEPS or cell.budget_s is None:
        return
    predicted_s = 0.0
    for accumulator, group in itertools.groupby(requested, lambda each: each.accumulator):
        wide = Arithmetic.of(accumulator, device)
        began_s = time.perf_counter()
        sequential(wide, wide.number(0.0), _TRIAL_STEPS)
        step_s = (time.perf_counter() - began_s) / _TRIAL_STEPS
        predicted_s += count * step_s * sum(_OPERATIONS[summation.order] for summation in group)
    if predicted_s > cell.budget_s:
        raise UnavailableError(
            f"--count {count} would take about {units.duration(predicted_s)} here, longer than --budget "
            f"{cell.budget_s:g}: use a smaller --count, fewer formats (--dtype) or orders (--order), or a larger "
            "--budget"
        )
