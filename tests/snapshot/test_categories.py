"""What is inferred of strangers' snapshots is held against simulated runs in which every byte is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sysbench.commands.memory import page, snapshot_tables
from sysbench.snapshot import CATEGORIES, snapshot
from sysbench.snapshot.categories import from_snapshot
from sysbench.snapshot.layout import Frame
from sysbench.spec.steps import Protocol
from sysbench.trace.stack_lines import frame_location, most_informative_frame
from tests.snapshot.strangers import KINDS, MODELS, Known, guess, known, strangers
from tests.snapshot.training_loops import LOOPS, Loop, recorded

RUNS: list[tuple[Protocol, dict[str, Any]]] = [
    ("inference", MODELS[0]),
    ("forward", MODELS[1]),
    ("forward-backward", MODELS[2]),
    ("train-first", MODELS[3]),
    ("train", MODELS[0]),
    ("train", MODELS[4]),
    ("inference", MODELS[4]),
]


@pytest.mark.parametrize(("protocol", "changes"), RUNS)
def test_categories_of_strangers_snapshots_are_the_true_ones(protocol: Protocol, changes: dict[str, Any]) -> None:
    """42 configurations: 7 runs, each recorded from its beginning and in its last step, in 3 ways."""
    run = known(protocol, **changes)
    for window, first in run.windows():
        for kind in KINDS:
            found = guess(run, kind, first)
            assert found.timeline.inferred
            assert found.right_at_peak() >= 0.95, (window, kind)
            assert found.right_overall() >= 0.95, (window, kind)


@pytest.mark.parametrize("loop", [each for each in LOOPS if each.in_suite], ids=lambda loop: loop.name)
def test_gradients_are_found_in_recordings_that_begin_in_the_middle_of_training(loop: Loop) -> None:
    run, starts = recorded(loop)
    for first in starts:
        for kind in KINDS:
            found = guess(run, kind, first)
            assert found.right_totals_at_peak() >= 0.998, (first, kind)
            if not loop.stays:
                assert found.right_at_peak() >= 0.998, (first, kind)
                assert found.right_overall() >= 0.98, (first, kind)


@pytest.fixture(scope="module")
def training() -> Known:
    return known("train", **MODELS[0])


def test_functions_of_forward_are_not_taken_for_autograds_engine(training: Known) -> None:
    (_, _), (_, last_step) = training.windows()
    timeline = guess(training, "all", last_step).timeline
    assert [phase.name for phase in timeline.phases] == ["forward", "backward", "optimizer"]
    assert [phase.end for phase in timeline.phases[:-1]] == [phase.first + 1 for phase in timeline.phases[1:]]
    at_peak = timeline.categories_at(timeline.peak.state)
    assert at_peak["activations"] > 0.5 * timeline.peak.allocated_bytes
    assert "unknown" not in at_peak


def test_stacks_show_the_users_line_and_not_the_way_to_the_allocator(training: Known) -> None:
    timeline = from_snapshot(snapshot.of(strangers(training, "all", 0)))
    (largest,) = (table for table in snapshot_tables.sheet(timeline, "s").tables if table.title.startswith("largest"))
    column = [each.key for each in largest.columns].index("line")
    lines = {str(row[column]) for row in largest.rows}
    assert any(line.startswith("me/transformer.py:") for line in lines)
    assert not any("unwind" in line or "c10::" in line for line in lines)
    assert "inferred" in largest.title
    assert "inferred" in page.render(timeline, "s")


def _blocks(*sizes: int) -> dict[str, Any]:
    """A snapshot of blocks that were there before its trace, which has one event."""
    starts = np.cumsum([0, *sizes]).tolist()
    blocks = [
        {"address": start, "size": size, "requested_size": size, "state": "active_allocated", "frames": []}
        for start, size in zip(starts, sizes, strict=False)
    ]
    segment = {"device": 0, "address": 0, "total_size": starts[-1], "stream": 0, "segment_type": "large"}
    event = {"action": "alloc", "addr": 1 << 40, "size": 512, "stream": 0, "frames": []}
    return {"segments": [{**segment, "blocks": blocks}], "device_traces": [[event]], "allocator_settings": {}}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((4096, 8192, 512), ["parameters"] * 3),
        ((4096, 8192, 4096, 8192, 4096, 8192), ["parameters"] * 2 + ["optimizer state"] * 4),
        ((4096,) * 12, ["parameters"] * 4 + ["optimizer state"] * 8),
        ((4096, 4096, 4096, 8192, 8192), ["parameters"] * 5),
        ((4096,) * 4, ["parameters", "gradients", "optimizer state", "optimizer state"]),
    ],
)
def test_what_is_always_there_is_parameters_and_twice_as_much_optimizer_state(
    sizes: tuple[int, ...], expected: list[str]
) -> None:
    timeline = from_snapshot(snapshot.of(_blocks(*sizes)))
    older = timeline.allocations.born == 0
    assert [CATEGORIES[code] for code in timeline.allocations.category[older]] == expected


PLUMBING = tuple(
    Frame("??", 0, name)
    for name in (
        "torch::unwind::unwind()",
        "torch::CapturedTraceback::gather(bool, bool, bool)",
        "torch::cuda::(anonymous namespace)::gather_with_cpp()",
        "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(void**, signed char, unsigned long)",
        "at::TensorBase at::detail::_empty_generic<long>(c10::ArrayRef<long>, c10::Allocator*)",
        "at::_ops::bmm::redispatch(c10::DispatchKeySet, at::Tensor const&, at::Tensor const&)",
    )
)
KERNEL = Frame("??", 0, "at::(anonymous namespace)::wrapper_CUDA_bmm(at::Tensor const&, at::Tensor const&)")
USERS = Frame("/me/a.py", 3, "f")
ENGINE = Frame("??", 0, "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)")


@pytest.mark.parametrize(
    ("stack", "shown"),
    [
        ((*PLUMBING, Frame("/x/site-packages/torch/nn/linear.py", 12, "forward"), USERS), "me/a.py:3 f"),
        ((*PLUMBING, Frame("/x/torch/optim/adamw.py", 7, "step"), USERS), "torch/optim/adamw.py:7 step"),
        ((Frame("/x/sysbench/.venv/site-packages/torch/optim/adam.py", 7, "step"),), "torch/optim/adam.py:7 step"),
        ((*PLUMBING, Frame("/x/site-packages/einops/e.py", 5, "g")), "einops/e.py:5 g"),
        ((Frame("/me/torch/train.py", 5, "g"), USERS), "torch/train.py:5 g"),
        ((Frame("/x/site-packages/gpt/g.py", 5, "h"), Frame("/y/sysbench/lab/step.py", 9, "_forward")), "gpt/g.py:5 h"),
        ((Frame("/y/sysbench/lab/step.py", 9, "_forward"),), "lab/step.py:9 _forward"),
        ((*PLUMBING, KERNEL, ENGINE), "MmBackward0"),
        ((*PLUMBING, KERNEL), "at::wrapper_CUDA_bmm"),
        ((*PLUMBING, Frame("??", 0, "c10d::ProcessGroupNCCL::allreduce(int)")), "c10d::ProcessGroupNCCL::allreduce"),
        (PLUMBING[:1], "torch::unwind::unwind"),
        ((), None),
    ],
)  # fmt: skip
def test_a_stack_is_shown_by_the_line_that_says_most(stack: tuple[Frame, ...], shown: str | None) -> None:
    assert frame_location(stack) == shown
    assert (most_informative_frame(stack) is None) == (shown is None)
