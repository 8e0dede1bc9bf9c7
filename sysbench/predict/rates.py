"""How fast a GPU and a host are: each constant with its spread, where it is from, and draws of all of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, ValidationError

from sysbench.errors import UnavailableError, UsageError
from sysbench.spec import hardware
from sysbench.spec.hardware import Hardware, Rate
from sysbench.spec.ranks import Interconnect

Draws = NDArray[np.float64]
"""(draws,) The first is the value itself, the others are as it may be."""

GpuRate = Literal[
    "matmul_fp32", "matmul_tf32", "matmul_half", "attention_forward", "attention_backward", "stream", "reduce",
    "indexed", "transpose", "kernel_s", "gap_s",
]  # fmt: skip
"""matmul_*      FLOP/s of a large product, sustained: fp32 on ordinary cores, tf32, bf16 and fp16 on tensor cores
attention_*   FLOP/s of flash attention on long sequences, heads 128 wide, bf16; causal work counted once
stream        bytes/s, read and written, of a vectorized elementwise kernel far larger than the L2
reduce        bytes/s of a reduction over long rows
indexed       elements/s of a kernel that works out an offset for each element
transpose     elements/s of a copy whose fastest dimensions differ
kernel_s      seconds of a kernel that does next to nothing
gap_s         seconds between two kernels when both are waiting
"""

GPU_RATES: tuple[GpuRate, ...] = get_args(GpuRate)

HostRate = Literal["operator", "view", "operator_backward", "view_backward", "scalar", "launch", "synchronize"]
"""operator, view, scalar   seconds to issue each, in forward, loss and optimizer; see `trace.HostWork`
*_backward               in backward, where autograd's C++ calls and no Python does
launch                   seconds that each kernel adds
synchronize              seconds from the end of the last kernel until the host goes on
"""

HOST_RATES: tuple[HostRate, ...] = get_args(HostRate)

CALIBRATED_HOST_SPREAD = 0.05
"""By how much a host that was calibrated is off as a whole: from one process to the next, and from model to model."""

UNEXPLAINED_SPREAD = 0.08
"""Deviation of the logarithm of whole steps that no constant explains: clocks, temperature, versions of libraries. With
0.05 the interval held 80 % of the published runs that constants were chosen on (`python -m tests.bench.prediction`)."""


@dataclass(frozen=True)
class GpuRates:
    """A GPU as its kernels see it."""

    hardware: Hardware
    rates: Mapping[GpuRate, Rate]
    interconnect: Interconnect | None = None
    """What links nodes of several GPUs."""

    @classmethod
    def of(cls, hardware: Hardware) -> GpuRates:
        """The rates of a GPU; raises UnavailableError for one that has none, such as a mere memory size."""
        unneeded = set() if "tf32" in hardware.peak_flops_per_s else {"matmul_tf32"}
        missing = [name for name in GPU_RATES if name not in hardware.rates and name not in unneeded]
        if missing or hardware.sms is None:
            wanted = ", ".join(missing or ["sms"])
            raise UnavailableError(f"times on {hardware.title} cannot be predicted: its rates are not known ({wanted})")
        return cls(hardware, {name: hardware.rates[name] for name in GPU_RATES if name in hardware.rates})

    @property
    def sms(self) -> int:
        """Streaming multiprocessors."""
        return self.hardware.sms or 0

    def drawn(self, count: int = 1, seed: int = 0) -> Mapping[GpuRate, Draws]:
        """Every rate as it may be, (count,) each; the first draw is the value itself."""
        return {
            name: rate.value * np.exp(rate.spread * normal(count, seed, _group(name)))
            for name, rate in self.rates.items()
        }


@dataclass(frozen=True, eq=False)
class HostRates:
    """A host as one thread of Python and autograd on it. All its rates are off by one factor, with `spread`."""

    title: str
    rates: Mapping[HostRate, Rate]
    spread: float

    @classmethod
    def read(cls, path: Path) -> HostRates:
        """The host that a TOML file describes: `title`, `spread`, and a `[rates.NAME]` for each; raises UsageError."""
        try:
            return _HostFile(**tomllib.loads(path.read_text(encoding="utf-8"))).host
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise UsageError(f"{path} describes no host: {error}") from error

    def drawn(self, count: int = 1, seed: int = 0) -> Mapping[HostRate, Draws]:
        """Every rate as it may be, (count,) each; the first draw is the value itself."""
        shared = self.spread * normal(count, seed, "host")
        return {
            name: rate.value * np.exp(shared * (name != "synchronize") + rate.spread * normal(count, seed, name))
            for name, rate in self.rates.items()
        }


class _HostFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    spread: NonNegativeFloat
    rates: dict[HostRate, Rate]

    @property
    def host(self) -> HostRates:
        missing = set(HOST_RATES) - set(self.rates)
        if missing:
            raise UsageError(f"the host {self.title!r} has no rate for {', '.join(sorted(missing))}")
        return HostRates(self.title, self.rates, self.spread)


@cache
def typical_host() -> HostRates:
    """A host that nothing is known of."""
    return HostRates.read(hardware.directory("hosts") / "typical.toml")


def host_of(hardware: Hardware) -> HostRates:
    """The host that was calibrated together with the device; a typical one where none was."""
    rates = {name: hardware.rates[name] for name in HOST_RATES if name in hardware.rates}
    if len(rates) < len(HOST_RATES):
        return typical_host()
    return HostRates(f"the host of {hardware.title}", rates, CALIBRATED_HOST_SPREAD)


def gpu(slug: str) -> GpuRates:
    """The rates of the GPU called `slug`; raises UsageError for an unknown one, UnavailableError for one without."""
    return GpuRates.of(hardware.named(slug))


COMPILED_SPREAD = 0.15
"""The same for compiled steps, of which nobody knows before what is fused and which kernels are chosen."""


def unexplained(count: int, seed: int = 0, *, compiled: bool = False) -> Draws:
    """(count,) Factors on a whole step; the first is 1."""
    return np.exp((COMPILED_SPREAD if compiled else UNEXPLAINED_SPREAD) * normal(count, seed, "unexplained"))


_GROUPS: Mapping[str, str] = {
    "matmul_tf32": "matmul", "matmul_half": "matmul", "matmul_fp32": "matmul", "attention_forward": "attention",
    "attention_backward": "attention", "reduce": "stream", "indexed": "indexed", "transpose": "indexed",
}  # fmt: skip
"""Rates that are off together: a card that is power-limited is so for every precision."""


def _group(name: str) -> str:
    return _GROUPS.get(name, name)


@cache
def normal(count: int, seed: int, name: str) -> Draws:
    """(count,) Standard normal draws in random order, evenly spread over their distribution; the first is 0.

    Even spreading (Latin hypercube sampling, McKay, Beckman and Conover 1979) makes quantiles of few draws steady.
    """
    generator = np.random.default_rng([seed, *name.encode()])
    levels = (generator.permutation(count - 1) + 0.5) / max(1, count - 1)
    return np.array([0.0, *map(NormalDist().inv_cdf, levels)])
