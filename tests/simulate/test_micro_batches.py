"""Gradient accumulation: micro-batches that repeat are recorded without being run, exactly as if they had been."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sysbench.commands.memory.spec import MemorySpec
from sysbench.predict.rates import gpu, typical_host
from sysbench.predict.step import predict
from sysbench.predict.trace import PhaseTrace, Trace
from sysbench.predict.tracing import trace
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.platform import Platform
from sysbench.simulate.recorder import Recorder
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.step_recorder import StepRecorder
from sysbench.simulate.steps import record
from sysbench.simulate.tensors import DeviceObserver, SimulatedDevice
from sysbench.spec import hardware
from sysbench.spec.model import ModelCell

H100 = Gpu.of(hardware.by_name("h100-80gb"))

SMALL = {"d_model": 20, "d_ff": 32, "layers": 2, "heads": 2, "vocab": 50, "ctx": 8, "batch": 3, "simulate": "h100"}

COUNTING = """
from torch import nn


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head, self.calls = nn.Embedding(50, 16), nn.Linear(16, 50), 0

    def forward(self, tokens):
        self.calls += 1
        hidden = self.embed(tokens)
        return self.head(hidden * 2 if self.calls == 5 else hidden)
"""


def step_of(**axes: Any) -> ModelCell:
    (cell,) = MemorySpec(**{**SMALL, "mode": "train", **axes}).cells()
    return cell.step


def operators_run(step: ModelCell) -> Counter[str]:
    """Return how many operators run in each phase of both steps."""
    counts = Counter[str]()

    class Counting(SimulatedDevice):
        def __init__(self, observer: DeviceObserver) -> None:
            super().__init__(observer)
            assert isinstance(observer, Recorder)
            self._place = observer

        def run(self, *call: Any) -> Any:
            counts[self._place.phase] += 1
            return super().run(*call)

    record(step, "train", Platform.of(H100), device=Counting)
    del counts["build"]  # makes the tokens of every micro-batch
    return counts


@pytest.mark.parametrize("axes", [{}, {"strategy": "ddp", "ranks": 2}], ids=str)
def test_a_step_of_many_micro_batches_takes_no_more_operators_than_one_of_a_few(axes: dict[str, Any]) -> None:
    few, many = (operators_run(step_of(grad_accum=number, **axes)) for number in (5, 40))
    assert many == few


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(
    "axes",
    [
        {"grad_accum": 2},
        {"grad_accum": 3, "mode": "forward-backward"},
        {"grad_accum": 4},
        {"grad_accum": 4, "precision": "bf16", "checkpoint": "full", "cross_entropy": "chunked"},
        {"grad_accum": 5, "precision": "bf16-true", "attention": "sdpa", "lora": 2, "quantize": "nf4"},
        {"grad_accum": 9, "precision": "fp16", "mode": "forward-backward"},
        {"grad_accum": 6, "precision": "bf16", "attention": "flash", "optimizer": "fused"},
        {"grad_accum": 6, "precision": "tf32", "execution": "compiled"},
        {"grad_accum": 5, "strategy": "ddp", "ranks": 2},
        {"grad_accum": 6, "strategy": "ddp", "ranks": 2, "gradient_as_bucket_view": "on", "no_sync": "on"},
        {"grad_accum": 6, "strategy": "fsdp2", "ranks": 2, "precision": "fp16", "no_sync": "on"},
        {"grad_accum": 5, "strategy": "fsdp2", "ranks": 2, "param_dtype": "bf16", "reduce_dtype": "fp32"},
        {"grad_accum": 5, "strategy": "hsdp", "ranks": 4, "precision": "bf16", "no_sync": "on"},
        {"grad_accum": 5, "strategy": "tp", "ranks": 2},
    ],
    ids=str,
)
def test_bytes_and_times_are_those_of_running_every_micro_batch(
    axes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = {"execution": axes.get("execution", "eager")}
    assert_as_if_all_had_run(step_of(**{**axes, "execution": "eager"}).model_copy(update=execution), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("grad_accum", [2, 5])
@pytest.mark.parametrize(
    ("name", "layers"),
    [("gpt2", "n_layer"), *((name, "num_hidden_layers") for name in ("llama-3.2-1b", "bert-base", "mixtral-8x7b"))],
)
def test_a_published_model_does_in_every_micro_batch_what_those_do_that_are_run(
    name: str, layers: str, grad_accum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    axes = {"model": name, "ctx": 16, "batch": 2, "precision": "bf16", "attention": "sdpa", "simulate": "h100"}
    (cell,) = MemorySpec(**axes, mode="train", grad_accum=grad_accum).cells()
    assert cell.own is not None
    shallow = cell.own.model_copy(update={"arguments": {layers: 2}})
    assert_as_if_all_had_run(cell.step.model_copy(update={"model": shallow}), monkeypatch)


def assert_as_if_all_had_run(step: ModelCell, monkeypatch: pytest.MonkeyPatch) -> None:
    written, recording = trace(step, H100, with_modules=True)
    monkeypatch.setattr(StepRecorder, "repeat_micro_batches", lambda *_, **__: 0)
    expected, recorded = trace(step, H100, with_modules=True)
    assert asked(recording) == asked(recorded)
    assert launched(written) == launched(expected)
    found, known = (predict(each, gpu("h100"), typical_host()) for each in (written, expected))
    assert (found.time, found.phases) == (known.time, known.phases)


def asked(recording: StepRecording) -> tuple[object, ...]:
    """Return all that is recorded, with stacks in place of their numbers."""
    allocations = [each._replace(stack=hash(recording.stacks[each.stack])) for each in recording.allocations]
    return recording.events, recording.spans, allocations


def launched(written: Trace) -> list[object]:
    """Return all that is written, with streams numbered in the order of their first launches."""
    found: list[object] = [written.kernels, written.operators, written.modules]
    for phase in written.phases:
        for field in fields(PhaseTrace):
            value = getattr(phase, field.name)
            if field.name == "streams" and value is not None:
                value = np.unique(value, return_inverse=True)[1]
            found.append(value.tolist() if isinstance(value, np.ndarray) else value)
    return found


def test_a_model_of_the_users_is_called_for_every_micro_batch(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(COUNTING)
    own = {"model": f"{tmp_path / 'model.py'}:Counting", "ctx": 8, "batch": 3, "simulate": "h100"}
    (cell,) = MemorySpec(**own, mode="forward-backward", grad_accum=8).cells()
    recording = record(cell.step, cell.mode, Platform.of(H100))
    forwards = [span for span in recording.spans if span.name == "forward"]
    made = [sum(event >= 0 for event in recording.events[span.first : span.end]) for span in forwards]
    assert made[3:6] == [made[3], made[3] + 1, made[3]]
