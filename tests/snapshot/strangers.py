"""Snapshots as strangers write them, of steps whose every byte is known: simulated, with sysbench's marks taken out.

What torch records depends on how it is asked (`torch.cuda.memory._record_memory_history`): Python lines alone or C++
frames as well, lines of releases or only of allocations, from the beginning or in the middle of a run. Autograd works
on a thread of its own, where there is no line of Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from sysbench.frames import owner
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate
from sysbench.snapshot import CATEGORIES, snapshot
from sysbench.snapshot.categories import from_snapshot
from sysbench.snapshot.timeline import Timeline
from sysbench.spec import hardware
from sysbench.spec.grid import ModelShape
from sysbench.spec.steps import PROCEDURES, Protocol
from tests.simulate.simulated_cells import cell

Kind = Literal["all", "python", "alloc"]
"""all     Python and C++, of allocations and releases: what torch records if it is not told otherwise
python  lines of Python, of both
alloc   lines of Python, of allocations alone
"""
KINDS: Final[tuple[Kind, ...]] = ("all", "python", "alloc")

SHAPE: Final = ModelShape(d_model=256, d_ff=640, layers=3, heads=8, vocab=1000)
MODELS: Final[tuple[dict[str, Any], ...]] = (
    {"attention": "naive", "precision": "fp32"},
    {"attention": "sdpa", "precision": "bf16"},
    {"attention": "naive", "precision": "fp16", "ctx": 100},
    {"attention": "flash", "precision": "bf16", "batch": 6},
    {"attention": "sdpa", "precision": "fp32", "optimizer": "fused", "gpu": "h100"},
)
PROTOCOLS: Final[tuple[Protocol, ...]] = ("inference", "forward", "forward-backward", "train-first", "train")

Frames = list[dict[str, Any]]


def _frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


def _native(*names: str) -> Frames:
    return [_frame("??", 0, name) for name in names]


_ALLOCATOR: Final = _native(
    "torch::unwind::unwind()",
    "torch::CapturedTraceback::gather(bool, bool, bool)",
    "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(signed char, unsigned long, CUstream_st*)",
    "at::detail::empty_cuda(c10::ArrayRef<long>, c10::ScalarType, std::optional<c10::Device>)",
    "at::_ops::empty_strided::redispatch(c10::DispatchKeySet, c10::ArrayRef<c10::SymInt>)",
)
_FORWARD: Final = _native(
    "torch::autograd::VariableType::(anonymous namespace)::mm(c10::DispatchKeySet, at::Tensor const&)",
    "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)",
    "torch::autograd::THPVariable_mm(_object*, _object*, _object*)",
    "cfunction_call",
    "_PyEval_EvalFrameDefault",
)
_ENGINE: Final = _native(
    "torch::autograd::Node::operator()(std::vector<at::Tensor>&&)",
    "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)",
    "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
    "torch::autograd::python::PythonEngine::thread_init(int, std::shared_ptr<torch::autograd::ReadyQueue> const&)",
    "execute_native_thread_routine",
    "start_thread",
)
_CALL: Final = [
    _frame("/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", 1784, "_call_impl"),
    _frame("/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", 1773, "_wrapped_call_impl"),
]
_MAIN: Final = [_frame("/home/me/train.py", 93, "train"), _frame("/home/me/train.py", 120, "<module>")]


@dataclass(frozen=True)
class Known:
    """A simulated run and what its allocations are for."""

    label: str
    raw: dict[str, Any]
    truth: Timeline
    protocol: Protocol

    def windows(self) -> Iterator[tuple[str, int]]:
        """From which entry of the trace on a stranger may have recorded: all of it, or the last step alone."""
        yield "whole run", 0
        first = PROCEDURES[self.protocol].phases[0]
        marks = self.raw["external_annotations"]
        yield "last step", max(mark["time_us"] for mark in marks if (mark["name"], mark["stage"]) == (first, "START"))


def known(protocol: Protocol, *, gpu: str = "a100-80gb", **changes: Any) -> Known:
    """A run of a small model on a simulated GPU."""
    of = cell(model=SHAPE, **{"ctx": 128, "batch": 8, **changes}, mode=PROCEDURES[protocol].mode)
    raw = simulate(of, protocol, Gpu.of(hardware.by_name(gpu))).snapshot()
    label = f"{protocol}, {', '.join(str(value) for value in changes.values())}, {gpu}"
    return Known(label, raw, from_snapshot(snapshot.of(raw)), protocol)


def strangers(of: Known, kind: Kind, first: int) -> dict[str, Any]:
    """The same run as torch would have written it, recorded from an entry of the trace on."""
    entries = of.raw["device_traces"][0]
    phases = _phases(of.raw, len(entries))
    frames: dict[str, Frames] = {}
    trace = []
    for entry, phase in zip(entries, phases, strict=True):
        if entry["action"] == "alloc":
            frames[phase] = _seen(entry["frames"], phase, kind)
        is_shown = kind != "alloc" or not entry["action"].startswith("free")
        shown = frames.get(phase, _seen([], phase, kind)) if is_shown else []
        kept = {name: value for name, value in entry.items() if name != "category"}
        trace.append({**kept, "user_metadata": "", "frames": shown})
    live = {entry["addr"]: entry["frames"] for entry in trace[first:] if entry["action"] == "alloc"}
    segments = []
    for segment in of.raw["segments"]:
        blocks = [
            {
                **{name: value for name, value in block.items() if name not in ("category", "user_metadata")},
                "frames": live.get(block["address"], []) if block["state"] != "inactive" else [],
            }
            for block in segment["blocks"]
        ]
        segments.append({**segment, "blocks": blocks, "frames": []})
    return {
        "segments": segments,
        "device_traces": [trace[first:]],
        "allocator_settings": of.raw["allocator_settings"],
        "external_annotations": [],
    }


def _phases(raw: dict[str, Any], entries: int) -> list[str]:
    """The phase that each entry of the trace is part of."""
    phases, begun = [""] * entries, {}
    for mark in raw["external_annotations"]:
        if mark["stage"] == "START":
            begun[mark["name"]] = mark["time_us"]
        else:
            first = begun[mark["name"]]
            phases[first : mark["time_us"]] = [mark["name"]] * (mark["time_us"] - first)
    return phases


def _seen(frames: Frames, phase: str, kind: Kind) -> Frames:
    """A simulation's lines, which leave out torch's own, with those that torch would have seen."""
    native = _ALLOCATOR if kind == "all" else []
    if phase == "backward":
        node = frames[0]["name"] if frames else "AccumulateGrad"
        applied = _native(f"torch::autograd::generated::{node}::apply(std::vector<at::Tensor>&&)")
        return [*native, *applied, *_ENGINE] if kind == "all" else []
    lines: Frames = []
    for frame in frames:
        name = frame["name"].rpartition(".")[2]
        filename = frame["filename"]
        if owner(filename).package == "sysbench":
            filename = f"/home/me/{filename.rpartition('/')[2]}"
        lines.append({**frame, "filename": filename, "name": name})
        if name == "forward":
            lines += _CALL
    return [*native, *(_FORWARD if kind == "all" else []), *lines, *_MAIN]


@dataclass(frozen=True)
class Guess:
    """What was inferred of a stranger's snapshot, beside what is true."""

    timeline: Timeline
    true: npt.NDArray[np.uint8]
    """The category of each of the timeline's allocations."""

    def right_at_peak(self) -> float:
        """The share of the bytes that are live at the peak whose category is right."""
        live = self.timeline.live_at(self.timeline.peak.state)
        return self._share(live)

    def right_overall(self) -> float:
        """The share of the bytes of all allocations whose category is right."""
        return self._share(np.arange(len(self.true)))

    def right_totals_at_peak(self) -> float:
        """The share of the bytes at the peak that count in the right category, whichever block they are.

        Blocks of one size that were there before the recording are interchangeable: nothing else is known of them.
        """
        live = self.timeline.live_at(self.timeline.peak.state)
        size = self.timeline.allocations.size_bytes[live]
        count = len(CATEGORIES)
        found = np.bincount(self.timeline.allocations.category[live], size, count)
        true = np.bincount(self.true[live], size, count)
        return float(np.minimum(found, true).sum() / size.sum())

    def _share(self, rows: npt.NDArray[np.int64]) -> float:
        allocations = self.timeline.allocations
        size = allocations.size_bytes[rows]
        return float(size[allocations.category[rows] == self.true[rows]].sum() / size.sum())


def guess(of: Known, kind: Kind, first: int) -> Guess:
    """Infer the categories of a stranger's snapshot, and find the true ones of the same allocations."""
    timeline = from_snapshot(snapshot.of(strangers(of, kind, first)))
    earlier = of.truth.states - timeline.states
    rows = of.truth.allocations
    places = {
        (int(address), max(int(born) - earlier, 0), int(died) - earlier): int(category)
        for address, born, died, category in zip(rows.address, rows.born, rows.died, rows.category, strict=True)
        if died > earlier
    }
    found = timeline.allocations
    keys = zip(found.address.tolist(), found.born.tolist(), found.died.tolist(), strict=True)
    return Guess(timeline, np.array([places[key] for key in keys], np.uint8))
