"""Compiled steps: with CUDA graphs, only graphs are launched; without, the simulation allocates what Inductor does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_gpu.fake import FakeGpu
from tests.fake_gpu.memory import Group, architecture, own, pairs

MODEL = """
import torch

class Linear(torch.nn.Linear):
    def __init__(self):
        super().__init__(16, 16)
"""

PROGRAM = """
import torch
from sysbench.lab.compilation import compile_step, compiled_event
from sysbench.commands.time.spec import TimeSpec
from sysbench.lab.step import TrainingStep
from tests.fake_gpu.fake import forget, report_so_far
(cell,) = TimeSpec(
    model="model.py:Linear", input="input=float32[B,16]", ctx=1, batch=4, device="cuda", execution="compiled-graphs",
    app_dir={directory!r},
).cells()
step = TrainingStep(cell, torch.device("cuda", 0))
products = []

def take_step():
    forget()
    step.forget()
    for _, run in step.phases:
        run()
    torch.cuda.synchronize()
    products.append(report_so_far().count("cublas"))
    return 0.0

for _ in compile_step(cell, take_step):
    pass
for _ in range(3):
    take_step()
print(*products)
print(compiled_event("cell", 1.0).graphs_skipped)
"""


@pytest.mark.slow  # Inductor compiles real kernels
def test_after_the_steps_that_compile_only_graphs_are_launched(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    program = PROGRAM.format(directory=str(tmp_path))
    compiling, recording, *others, skipped = fake_gpu.python(program).out.split()
    assert int(compiling) > 0
    assert int(recording) > 0
    assert others == ["0", "0", "0"]
    assert skipped == "0"


@pytest.mark.slow
@pytest.mark.parametrize(
    "group",
    [
        Group(
            ("--size=tiny", "--ctx=128", "--mode=train", "--precision=bf16", "--attention=sdpa", "--execution=compiled")
        ),
        own("Llama", "--precision=fp32", "--execution=compiled"),
        own("NanoGpt", "--precision=fp32,bf16", "--execution=compiled"),
        architecture(
            *("vit", "--ctx=16", "--batch=2", "--input=pixel_values=float32[B,3,48,48]"),
            *("--precision=bf16", "--execution=compiled"),
        ),
    ],
    ids=["built-in", "own", "own loss", "convolution"],
)
def test_simulated_compiled_step_allocates_what_the_generated_code_does(fake_gpu: FakeGpu, group: Group) -> None:
    """To the byte once the kernels are chosen: what trying them takes in the first step of all is not simulated."""
    found = pairs(fake_gpu, group)
    assert found
    for pair in found:
        assert pair.is_comparable, pair.outcomes
        assert pair.differences(categories=False) == {}
