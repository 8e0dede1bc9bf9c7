"""Rates of GPUs and hosts, with the spread and the source of each rate, and random draws of the rates."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, ValidationError

from sysbench import package
from sysbench.errors import UnavailableError, UsageError
from sysbench.predict.trace import Trace
from sysbench.spec import hardware
from sysbench.spec.hardware import Hardware, Rate
from sysbench.spec.knobs import FP8_SPEEDUP, has_fp8
from sysbench.spec.ranks import Interconnect

Draws = NDArray[np.float64]
"""(draws,) The first draw is the nominal value; the others are distributed around it."""

GpuRate = Literal[
    "matmul_fp32", "matmul_tf32", "matmul_half", "attention_forward", "attention_backward", "stream", "reduce",
    "indexed", "transpose", "kernel_s", "gap_s", "device_to_host", "host_to_device", "matmul_fp8", "unaligned",
    "new_memory",
]  # fmt: skip
"""matmul_*      FLOP/s of a large product, sustained: fp32 on ordinary cores; tf32, bf16, fp16 and fp8 on tensor cores
attention_*   FLOP/s of flash attention on long sequences, heads 128 wide, bf16; causal FLOPs are halved
stream        bytes/s, read and written, of a vectorized elementwise kernel far larger than the L2
reduce        bytes/s of a reduction over long rows
indexed       elements/s of a kernel that computes an offset for each element
transpose     elements/s of a copy between tensors with different fastest dimensions
kernel_s      seconds of an almost empty kernel
gap_s         seconds between two queued kernels
*_to_*        bytes/s of a copy between the GPU and pinned memory of its host
unaligned     rate of a product on tensor cores with rows that are no multiple of 16 bytes, relative to aligned rows
new_memory    bytes/s of the first write to memory that the system has just given to the process, on a CPU
"""

LINK_RATES: tuple[GpuRate, ...] = ("device_to_host", "host_to_device")
"""Rates of the link to the host. They depend on the machine, so no data sheet has them."""

GPU_RATES: tuple[GpuRate, ...] = tuple(
    name for name in get_args(GpuRate) if name not in (*LINK_RATES, "matmul_fp8", "unaligned", "new_memory")
)
"""Rates without which no time is predicted."""

HostRate = Literal[
    "operator", "view", "operator_backward", "view_backward", "scalar", "launch", "synchronize", "update"
]  # fmt: skip
"""operator, view, scalar   seconds to issue each, in forward, loss and optimizer; see `trace.HostWork`
*_backward               seconds to issue each in backward, where autograd calls operators from C++, without Python
launch                   additional seconds per kernel
synchronize              seconds from the end of the last kernel until the host continues
update                   bytes/s that the host's fused AdamW reads and writes: 7 numbers for each parameter
"""

HOST_RATES: tuple[HostRate, ...] = tuple(name for name in get_args(HostRate) if name != "update")
"""Rates that every host has. Hosts without the rate `update` have that of a typical host."""

_SHARING = frozenset(HOST_RATES) - {"synchronize"}
"""Rates that a faster host has all better."""

GIVEN_LINK_SPREAD = 0.1
"""Spread of a link's rate that the user gives: copies of different sizes, and the two directions, differ."""

UNALIGNED = Rate(
    value=0.64,
    spread=0.3,
    source="two steps of GPT-2 on an A100 with a vocabulary of 50,257 and of 50,304 (build-nanogpt, LLMs-from-scratch)",
    basis="borrowed",
)
"""Vocabularies of 50,257 have rows that are a multiple of 2 bytes. build-nanogpt's lecture: 96.4 and 93.6 ms for 16,384
tokens; LLMs-from-scratch, ch05/10: 112,046 and 127,345 tokens/s in steps of 8,192 tokens. The three products of the
head take 15.9 and 8.0 ms here, so those with unaligned rows take 1.18 and 2.10 times as long: 1.57, the geometric mean,
give or take 0.29 in the logarithm. Rows that are a multiple of 4 or 8 bytes are assumed to cost as much: no published
table has them. PyTorch's own measurements (torch/_inductor/autoheuristic/artifacts/_PadMMA100.py) show only that even
padded copies are usually faster."""

CALIBRATED_HOST_SPREAD = 0.05
"""Spread of all rates of a calibrated host, between processes and between models."""

UNEXPLAINED_SPREAD = 0.08
"""Standard deviation of the logarithm of step times at known rates, due to clocks, temperature, library versions.
With 0.05, the interval contained 80% of the published runs used to choose constants (`python -m
tests.bench.prediction`)."""


@dataclass(frozen=True)
class GpuRates:
    """Rates at which a GPU executes kernels."""

    hardware: Hardware
    rates: Mapping[GpuRate, Rate]
    interconnect: Interconnect | None = None
    """Network between nodes of several GPUs."""

    @classmethod
    def of(cls, hardware: Hardware) -> GpuRates:
        """Return a GPU's rates. Raises UnavailableError if any are unknown, e.g. if only the memory size is given."""
        unneeded = set() if "tf32" in hardware.peak_flops_per_s else {"matmul_tf32"}
        missing = [name for name in GPU_RATES if name not in hardware.rates and name not in unneeded]
        if missing or hardware.sms is None:
            wanted = ", ".join(missing or ["sms"])
            raise UnavailableError(f"times on {hardware.title} cannot be predicted: its rates are unknown ({wanted})")
        known: tuple[GpuRate, ...] = (*GPU_RATES, *LINK_RATES, "new_memory")
        rates = {name: hardware.rates[name] for name in known if name in hardware.rates}
        return cls(hardware, rates | _fp8_rate(hardware) | {"unaligned": UNALIGNED})

    def with_link(self, bytes_per_s: float) -> GpuRates:
        """Return a copy with this rate of the link to the host, in both directions."""
        rate = Rate(value=bytes_per_s, spread=GIVEN_LINK_SPREAD, source="--host-link", basis="given")
        return replace(self, rates={**self.rates, **dict.fromkeys(LINK_RATES, rate)})

    @property
    def sms(self) -> int:
        """Return the number of streaming multiprocessors."""
        return self.hardware.sms or 0

    def drawn(self, count: int = 1, seed: int = 0) -> Mapping[GpuRate, Draws]:
        """Return random draws of every rate, each of shape (count,); the first draw is the nominal value.

        Draws for different GPUs are independent, because the errors of their rates are.
        """
        slug = self.hardware.slug
        return {
            name: rate.value * np.exp(rate.spread * normal(count, seed, f"{slug} {_group(name)}"))
            for name, rate in self.rates.items()
        }


@dataclass(frozen=True, eq=False)
class HostRates:
    """Rates at which a host issues operators, from Python in forward and from autograd in backward.

    Draws also multiply all rates except `synchronize` and `update` by a common factor, whose logarithm has the standard
    deviation `spread`.
    """

    title: str
    rates: Mapping[HostRate, Rate]
    spread: float

    @classmethod
    def read(cls, path: Path) -> HostRates:
        """Read the rates of a host from a TOML file with `title`, `spread` and one `[rates.NAME]` per rate."""
        try:
            return _HostFile(**tomllib.loads(path.read_text(encoding="utf-8"))).host
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise UsageError(f"{path} is not a valid host file: {error}") from error

    def drawn(self, count: int = 1, seed: int = 0) -> Mapping[HostRate, Draws]:
        """Return random draws of every rate, each of shape (count,); the first draw is the nominal value."""
        shared = self.spread * normal(count, seed, f"{self.title} host")
        return {
            name: rate.value
            * np.exp(shared * (name in _SHARING) + rate.spread * normal(count, seed, f"{self.title} {name}"))
            for name, rate in self.rates.items()
        }


FP8_SHARE = 0.9
"""Share of the speedup of data sheets that products in fp8 reach: an assumption."""

FP8_SPREAD = 0.15


def _fp8_rate(hardware: Hardware) -> dict[GpuRate, Rate]:
    major, _, minor = (hardware.compute_capability or "0.0").partition(".")
    if "matmul_fp8" in hardware.rates:
        return {"matmul_fp8": hardware.rates["matmul_fp8"]}
    if not has_fp8((int(major), int(minor))) or "matmul_half" not in hardware.rates:
        return {}
    half = hardware.rates["matmul_half"]
    spread = math.hypot(half.spread, FP8_SPREAD)
    source = "twice the rate of 16-bit products, as data sheets promise, less 10%"
    return {
        "matmul_fp8": Rate(value=FP8_SPEEDUP * FP8_SHARE * half.value, spread=spread, source=source, basis="assumed")
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
        rates = self.rates if "update" in self.rates else {**self.rates, "update": typical_host().rates["update"]}
        return HostRates(self.title, rates, self.spread)


@cache
def typical_host() -> HostRates:
    """Return the rates of a typical host, as a fallback for hosts that were not calibrated."""
    return HostRates.read(package.profiles("hosts") / "typical.toml")


def host_of(hardware: Hardware) -> HostRates:
    """Return the rates of the host that was calibrated together with the GPU, or of a typical host if none was."""
    update = hardware.rates.get("update") or typical_host().rates["update"]
    rates = {name: hardware.rates[name] for name in HOST_RATES if name in hardware.rates}
    if len(rates) < len(HOST_RATES):
        return replace(typical_host(), rates={**typical_host().rates, "update": update})
    return HostRates(f"the host of {hardware.title}", {**rates, "update": update}, CALIBRATED_HOST_SPREAD)


def gpu(slug: str) -> GpuRates:
    """Return the rates of a GPU. Raises UsageError for an unknown name, UnavailableError for a GPU without rates."""
    return GpuRates.of(hardware.by_name(slug))


COMPILED_SPREAD = 0.05
"""Unexplained spread of compiled steps in addition: the versions of the compiler differ, and what it tries out. The
errors of 12 published compiled steps differ by 4.2% (root mean square) from those of the same eager steps (NeuSight;
`python -m tests.bench.prediction`)."""


WAITING_SPREAD = 0.05
"""Spread of the time that ranks wait for each other, for each doubling of the nodes. With it, the intervals contain
89% of 209 published steps on 8 to 512 GPUs, without it 80% (tests/bench/published/llm_foundry.csv)."""


def unexplained(trace: Trace, gpu: Hardware, kernel_s: Draws, seed: int = 0) -> Draws:
    """Return random factors (draws,) for what no rate explains in the times of a step on `gpu`; the first is 1.

    Each kernel has an error of its own, which all steps on a GPU share, and a step's error is the sum of its kernels'
    errors by their time (`kernel_s`, in each draw): steps with and without recomputation share nearly all of it, steps
    of other shapes or precisions little, as published pairs do (tests/bench/prediction.py). Compiled steps have an
    error in addition, independently for each step. Ranks on several nodes also wait, which makes steps only
    slower.
    """
    count = kernel_s.shape[1]
    step = f"{gpu.slug} {trace.digest}"
    order = np.argsort(normal(count, seed, f"{gpu.slug} unexplained")[1:]) + 1
    errors = UNEXPLAINED_SPREAD * _error_of_kernels(trace, kernel_s[:, 0], seed, count)[[0, *order]]
    if trace.compiled:
        errors += COMPILED_SPREAD * normal(count, seed, f"{step} compiled")
    if trace.nodes > 1:
        waiting_s = WAITING_SPREAD * math.log2(trace.nodes)
        errors += waiting_s * np.abs(normal(count, seed, f"{step} waiting"))
    return np.exp(errors)


def _error_of_kernels(trace: Trace, kernel_s: Draws, seed: int, count: int) -> Draws:
    """Return standard normal draws for a step: the sum of a draw for each of its kernels, weighted by total time."""
    launched = sum(trace.counts.values(), np.zeros(len(trace.kernels)))
    summed = np.zeros(count)
    for kernel, weight_s in zip(trace.kernels, launched * kernel_s, strict=True):
        summed += weight_s * normal(count, seed, repr(tuple(kernel)))
    return summed / max(float(summed.std()), 1e-30)


_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(("matmul_tf32", "matmul_half", "matmul_fp32", "matmul_fp8"), "matmul"),
    "attention_forward": "attention", "attention_backward": "attention",
    "reduce": "stream", "indexed": "indexed", "transpose": "indexed",
    "device_to_host": "link", "host_to_device": "link",
}  # fmt: skip
"""Group of each rate. Rates of a group share random factors: a power-limited GPU is slower in every precision."""


def _group(name: str) -> str:
    return _GROUPS.get(name, name)


@lru_cache(maxsize=16384)  # each kernel has draws of its own, and a run may predict thousands of steps
def normal(count: int, seed: int, name: str) -> Draws:
    """Return stratified standard normal draws in random order, of shape (count,); the first is 0.

    Stratification (Latin hypercube sampling, McKay, Beckman and Conover 1979) stabilises quantiles for a small `count`.
    """
    generator = np.random.default_rng([seed, *name.encode()])
    levels = (generator.permutation(count - 1) + 0.5) / max(1, count - 1)
    return np.array([0.0, *map(NormalDist().inv_cdf, levels)])
