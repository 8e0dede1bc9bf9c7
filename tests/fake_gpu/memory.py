"""Simulated against measured memory on the fake GPU, byte for byte, phase by phase and category by category."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.cli.running import answered
from tests.fake_gpu.fake import FakeGpu

ROOT = Path(__file__).parents[2]
IDENTITY = (
    *("size", "own", "ctx", "batch", "precision", "mode", "attention", "optimizer", "grad_accum", "checkpoint"),
    *("cross_entropy", "allocator", "optimizer_in_backward", "offload", "lora", "lora_targets", "quantize"),
)
_PEAKS = ("allocated_peak_bytes", "reserved_peak_bytes")


@dataclass(frozen=True)
class Group:
    """Configurations that are measured and simulated by one command each.

    words      axes
    settings   what PyTorch reads from the environment
    gpu        what is simulated, and of which compute capability the fake GPU is
    """

    words: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    gpu: tuple[str, str] = ("h100", "9.0")

    @property
    def name(self) -> str:
        """The group, for people and as a key."""
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        words = [word for word in self.words if not word.startswith("--app-dir")]
        return " ".join([*words, *settings, *([self.gpu[0]] if self.gpu[0] != "h100" else [])])

    @property
    def is_compiled(self) -> bool:
        """Whether torch.compile compiles its steps."""
        return "--execution=compiled" in self.words


def own(name: str, *words: str) -> Group:
    """A training step of a model of `strangers`, with a batch of 2 and a context of 64 unless `words` say otherwise."""
    model = (f"--model=tests.fake_gpu.strangers:{name}", f"--app-dir={ROOT}", "--mode=train")
    named = {word.partition("=")[0] for word in words}
    return Group((*model, *(word for word in ("--batch=2", "--ctx=64") if word.partition("=")[0] not in named), *words))


def architecture(name: str, *words: str) -> Group:
    """A training step of a small model of transformers."""
    return Group((f"--model=tests.fake_gpu.architectures:{name}", f"--app-dir={ROOT}", "--mode=train", *words))


@dataclass(frozen=True)
class Pair:
    """One configuration, measured and simulated, as cells of records."""

    name: str
    measured: dict[str, Any]
    simulated: dict[str, Any]

    @property
    def is_comparable(self) -> bool:
        """Whether it ran on both sides."""
        return bool(self.measured["outcome"] == "ok" and self.simulated["outcome"] == "ok")

    @property
    def outcomes(self) -> str:
        """What became of it."""
        return " · ".join(f"{cell['outcome']} ({cell['detail']})" for cell in (self.measured, self.simulated))

    def differences(self, *, categories: bool = True) -> dict[str, int]:
        """By how many bytes the simulation is too high, by what: `backward allocated_peak_bytes`; nothing if 0."""
        found: dict[str, int] = {}
        for phase, real in self.measured["peaks_by_phase"].items():
            made = self.simulated["peaks_by_phase"][phase]
            for peak in _PEAKS:
                found[f"{phase} {peak}"] = made[peak] - real[peak]
            if categories:
                for category in {*real["by_category"], *made["by_category"]}:
                    off = made["by_category"].get(category, 0) - real["by_category"].get(category, 0)
                    found[f"{phase} {category}"] = off
        return {what: off for what, off in found.items() if off}


def pairs(gpu: FakeGpu, group: Group) -> list[Pair]:
    """Measure and simulate the group. Raises RuntimeError where a command gave no record.

    Within this process: its workers are forked where `tests.worker.forked` is in place. Compiled steps are measured
    twice, and the second time counts: where the first compiles, it tries kernels out, which takes memory.
    """
    slug, capability = group.gpu
    nvml = "expandable" in f"{group}"  # such segments ask it
    there: dict[str, Any] = {"capability": capability, "nvml": nvml, **group.settings}
    measure = partial(gpu.answered, "memory", *group.words, "--device=cuda", "--force", **there)
    with tempfile.TemporaryDirectory() as cache:
        if group.is_compiled:
            measure = partial(measure, TORCHINDUCTOR_CACHE_DIR=cache)
            _cells(group, measure)
        measured = _cells(group, measure)
    simulated = _cells(group, partial(answered, "memory", *group.words, f"--simulate={slug}", **group.settings))
    return [Pair(_name(real, group), real, made) for real, made in zip(measured, simulated, strict=True)]


def _cells(group: Group, run: Callable[..., Any]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        ran = run("--json=-", "--no-live", cwd=Path(directory))
    try:
        cells: list[dict[str, Any]] = json.loads(ran.out)["cells"]
    except json.JSONDecodeError:
        raise RuntimeError(f"{group.name}: exit code {ran.code}, {ran.err[-800:]}") from None
    return cells


def _name(cell: Mapping[str, Any], group: Group) -> str:
    axes = [str(cell["axes"][axis]) for axis in IDENTITY if cell["axes"].get(axis) is not None]
    settings = [f"{name}={value}" for name, value in group.settings.items()]
    return " ".join([*axes, *settings, *([group.gpu[0]] if group.gpu[0] != "h100" else [])])


def split(group: Group, axis: str) -> Iterator[Group]:
    """The group, once for each value of an axis."""
    for word in group.words:
        name, _, values = word.partition("=")
        if name == axis:
            others = [other for other in group.words if other is not word]
            yield from (Group((*others, f"{axis}={value}"), group.settings, group.gpu) for value in values.split(","))
            return
    yield group


def table(found: Sequence[Pair], *, categories: bool = True) -> Iterator[str]:
    """Each configuration that differs or did not run, then how many agree in what."""
    compared = [pair for pair in found if pair.is_comparable]
    for pair in found:
        if not pair.is_comparable:
            if pair.measured["outcome"] != pair.simulated["outcome"]:
                yield f"{pair.name}: {pair.outcomes}"
        elif off := pair.differences(categories=categories):
            yield f"{pair.name}: " + ", ".join(f"{what} {bytes_:+,}" for what, bytes_ in off.items())
    for what in ("allocated_peak_bytes", "reserved_peak_bytes", ""):
        same = sum(not any(what in each for each in pair.differences()) for pair in compared)
        yield f"{what or 'everything, by phase and category'}: {same} of {len(compared)} agree to the byte"
