"""A measured history knows the module of each allocation, also of those of autograd's thread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fake_gpu.fake import FakeGpu

WORDS = ("memory", "--size=tiny", "--layers=2", "--ctx=16", "--batch=1", "--json=-", "--no-live", "--force")


@pytest.mark.parametrize(
    "words",
    [
        ("--mode=forward-backward", "--precision=fp32,fp16"),
        ("--mode=train", "--grad-accum=2", "--bf16", "--attention=sdpa"),
    ],
    ids=" ".join,
)
def test_modules_of_measured_memory_are_those_of_simulated_memory(
    words: tuple[str, ...], fake_gpu: FakeGpu, tmp_path: Path
) -> None:
    held = {"parameters", "gradients", *(["optimizer state"] if "--mode=train" in words else [])}
    measured, simulated = (
        json.loads(fake_gpu.answered(*WORDS, *words, where, cwd=tmp_path, capability="9.0").out)["cells"]
        for where in ("--device=cuda", "--simulate=h100")
    )
    for real, made in zip(measured, simulated, strict=True):
        by_path = {each["path"]: each for each in real["modules"]}
        assert by_path == {each["path"]: each for each in made["modules"]}
        assert held <= by_path["lm_head"]["by_category"].keys()


@pytest.mark.slow
def test_a_compiled_model_is_measured_without_hooks_that_break_its_graph(fake_gpu: FakeGpu) -> None:
    program = """
    from functools import partial
    import torch
    torch.compile = partial(torch.compile, backend="eager")  # compiling kernels takes long, and is not the question
    from torch._dynamo.utils import counters
    from sysbench.commands.memory.measure_cuda import run
    from sysbench.commands.memory.spec import MemorySpec
    from sysbench.log.events import DeviceInfo
    (cell,) = MemorySpec(
        size="tiny", ctx="16", batch="1", mode="forward-backward", device="cuda", execution="compiled"
    ).cells()
    for _ in run(cell, DeviceInfo(name="a GPU", type="cuda", index=0), None):
        pass
    print(counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
    """
    assert fake_gpu.python(program).out.split() == ["1", "0"]
