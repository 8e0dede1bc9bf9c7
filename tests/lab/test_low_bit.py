"""AdamW with 8-bit and 4-bit moments: what simulations follow is what the library stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sysbench.commands.memory.spec import MemorySpec
from sysbench.commands.time.spec import TimeSpec
from sysbench.lab.knobs.low_bit import FORMATS
from sysbench.lab.knobs.optimizers import optimizer_for
from sysbench.lab.step import TrainingStep
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate
from sysbench.spec.model import ModelCell
from tests.cli.running import answered

CPU = torch.device("cpu")
SHAPES = ((64, 64), (63, 65), (41, 100), (256, 128), (64,))
"""The smallest that is stored in blocks, one too small, one of no whole blocks, a large one, and a vector."""
TORCHAO = ("adamw-8bit", "adamw-4bit")


def cell(**fields: Any) -> ModelCell:
    """The one cell of a training step."""
    built_in = {"d_model": 64, "d_ff": 64, "layers": 1, "heads": 2, "vocab": 64, "ctx": 8, "batch": 3, "mode": "train"}
    (only,) = MemorySpec(**{**built_in, **fields}).cells()
    assert only.step is not None
    return only.step


def updated(parameters: list[nn.Parameter], choice: str) -> torch.optim.Optimizer:
    """The optimizer after two steps on the same gradients; without compiling, which takes a minute."""
    optimizer = optimizer_for(nn.ParameterList(parameters), choice)
    for parameter in parameters:
        parameter.grad = torch.linspace(-1, 1, parameter.numel(), dtype=parameter.dtype).view_as(parameter)
    with torch.compiler.set_stance("force_eager"):
        for _ in range(2):
            optimizer.step()
    return optimizer


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    return [nn.Parameter(torch.linspace(-1, 1, 2 * 64 * 256)[: torch.Size(each).numel()].view(each).to(dtype))
            for each in SHAPES]  # fmt: skip


@pytest.mark.parametrize("choice", TORCHAO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_have_the_bytes_of_torchaos(choice: str, dtype: torch.dtype) -> None:
    pytest.importorskip("torchao")
    optimizer = updated(parameters(dtype), choice)
    step = TrainingStep.__new__(TrainingStep)
    step._optimizer = optimizer
    for parameter in optimizer.state:
        stored = [
            each for owner, each in step.optimizer_state() if owner is parameter and each.dim()
        ]  # no step counter
        expected = FORMATS[choice].moments(parameter)
        assert [(each.nbytes, each.dtype) for each in stored] == [(each.nbytes, each.dtype) for each in expected]


@pytest.mark.parametrize(("choice", "digits"), [("adamw-8bit", 0.02), ("adamw-4bit", 0.3)])
def test_updates_are_adamws_but_for_the_digits_of_moments(choice: str, digits: float) -> None:
    pytest.importorskip("torchao")
    taken, expected = parameters(torch.float32), parameters(torch.float32)
    updated(taken, choice)
    updated(expected, "foreach")
    for one, other, before in zip(taken, expected, parameters(torch.float32), strict=True):
        change = other - before
        assert (one - other).abs().mean() <= digits * change.abs().mean()


@pytest.mark.parametrize(("choice", "bits", "block"), [("adamw-8bit", 8, 256), ("adamw-4bit", 4, 128)])
def test_simulated_state_is_that_of_the_format(choice: str, bits: int, block: int) -> None:
    of = cell(optimizer=choice, d_model=128, d_ff=256, vocab=256)
    state = {peak.phase: peak.by_category for peak in simulate(of, "train", Gpu("any", 1 << 50)).phases}
    matrices = 2 * 256 * 128 + 4 * 128 * 128 + 3 * 128 * 256
    codes_and_scales = 2 * (matrices * bits // 8 + 4 * matrices // block)
    tables_and_vectors = 9 * 2 * 1024 + 3 * 2 * 4 * 128
    assert 0 <= state["forward"]["optimizer state"] - codes_and_scales <= tables_and_vectors + 9 * 4 * 512


def test_4_bit_codes_need_24_bytes_an_element_of_the_largest_parameter_before_they_are_packed() -> None:
    of = {"d_model": 128, "d_ff": 256, "vocab": 1 << 16, "layers": 1}
    found = simulate(cell(optimizer="adamw-4bit", **of), "train", Gpu("any", 1 << 50))
    peaks = {peak.phase: peak.by_category for peak in found.phases}
    assert peaks["optimizer"]["temporaries"] == pytest.approx(24 * 128 * (1 << 16), rel=0.01)


def test_paged_state_is_outside_the_allocator() -> None:
    def state(**fields: Any) -> int:
        found = simulate(cell(optimizer="adamw-8bit-paged", **fields), "train", Gpu("any", 1 << 50))
        return {peak.phase: peak.by_category for peak in found.phases}["forward"]["optimizer state"]

    small, paged = state(), state(d_ff=1600)  # a matrix of 102,400 elements
    assert paged - small == 3 * (2 * 4 * 400 // 512 * 512 + 2 * 512 - 2 * (4096 + 512))


def test_an_8_bit_update_moves_fewer_bytes_than_a_fused_one_and_a_4_bit_one_more(tmp_path: Path) -> None:
    choices = ("adamw-8bit", "fused", "adamw-4bit")
    ran = answered("time", "--size=small", "--layers=1", "--ctx=16", "--mode=train", "--simulate=h100",
                   f"--optimizer={','.join(choices)}", f"--out={tmp_path}", "--no-live", "--json=-")  # fmt: skip
    cells = {each["axes"]["optimizer"]: each for each in json.loads(ran.out)["cells"]}
    cautions = {choice: [each["code"] for each in cells[choice]["cautions"]] for choice in choices}
    assert {choice for choice in choices if "modelled" in cautions[choice]} == set(TORCHAO)
    seconds = [
        next(each["device_s"] for each in cells[choice]["prediction"]["phases"] if each["name"] == "optimizer")
        for choice in choices
    ]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(
    ("fields", "device", "line"),
    [
        ({"optimizer": "adamw8bit"}, "cuda", "Did you mean adamw-8bit"),
        ({"optimizer": "adamw-8bit-paged"}, "cpu", "it needs CUDA. Nearest: adamw-8bit"),
        ({"optimizer": "adamw-8bit-paged", "ranks": 2, "strategy": "fsdp2"}, "cuda", "parameters of fsdp2. Nearest"),
    ],
)
def test_what_has_no_low_bit_moments_is_refused(fields: dict[str, Any], device: Any, line: str) -> None:
    try:
        (only,) = TimeSpec(ctx=16, mode="train", **fields).cells()
        problem = only.problem(device)
    except ValueError as refused:
        problem = str(refused)
    assert line in str(problem)


def test_a_cpu_does_not_show_the_memory_of_compiled_updates(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    ran = answered("memory", "--size=tiny", "--ctx=16", "--mode=train", "--device=cpu", "--optimizer=adamw-8bit",
                   f"--out={tmp_path}", "--no-live")  # fmt: skip
    assert (
        "is compiled, and its tensors cannot be tracked on cpu: measure on a GPU, or --simulate one"
        in ran.out + ran.err
    )
