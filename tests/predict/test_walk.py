"""The walk in closed form, against cases worked out by hand and a loop that follows each kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.predict.trace import HOST_WORK, Kernel, PhaseTrace, Stage, TraceWriter
from sysbench.predict.walk import LAUNCH_LATENCY_S, Issued, timeline, walk

HOST = {
    name: np.array([value])
    for name, value in {
        "operator": 10e-6, "view": 2e-6, "operator_backward": 5e-6, "view_backward": 1e-6, "scalar": 3e-6,
        "launch": 4e-6, "synchronize": 20e-6,
    }.items()
}  # fmt: skip
GAP = np.array([1e-6])


def phase(*launches: int, name: str = "forward") -> PhaseTrace:
    """Operators that launch so many kernels each, all of them kernel 0."""
    writer = TraceWriter()
    for count in launches:
        writer.add_operator(Stage(name), "operator", [Kernel("map", "add", "fp32", 4)] * count)
    return writer.trace().phases[0]


def test_a_device_that_is_faster_than_the_host_waits_for_it() -> None:
    walked = walk(Issued((phase(1, 1, 1),), HOST), np.array([[1e-6]]), GAP)
    assert walked.host_s[0] == pytest.approx(3 * 14e-6)
    assert walked.total_s[0] == pytest.approx(3 * 14e-6 + LAUNCH_LATENCY_S + 1e-6 + 20e-6)


def test_a_device_that_is_slower_than_the_host_runs_without_a_pause() -> None:
    walked = walk(Issued((phase(1, 1, 1),), HOST), np.array([[1e-3]]), GAP)
    assert walked.total_s[0] == pytest.approx(14e-6 + LAUNCH_LATENCY_S + 3e-3 + 2e-6 + 20e-6)


def test_backward_is_issued_at_its_own_rate() -> None:
    walked = walk(Issued((phase(1, 1, name="backward"),), HOST), np.array([[1e-6]]), GAP)
    assert walked.host_s[0] == pytest.approx(2 * 9e-6)


def test_a_phase_without_kernels_takes_what_the_host_takes() -> None:
    writer = TraceWriter()
    writer.add_operator(Stage("zero_grad"), "view")
    walked = walk(Issued((writer.trace().phases[0],), HOST), np.empty((0, 1)), GAP)
    assert walked.total_s[0] == pytest.approx(2e-6 + 20e-6)
    assert walked.device_s[0] == 0


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(HOST_WORK), st.lists(st.integers(0, 3), max_size=3)), min_size=1, max_size=30)
)
def test_the_closed_form_equals_a_loop_over_kernels(operators: list[tuple[str, list[int]]]) -> None:
    unique_s = np.array([[1e-6], [9e-6], [40e-6], [0.2e-6]])
    writer = TraceWriter()
    kernels = [Kernel("map", str(i), "fp32", 4) for i in range(4)]
    for kernel in kernels:  # so that all are there, in order
        writer.kernels[kernel] = len(writer.kernels)
    for work, launched in operators:
        writer.add_operator(Stage("forward"), work, [kernels[i] for i in launched])  # type: ignore[arg-type]
    found = timeline(Issued((writer.trace().phases[0],), HOST), unique_s, GAP)
    clock, free, ends = 0.0, -1.0, []
    for work, launched in operators:
        clock += HOST[work][0] + HOST["launch"][0] * len(launched)
        for i in launched:
            start = max(clock + LAUNCH_LATENCY_S, free + GAP[0])
            free = start + unique_s[i, 0]
            ends.append(free)
    np.testing.assert_allclose(found.ended_s, ends, rtol=1e-9, atol=1e-15)
    whole = walk(Issued((writer.trace().phases[0],), HOST), unique_s, GAP)
    assert whole.total_s[0] == pytest.approx(max([clock, *ends]) + HOST["synchronize"][0])
