"""A measured history knows the module of each allocation, also of those of autograd's thread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fake_gpu.fake import FakeGpu

WORDS = ("memory", "--size=tiny", "--ctx=16", "--batch=1", "--json=-", "--no-live", "--force")


@pytest.mark.parametrize(
    "words",
    [("--precision=fp32,fp16",), ("--grad-accum=2", "--bf16", "--attention=sdpa")],
    ids=" ".join,
)
def test_modules_of_measured_memory_are_those_of_simulated_memory(
    words: tuple[str, ...], fake_gpu: FakeGpu, tmp_path: Path
) -> None:
    words = (*WORDS, "--mode=forward-backward", *words)
    measured, simulated = (
        json.loads(fake_gpu.answered(*words, where, cwd=tmp_path, capability="9.0").out)["cells"]
        for where in ("--device=cuda", "--simulate=h100")
    )
    for real, made in zip(measured, simulated, strict=True):
        by_path = {each["path"]: each for each in real["modules"]}
        assert by_path == {each["path"]: each for each in made["modules"]}
        assert {"parameters", "gradients"} <= by_path["lm_head"]["by_category"].keys()


def test_the_state_of_the_optimizer_belongs_to_the_modules_of_its_parameters(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    def state(where: str) -> dict[str, int]:
        ran = fake_gpu.answered(*WORDS, "--mode=train", where, cwd=tmp_path, capability="9.0")
        (cell,) = json.loads(ran.out)["cells"]
        return {each["path"]: each["by_category"].get("optimizer state") for each in cell["modules"]}

    assert state("--device=cuda") == state("--simulate=h100")


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
