"""What the worker records of a profiled step, by the trace that torch.profiler leaves."""

from __future__ import annotations

import gzip
import json
import resource
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import nvtx
import pytest
import torch

from sysbench.commands.profile import measure
from sysbench.commands.profile.measure import run
from sysbench.commands.profile.spec import ProfileCell, ProfileSpec
from sysbench.errors import OutputError, SysbenchError
from sysbench.lab.ranges import named
from sysbench.lab.recorder import recorder_for
from sysbench.lab.step import TrainingStep
from sysbench.log.events import DeviceInfo, Event, StageEntered, StepMeasured

CPU = DeviceInfo(name="a processor", type="cpu")
RANGES = {"nsys": "annotate", "torch": "record_function"}
"""What makes a range, by profiler."""
LAYERS = 2
SHAPE: dict[str, Any] = {"d_model": 32, "d_ff": 48, "layers": LAYERS, "heads": 2, "vocab": 40, "batch": 2, "ctx": 16}


def cell(**fields: Any) -> ProfileCell:
    spec: dict[str, Any] = {**SHAPE, "device": "cpu", "warmup": 1, **fields}
    (only,) = ProfileSpec(**spec).cells()
    return only


def profiled(tmp_path: Path, name: str = "trace.json", **fields: Any) -> tuple[list[Event], list[dict[str, Any]]]:
    """What was said, and every stretch of time in the trace."""
    path = tmp_path / name
    said = list(run(cell(**fields), CPU, path))
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return said, [event for event in json.loads(content)["traceEvents"] if event.get("ph") == "X"]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    events = run(cell(mode="inference"), CPU, tmp_path / name)
    while not isinstance(event := next(events), StageEntered) or event.stage != "writing":
        pass
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(
            OutputError, match=f"^cannot write .*{name}: torch.profiler could not finish the recording$"
        ):
            next(events)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def ranges(events: list[dict[str, Any]]) -> Counter[str]:
    return Counter(event["name"] for event in events if event.get("cat") == "user_annotation")


def count(events: list[dict[str, Any]], operator: str) -> int:
    return sum(event["name"] == operator for event in events if event.get("cat") == "cpu_op")


@pytest.mark.parametrize(("mode", "passes"), [("inference", 1), ("forward", 1), ("forward-backward", 3), ("train", 3)])
def test_a_naive_forward_pass_has_nine_batched_products_a_layer_and_one_and_backward_twice_that(
    tmp_path: Path, mode: str, passes: int
) -> None:
    _, events = profiled(tmp_path, mode=mode)
    assert count(events, "aten::bmm") == passes * (9 * LAYERS + 1)


def test_every_step_has_its_phases_once_in_order_and_modules_lie_in_forward(tmp_path: Path) -> None:
    _, events = profiled(tmp_path, active=2)
    found = ranges(events)
    assert found["step"] == 2
    phases = ("zero_grad", "forward", "loss", "backward", "optimizer")
    assert all(found[phase] == 2 for phase in phases)
    assert found["layers.1.attention.rotary"] == 4
    assert found["layers.1.attention.attend.softmax"] == 2
    starts = {event["name"]: event["ts"] for event in events if event["name"] in phases}
    assert sorted(starts, key=starts.__getitem__) == list(phases)
    forward = [(event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == "forward"]
    for event in events:
        if event["name"].startswith("layers."):
            assert any(start <= event["ts"] and event["ts"] + event["dur"] <= end for start, end in forward)


def test_backward_operators_have_the_numbers_of_their_forward_operators(tmp_path: Path) -> None:
    _, events = profiled(tmp_path, mode="forward-backward")
    forward = {event["args"].get("Sequence number") for event in events if event["name"] == "aten::bmm"}
    backward = [event for event in events if event["name"] == "autograd::engine::evaluate_function: BmmBackward0"]
    assert len(backward) == 9 * LAYERS + 1
    assert {event["args"]["Sequence number"] for event in backward} <= forward


def test_warm_up_is_outside_the_trace_and_shapes_are_there_on_demand(tmp_path: Path) -> None:
    said, events = profiled(tmp_path, "trace.json.gz", warmup=3, shapes=True, mode="forward")
    steps = [event for event in said if isinstance(event, StepMeasured)]
    assert [step.warmup for step in steps] == [True, True, True, False]
    assert ranges(events)["step"] == 1
    assert [SHAPE["batch"], SHAPE["ctx"]] in next(
        event["args"]["Input Dims"] for event in events if event["name"] == "aten::embedding"
    )
    assert [event.stage for event in said if isinstance(event, StageEntered)] == [
        "building",
        "warming-up",
        "profiling",
        "writing",
    ]


def test_what_pays_for_the_start_of_the_profiler_is_not_recorded_and_a_long_name_is_written(tmp_path: Path) -> None:
    recorder, numbers = recorder_for("torch", torch.device("cpu"), shapes=False), torch.ones(3)
    ran = []
    with recorder.recording(lambda: ran.append(numbers.sin())):
        numbers.cos()
    path = tmp_path / f"{'x' * 250}.json"
    recorder.write(path)
    events = json.loads(path.read_text())["traceEvents"]
    assert len(ran) == 1
    assert (count(events, "aten::sin"), count(events, "aten::cos")) == (0, 1)


@pytest.mark.parametrize("profiler", ["torch", "nsys"])
def test_one_more_step_runs_first_and_is_outside_all_steps(
    profiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It pays for the start of the profiler: Nsight Systems' begins with its range, that of torch.profiler before."""
    names: list[str] = []

    def named_range(name: str) -> AbstractContextManager[None]:
        names.append(name)
        return nullcontext()

    monkeypatch.setattr(nvtx if profiler == "nsys" else torch.profiler, RANGES[profiler], named_range)
    time_step = measure._time_step

    def timed(step: TrainingStep, device: torch.device) -> float:
        names.append("runs")
        return time_step(step, device)

    monkeypatch.setattr(measure, "_time_step", timed)
    one = cell(mode="inference", warmup=0, active=2).model_copy(update={"profiler": profiler})
    list(run(one, CPU, tmp_path / "trace.json"))
    begins = ["sysbench"] if profiler == "nsys" else []
    assert [name for name in names if name in ("sysbench", "runs", "step")] == [*begins, "runs", *["runs", "step"] * 2]


def test_nothing_is_named_once_the_profile_is_over(tmp_path: Path) -> None:
    before = named("step")
    profiled(tmp_path, mode="forward")
    assert named("step") is before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.usefixtures("einops_in_graphs")
def test_a_compiled_model_has_its_phases_and_is_not_broken_by_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Names would break the graph while it is traced: no code need be generated for it.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    said, events = profiled(tmp_path, mode="forward", execution="compiled")
    (compiled,) = [event for event in said if event.event == "compiled"]
    assert (compiled.graph_breaks, compiled.fell_back) == (0, False)
    assert {"step", "forward"} <= set(ranges(events))
    assert not [name for name in ranges(events) if name.startswith("layers.")]


def test_a_profile_without_a_place_for_its_trace_is_refused() -> None:
    with pytest.raises(SysbenchError, match="needs a path for its trace"):
        next(iter(run(cell(), CPU, None)))
