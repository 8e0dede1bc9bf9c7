"""Sheets about known GPUs: a list of all, or one with the source of each number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from sysbench import units
from sysbench.render.table import Cell, Column, Measure, Remark, Sheet, Table
from sysbench.spec.steps import Precision
from sysbench.units import Unit

if TYPE_CHECKING:
    from sysbench.spec.hardware import Hardware

_HALF_RATE = "matmul_half"
"""Rate of products in bf16 and fp16."""

_RATE_UNITS: dict[str, Unit] = {
    "matmul": "flops_per_s", "attention": "flops_per_s", "stream": "bytes_per_s", "reduce": "bytes_per_s",
    "indexed": "elements_per_s", "transpose": "elements_per_s", "kernel": "s", "gap": "s",
}  # fmt: skip
"""Units of rates by the first word of their names, see `sysbench.predict.rates`; those of hosts are seconds."""


def gpu_list(gpus: Sequence[Hardware]) -> Sheet:
    columns = (
        Column("gpu", "GPU"),
        Column("title", "title", importance=4, elastic=True),
        Column("memory", "memory", "bytes"),
        Column("bandwidth", "bandwidth", "bytes_per_s", importance=2),
        Column("peak_fp32", "fp32", "flops_per_s", group="peak", importance=3),
        Column("peak_half", "16-bit", "flops_per_s", group="peak", importance=1),
        Column("rate", "16-bit matmul", "flops_per_s", importance=1),
        Column("rate_basis", "rate from", importance=2),
        Column("rates", "all rates from", importance=5, elastic=True),
        Column("source", "peaks from", importance=6, elastic=True),
    )
    rows = tuple(_row(hardware) for hardware in gpus)
    notes = (
        "peak: dense, from the data sheet; 16-bit: bf16 or fp16; matmul: the sustained rate that predictions use",
        "sysbench gpus NAME shows every number with its source; sysbench calibrate measures those of a GPU here",
    )
    cpus = sum(each.synchronous for each in gpus)
    counted = (f"{len(gpus) - cpus} known GPUs", *([f"{cpus} calibrated CPU{'s' * (cpus > 1)}"] if cpus else []))
    return Sheet(counted, (Table("gpus", "names for --simulate", columns, rows, 1, notes),))


def _row(gpu: Hardware) -> tuple[Cell, ...]:
    rate = gpu.rates.get(_HALF_RATE)
    bases = Counter(rate.basis for rate in gpu.rates.values())
    return (
        gpu.slug,
        gpu.title,
        Measure(gpu.memory_bytes),
        _measure(gpu.memory_bandwidth_bytes_per_s),
        _measure(gpu.peak_flops_per_s.get("fp32")),
        _measure(gpu.peak_flops_per_s.get("bf16") or gpu.peak_flops_per_s.get("fp16")),
        _measure(rate.value if rate else None),
        rate.basis if rate else units.UNKNOWN,
        ", ".join(f"{count} {basis}" for basis, count in bases.most_common()) or units.UNKNOWN,
        gpu.source or units.UNKNOWN,
    )


def _measure(value: float | None) -> Measure | None:
    return None if value is None else Measure(value)


def gpu(card: Hardware) -> Sheet:
    columns = (
        Column("number", "number"),
        Column("value", "value", "number", importance=0),
        Column("unit", "base unit", importance=4),
        Column("spread", "spread", "share", importance=3),
        Column("basis", "basis", importance=1),
        Column("source", "source", importance=1, elastic=True),
    )
    notes = (
        *("spread: standard deviation of the logarithm, about the relative uncertainty",) * bool(card.rates),
        "sources in full: a wider terminal, or --format markdown",
    )
    no_rates = Remark("note", "no rates are known: memory can be simulated, but times cannot be predicted")
    return Sheet(
        (card.slug, card.title),
        (Table("gpu", "numbers and sources", columns, tuple(_numbers(card)), 1, notes),),
        () if card.rates else (no_rates,),
    )


def _numbers(card: Hardware) -> Iterator[tuple[Cell, ...]]:
    def row(
        name: str, value: float, unit: Unit, basis: str, source: str, spread: float | None = None
    ) -> tuple[Cell, ...]:
        return name, Measure(value, text=units.quantity(unit, value)), unit, _measure(spread), basis, source

    properties: tuple[tuple[str, float | None, Unit], ...] = (
        ("memory", card.memory_bytes, "bytes"),
        ("bandwidth", card.memory_bandwidth_bytes_per_s, "bytes_per_s"),
        ("L2 cache", card.l2_bytes, "bytes"),
        ("multiprocessors", card.sms, "count"),
        ("power limit", card.power_limit_w, "watts"),
        *((f"peak {each}", card.peak_flops_per_s.get(each), "flops_per_s") for each in get_args(Precision)),
    )
    for name, value, unit in properties:
        if value is not None:
            yield row(name, value, unit, "data sheet", card.source or units.UNKNOWN)
    if card.context is not None:
        for end, size_bytes in (("least", card.context.low_bytes), ("most", card.context.high_bytes)):
            yield row(f"context, {end}", size_bytes, "bytes", "assumed", card.context.source)
    for precision, ceiling in card.measured.items():
        flops_per_s = ceiling.matmul_flops_per_s
        yield row(f"ceiling {precision}", flops_per_s, "flops_per_s", "measured elsewhere", ceiling.source)
    for name, rate in card.rates.items():
        unit = _RATE_UNITS.get(name.partition("_")[0], "s")
        yield row(name, rate.value, unit, rate.basis, rate.source, rate.spread)
