"""Deep compiled steps that are continued from two shallow ones: the same as if all layers had been compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sysbench.commands.memory.spec import MemoryCell, MemorySpec
from sysbench.lab.workload.own import layers_are_alike
from sysbench.predict.rates import gpu, typical_host
from sysbench.predict.step import predict
from sysbench.predict.tracing import trace
from sysbench.simulate.compiler import deep_steps
from sysbench.simulate.depths import Depths, depths_for_copies, with_layers
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate_recording
from sysbench.simulate.platform import Platform
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.steps import record
from sysbench.spec import hardware
from sysbench.spec.model import ModelCell

H100 = Gpu.of(hardware.by_name("h100-80gb"))
NARROW = {"d_model": 128, "d_ff": 512, "heads": 4, "vocab": 1000, "ctx": 64, "batch": 2, "simulate": "h100"}


def cell_of(layers: int, **axes: Any) -> MemoryCell:
    if "model" in axes:
        pytest.importorskip("transformers")
    shape = {"model": axes.pop("model")} | {"ctx": 16, "batch": 2} if "model" in axes else NARROW | {"layers": layers}
    (cell,) = MemorySpec(**{"mode": "train", "precision": "bf16", "simulate": "h100", **shape, **axes}).cells()
    return cell


def peaks(recording: StepRecording) -> list[tuple[Any, ...]]:
    return [
        (phase.phase, phase.allocated_peak_bytes, phase.by_category)
        for phase in simulate_recording(recording, H100).phases
    ]


def recorded(cell: ModelCell, mode: Any) -> StepRecording:
    return record(cell, mode, Platform.of(H100))


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"mode": "forward"},
        {"checkpoint": "full", "optimizer": "for-loop"},
        {"grad_accum": 3, "lora": 2},
        {"model": "gpt2", "attention": "sdpa"},
    ],
    ids=str,
)
def test_the_requests_of_an_eager_step_are_continued_exactly(axes: dict[str, Any]) -> None:
    cell = cell_of(8, **axes)
    small, large, whole = (recorded(with_layers(cell.step, layers), cell.mode) for layers in (3, 4, 8))
    continued = deep_steps.continued(whole.cell, small, large, Depths(3, 4, 8), whole)
    assert continued is not None
    assert continued.cell == whole.cell
    assert (continued.own_model, continued.adapted_model) == (whole.own_model, whole.adapted_model)
    assert continued.recomputed_flops == whole.recomputed_flops
    named = [[each._replace(stack=0) for each in found.allocations] for found in (continued, whole)]
    assert named[0] == named[1]
    assert continued.spans == whole.spans
    assert peaks(continued) == peaks(whole)


def test_a_small_buffer_that_grows_with_the_depth_is_continued() -> None:
    """As that of the seeds for dropout, of which each layer has its own."""

    def with_seeds(recording: StepRecording, layers: int) -> StepRecording:
        made = recording.allocations
        return replace(
            recording,
            allocations=tuple(each._replace(size_bytes=8 * layers) if each.size_bytes == 4 else each for each in made),
        )

    cell = cell_of(8, precision="fp32")
    found = (with_seeds(recorded(with_layers(cell.step, layers), cell.mode), layers) for layers in (3, 4, 8))
    small, large, whole = found
    continued = deep_steps.continued(cell.step, small, large, Depths(3, 4, 8), whole)
    assert continued is not None
    sizes = [[each.size_bytes for each in recording.allocations] for recording in (continued, whole)]
    assert sizes[0] == sizes[1]
    assert 64 in sizes[1]


@pytest.mark.parametrize(("model", "alike"), [("llama-3.2-1b", True), ("gpt2", True), ("gemma-2-2b", False)])
@pytest.mark.parametrize("changed", [{}, {"model_arg": "num_hidden_layers=20"}], ids=str)
def test_layers_that_alternate_are_known_from_the_config(model: str, alike: bool, changed: dict[str, Any]) -> None:
    """Whatever their number is changed to."""
    pytest.importorskip("transformers")
    if model == "gpt2" and changed:
        changed = {"model_arg": "n_layer=20"}
    own = cell_of(0, model=model, **changed).own
    assert own is not None
    assert layers_are_alike(own) == alike


def test_a_model_whose_layers_differ_is_not_continued() -> None:
    """The whole model's build is not that of more layers like those of the shallow models: its layers are wider."""
    cell = cell_of(8)
    small, large = (recorded(with_layers(cell.step, layers), cell.mode) for layers in (3, 4))
    wider = recorded(cell_of(8, d_ff=600).step, cell.mode)
    assert deep_steps.continued(cell.step, small, large, Depths(3, 4, 8), wider) is None


@pytest.mark.parametrize(
    ("layers", "axes", "found"),
    [
        (12, {}, None),
        (24, {}, Depths(5, 6, 24)),
        (80, {"mode": "forward"}, Depths(5, 6, 80)),
        (24, {"mode": "inference"}, None),
        (24, {"checkpoint": "full"}, None),
        (0, {"model": "llama-3.2-1b"}, Depths(5, 6, 16)),
        (0, {"model": "llama-3.2-1b", "lora": 8}, None),
    ],
    ids=str,
)
def test_only_deep_steps_whose_code_repeats_are_continued(
    layers: int, axes: dict[str, Any], found: Depths | None
) -> None:
    assert depths_for_copies(cell_of(layers, **axes).step) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "axes",
    [
        {"precision": "fp32", "attention": "sdpa"},
        {"lora": 4, "grad_accum": 2, "optimizer": "fused"},
        {"model": "llama-3.2-1b", "attention": "sdpa"},
    ],
    ids=str,
)
def test_a_compiled_step_needs_what_it_needs_with_all_layers_compiled(
    axes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = cell_of(15, **axes, execution="compiled").step
    written, recording = trace(step, H100)
    assert recording.depths is not None
    monkeypatch.setattr("sysbench.simulate.compiler.deep_steps.depths_for_copies", lambda cell: None)
    expected, whole = trace(step, H100)
    assert whole.depths is None
    # Which gradients are copied may change with the depth: 22 of 8 KiB in Llama 3.2 1B.
    of_phases = [[phase[1] for phase in peaks(each)] for each in (recording, whole)]
    assert of_phases[0] == pytest.approx(of_phases[1], rel=1e-4)
    assert [len(phase.kernels) for phase in written.phases] == [len(phase.kernels) for phase in expected.phases]
    found, known = (predict(each, gpu("h100"), typical_host()) for each in (written, expected))
    assert found.time.point_s == pytest.approx(known.time.point_s, rel=1e-9)
