"""Work is led back to what caused it: asynchronous, from other threads, and in backward."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.trace import attribution
from sysbench.trace import recording as trace_recording
from sysbench.trace.attribution import attribute
from sysbench.trace.kernels import statistics as kernel_statistics
from sysbench.trace.range_tree import module_path
from sysbench.trace.recording import NONE, Trace
from sysbench.trace.summarise import summarise
from sysbench.trace.summary import PHASES, part_of
from tests.trace.reference_attribution import Reference
from tests.trace.synthetic_traces import AUTOGRAD, GEMM, MAIN, Builder, any_traces, recording, training


@dataclass(frozen=True)
class Attributed:
    """A piece of work and what caused it."""

    start_ns: int
    duration_ns: int
    correlation: int
    step: int
    phase: int
    module: str


def attributed(trace: Trace) -> list[Attributed]:
    """Every piece of work, slice by slice."""
    tree, parts = attribution.slice_recording(recording(trace))
    rows = []
    for part in parts:
        found = attribute(part, tree, trace.names)
        work = found.work
        modules = [tree.modules[each] for each in found.module.tolist()]
        columns = (work.start_ns, work.duration_ns, work.correlation, found.step, found.phase)
        for *row, module in zip(*(column.tolist() for column in columns), modules, strict=True):
            rows.append(Attributed(*row, module))
    return rows


@given(any_traces(), st.sampled_from([1, 3, 1000]))
@settings(max_examples=100, deadline=None)
def test_any_trace_is_attributed_as_the_slow_definition_does_it_in_slices_of_any_size(trace: Trace, rows: int) -> None:
    reference = Reference(trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attribution, "MIN_SLICE_ROWS", rows)
        patch.setattr(attribution, "BATCH_OPERATORS", rows)
        found = attributed(trace)
    kernels, operators = trace.work, reference.operators
    if len(kernels.name):
        expected = [
            Attributed(int(start), int(duration), int(correlation), **vars(reference.of_kernel(row)))
            for row, (start, duration, correlation) in enumerate(
                zip(kernels.start_ns, kernels.duration_ns, kernels.correlation, strict=True)
            )
        ]
        assert Counter(found) == Counter(expected)
    else:
        assert Counter((each.start_ns, each.step, each.phase, each.module) for each in found) == Counter(
            (here.start, *vars(reference.of(here.thread, here.start, here)).values()) for here in operators
        )


@given(any_traces(), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_a_summary_made_of_slices_is_that_of_the_whole(trace: Trace, rows: int) -> None:
    whole = summarise(recording(trace))
    with pytest.MonkeyPatch.context() as patch:
        for module in (attribution, kernel_statistics):
            patch.setattr(module, "MIN_SLICE_ROWS", rows)
        patch.setattr(attribution, "BATCH_OPERATORS", rows)
        patch.setattr(kernel_statistics, "_BATCH_CALLS", rows)
        patch.setattr(trace_recording, "_CHUNK_ROWS", 3)
        assert summarise(recording(trace)) == whole


def test_a_training_step_is_cut_between_its_operators() -> None:
    trace = training(steps=4, layers=3).trace()
    whole = summarise(recording(trace))
    with pytest.MonkeyPatch.context() as patch:
        for module in (attribution, kernel_statistics):
            patch.setattr(module, "MIN_SLICE_ROWS", 20)
        assert len(list(attribution.slice_recording(recording(trace))[1])) > 5
        assert summarise(recording(trace)) == whole


def caused_by(trace: Trace) -> list[tuple[str, str, int]]:
    """Phase, module and step of every piece of work."""
    return [(PHASES[each.phase] if each.phase != NONE else "", each.module, each.step) for each in attributed(trace)]


def test_a_kernel_that_runs_long_after_its_range_was_left_is_counted_in_it() -> None:
    built = Builder()
    built.range("forward", 0, 100)
    built.range("layers.0", 10, 20)
    built.launch(15, 1)
    built.kernel(GEMM, 5_000, 300, 1)
    assert caused_by(built.trace()) == [("forward", "layers.0", NONE)]


def test_backward_kernels_belong_to_the_module_whose_gradient_they_compute() -> None:
    trace = training(steps=2, layers=2).trace()
    found = caused_by(trace)
    forward = [module for phase, module, step in found if phase == "forward" and step == 0]
    backward = [module for phase, module, step in found if phase == "backward" and step == 0]
    assert forward.count("layers.1.attention.q") == 1
    assert backward.count("layers.1.attention.q") == 2
    assert backward.count("layers.0.attention.attend.softmax") == 1
    assert backward.count("") == 0
    # From the output back to the input.
    assert backward[0] == "lm_head"
    assert found[-1] == ("optimizer", "", 1)


def test_without_operators_backward_is_known_as_such_but_not_by_module() -> None:
    found = caused_by(training(steps=1, layers=1, operators=False).trace())
    assert {module for phase, module, _ in found if phase == "backward"} == {""}
    assert sum(phase == "backward" for phase, _, _ in found) == 2 * 10 + 2


def test_of_operators_with_one_number_the_last_made_the_node() -> None:
    built = Builder()
    built.range("outer", 0, 50)
    built.operator("aten::matmul", 0, 20, MAIN, 5)
    built.range("inner", 8, 10)
    built.operator("aten::mm", 10, 5, MAIN, 5)
    built.operator("MmBackward0", 100, 10, AUTOGRAD, 5, MAIN)
    built.launch(105, 1, AUTOGRAD)
    built.kernel(GEMM, 120, 10, 1)
    assert caused_by(built.trace()) == [("backward", "outer.inner", NONE)]


def test_numbers_of_different_threads_are_different_numbers() -> None:
    built = Builder()
    for thread, name in ((0, "first"), (1, "second")):
        built.range(name, 0, 50, thread)
        built.operator("aten::mm", 10, 5, thread, 5)
        built.operator("MmBackward0", 100 + 20 * thread, 10, 2, 5, thread)
        built.launch(105 + 20 * thread, thread, 2)
        built.kernel(GEMM, 200 + 20 * thread, 10, thread)
    assert [module for _, module, _ in caused_by(built.trace())] == ["first", "second"]


def test_a_forward_pass_computed_anew_within_backward_keeps_its_own_modules() -> None:
    built = Builder()
    built.range("layers.0", 0, 20)
    built.operator("CheckpointFunction", 5, 10, MAIN, 3)
    built.operator("autograd::engine::evaluate_function: CheckpointFunctionBackward", 100, 100, AUTOGRAD, 3, MAIN)
    built.range("layers.0.attention", 110, 20, AUTOGRAD)
    built.launch(115, 1, AUTOGRAD)
    built.launch(150, 2, AUTOGRAD)
    built.kernel(GEMM, 300, 10, 1)
    built.kernel(GEMM, 310, 10, 2)
    assert [(phase, module) for phase, module, _ in caused_by(built.trace())] == [
        ("backward", "layers.0.attention"),
        ("backward", "layers.0"),
    ]


def test_on_a_cpu_operators_are_the_work_by_their_own_time() -> None:
    built = Builder()
    built.range("forward", 0, 100)
    built.operator("aten::linear", 10, 50, MAIN, 1)
    built.operator("aten::mm", 15, 30, MAIN, 1)
    assert [each.duration_ns for each in attributed(built.trace())] == [20, 30]
    assert summarise(recording(built.trace())).source == "cpu"


def test_steps_and_phases_of_other_programs_are_known_by_their_usual_names() -> None:
    built = Builder()
    for number, start in enumerate((0, 1_000)):
        built.range(f"ProfilerStep#{number + 3}", start, 900)
        built.range("Optimizer.step#AdamW.step", start + 500, 100)
        built.launch(start + 510, number)
        built.kernel("k", start + 550, 10, number)
    assert caused_by(built.trace()) == [("optimizer", "", 0), ("optimizer", "", 1)]


def rounds(name: str) -> Trace:
    """Two ranges of this name, in one of the whole program, each with two rounds of accumulation and a product."""
    built = Builder()
    built.range("train", 0, 2_000)
    for step, start in enumerate((0, 1_000)):
        built.range(name.format(step + 7), start + 10, 800)
        for number in range(2):
            begin = start + 20 + 300 * number
            built.range(f"micro_batch_{number}", begin, 200)
            built.launch(begin + 10, 2 * step + number)
            built.kernel("k", begin + 20, 10, 2 * step + number)
    return built.trace()


@pytest.mark.parametrize("name", ["my_step_{}", "train-step {}", "inner/iteration:{}", "batch {}"])
def test_numbered_steps_of_other_programs_are_steps_and_what_is_in_them_is_not(name: str) -> None:
    expected = [("", f"micro_batch_{number}", step) for step in range(2) for number in range(2)]
    assert [(module, step) for _, module, step in caused_by(rounds(name))] == [each[1:] for each in expected]
    summary = summarise(recording(rounds(name)))
    assert (summary.steps, summary.steps_marked) == (2, True)


@pytest.mark.parametrize("name", ["round-{}", "optimizer_step_{}", "layers.{}"])
def test_other_names_are_modules_unless_a_pattern_says_that_they_are_steps(name: str) -> None:
    trace = rounds(name)
    trace = replace(trace, names=tuple(text.replace("micro_batch", "part") for text in trace.names))
    assert not summarise(recording(trace)).steps_marked
    told = replace(recording(trace), step_pattern=name.format(r"\d+"))
    summary = summarise(told)
    assert (summary.steps, summary.steps_marked) == (2, True)
    assert not [module for module in summary.modules if name.partition("{")[0] in module]


def test_modules_have_their_paths_within_the_range_of_ddp_which_is_forward_where_nothing_else_says_so() -> None:
    built = Builder()
    built.range("forward", 0, 300)
    for number, start in enumerate((0, 1_000)):
        built.range("DistributedDataParallel.forward", start + 10, 200)
        built.range("layers.0", start + 20, 100)
        built.launch(start + 30, number)
        built.kernel("k", start + 35, 10, number)
    assert [row[:2] for row in caused_by(built.trace())] == [("forward", "layers.0")] * 2


def test_without_any_ranges_what_autograd_records_is_forward_and_what_it_runs_backward() -> None:
    built = Builder()
    built.operator("aten::mm", 0, 20, MAIN, 1)
    built.operator("MmBackward0", 100, 20, AUTOGRAD, 1, MAIN)
    for number, (at, thread) in enumerate(((5, MAIN), (105, AUTOGRAD), (200, MAIN))):
        built.launch(at, number, thread)
        built.kernel(GEMM, 300 + 20 * number, 10, number)
    assert [phase for phase, _, _ in caused_by(built.trace())] == ["forward", "backward", ""]


def test_paths_of_modules_stay_paths_and_other_names_do_not_become_any() -> None:
    assert module_path("layers.3", "layers.3.attention") == "layers.3.attention"
    assert module_path("", "layers.3") == "layers.3"
    assert module_path("model", "attention scores") == "model.attention scores"
    assert module_path("", "train.py(12): step").count(".") == 0
    assert len(module_path("", "x" * 10_000)) <= 200
    deep = ""
    for _ in range(1_000):
        deep = module_path(deep, "again")
    assert deep.count(".") <= 32


def test_attention_is_taken_apart_by_our_names_and_by_those_that_others_use() -> None:
    known: dict[str, Any] = {
        "layers.3.attention.attend.softmax": "softmax",
        "layers.3.attention.attend.output": "output",
        "layers.3.attention.output": None,
        "scaled dot product attention.computing attention scores": "scores",
        "scaled dot product attention.computing softmax": "softmax",
        "scaled dot product attention.final matmul": "output",
        "layers.0": None,
    }
    assert {name: part_of(name) for name in known} == known
