"""A recording served by many GPUs at once, against a replay for each; and what recordings of two generations share."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.predict.simulated_step import SimulatedStep
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import MIB, Gpu
from sysbench.simulate.memory import simulate
from sysbench.simulate.platform import Platform
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.replay import Replay, ReplayCache, verdict_of
from sysbench.simulate.steps import record
from sysbench.spec.grid import ModelShape
from sysbench.spec.hardware import by_name
from sysbench.spec.model import ModelCell
from tests.processes import HANG_S

CELL = ModelCell(
    device="cuda", size="custom", model=ModelShape(d_model=256, d_ff=1024, layers=3, heads=4, vocab=5000), ctx=256,
    batch=4, precision="fp32", attention="naive", execution="eager", optimizer="foreach", seed=0, mode="train",
)  # fmt: skip


@cache
def recorded(capability: tuple[int, int] = (8, 0)) -> StepRecording:
    return record(CELL, "train", Platform.of(Gpu("", 1 << 50, capability)), origins=False)


SETTINGS = (
    AllocatorSettings(),
    AllocatorSettings(expandable_segments=True),
    AllocatorSettings(memory_fraction=0.5),
    AllocatorSettings(memory_fraction=0.5, garbage_collection_threshold=0.6),
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SETTINGS), st.integers(100, 1500))
def test_a_gpu_that_shares_a_replay_is_told_what_its_own_would_say(chosen: AllocatorSettings, free_mib: int) -> None:
    recording, gpu = recorded(), Gpu("a GPU", (600 + free_mib) * MIB)
    shared, verdict = replays(chosen).replay_on(gpu)
    own = Replay(recording, gpu, chosen)
    assert verdict == verdict_of(own, recording, gpu, chosen)
    assert shared.peaks == own.peaks
    assert shared.sizes == own.sizes
    assert shared.reserved_bytes == own.reserved_bytes
    assert shared.allocator.statistics == own.allocator.statistics


@cache
def replays(chosen: AllocatorSettings) -> ReplayCache:
    return ReplayCache(recorded(), chosen)


def test_generations_that_differ_in_workspaces_alone_share_a_recording() -> None:
    other = Gpu("", 1 << 50, (9, 0))
    assert recorded((9, 0)) != recorded()
    assert recorded().with_scratch(other.scratch) == recorded((9, 0))


@pytest.mark.parametrize("grad_accum", [1, 4])
@pytest.mark.parametrize("multiprocessors", [1, 34, 170])
def test_a_generations_recording_has_the_requests_of_each_gpu(multiprocessors: int, grad_accum: int) -> None:
    """A reduction is split over the blocks that there are multiprocessors for, or not at all."""
    gpu = Gpu("", 1 << 50, sms=multiprocessors)
    shared = recorded_for_all(grad_accum).with_scratch(gpu.scratch)
    assert shared == record(_accumulating(grad_accum), "train", Platform.of(gpu), origins=False)


def test_fewer_multiprocessors_split_fewer_reductions() -> None:
    few, many = (recorded_for_all(1).with_scratch(Gpu("", 1 << 50, sms=sms).scratch) for sms in (1, 170))
    assert len(few.events) < len(many.events)
    assert few.spans != many.spans


@cache
def recorded_for_all(grad_accum: int) -> StepRecording:
    return record(_accumulating(grad_accum), "train", Platform.of_generation(Gpu("", 1 << 50)), origins=False)


def _accumulating(grad_accum: int) -> ModelCell:
    wide = ModelShape(d_model=4096, d_ff=64, layers=1, heads=4, vocab=5000)
    return CELL.model_copy(update={"grad_accum": grad_accum, "batch": 64, "model": wide})


def test_memory_and_predictions_agree_on_gpus_that_share_a_trace() -> None:
    step = CELL.model_copy(update={"batch": 64})
    shared = [SimulatedStep(step, slug) for slug in ("a100-80gb", "v100-32gb", "h200")]
    assert len({id(each.recording) for each in shared}) == 1
    for each in shared:
        own = simulate(step, "train", Gpu.of(by_name(each.slug)))
        replay, verdict = each.memory
        assert verdict == own.verdict
        assert [peak.allocated_bytes for peak in replay.peaks_of_last_step()] == [
            phase.allocated_peak_bytes for phase in own.phases
        ]
    assert len({tuple(each.memory[0].sizes) for each in shared}) == len(shared)


WITHOUT_COMPILER = """
import sys, torch
from tests.simulate.test_replay import recorded
first = recorded()
assert "torch._dynamo" not in sys.modules and "_dynamo" not in vars(torch), "the compiler was imported"
assert "sympy" not in sys.modules, "sympy was imported"
import torch._dynamo
assert hasattr(torch._dynamo, "optimize")
assert not hasattr(torch.optim.Optimizer.add_param_group.__wrapped__, "__dynamo_disable")
assert recorded.__wrapped__() == first, "the first of a process differs from the next"
"""

WITHOUT_ALGEBRA = """
import sys, torch
from sysbench.simulate.compiler.without_compiler import without_compiler
NAMES = ("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious", "guarding_hint_or_throw",
         "has_guarding_hint", "is_nested_int", "statically_known_true", "sym_and", "sym_or", "sym_eq")
ASKED = [(True,), (False,), (True, False), (True, True), (False, False), (3, 3), (3, 4), ((2, 3), [2, 3]), ((2,), (3,))]
ASKED += [(3,)]

def answers(module):
    for name in NAMES:
        for asked in ASKED:
            try:
                yield name, asked, getattr(module, name)(*asked)
            except (AssertionError, TypeError):  # asked for what it does not know
                yield name, asked, None

with without_compiler():
    import sympy, torch.fx.experimental.symbolic_shapes as of_numbers
    assert not isinstance(3, sympy.Basic)
    said = list(answers(of_numbers))
    assert "__file__" not in vars(of_numbers), "it has been imported"
    conditional = of_numbers.guard_or_false
    environment = of_numbers.ShapeEnv
import torch.fx.experimental.symbolic_shapes as real
assert environment is real.ShapeEnv
class Node:
    def guard_bool(self, *place):
        return True
assert conditional(torch.SymBool(Node())) is True
assert isinstance(sympy.Symbol("u0"), sympy.Basic)
for (name, asked, answer), (_, _, expected) in zip(said, answers(real), strict=True):
    assert expected is None or answer == expected, (name, asked, answer, expected)
assert sum(expected is not None for *_, expected in answers(real)) > 30
"""


@pytest.mark.slow
def test_numbers_are_compared_without_sympy_as_torch_compares_them_with_it_and_symbols_by_torch() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_ALGEBRA], check=True, timeout=HANG_S)


@pytest.mark.slow
def test_the_first_simulation_of_a_process_needs_no_compiler_leaves_no_trace_and_is_like_the_next() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_COMPILER], check=True, capture_output=True, timeout=HANG_S)
