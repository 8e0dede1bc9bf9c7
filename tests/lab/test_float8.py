"""Products in fp8: which layers have them, that training stays close, and what simulations and predictions say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sysbench.commands.memory.spec import MemorySpec
from sysbench.errors import UnavailableError
from sysbench.lab.knobs.float8 import use_float8
from sysbench.lab.step import TrainingStep
from sysbench.predict.rates import GpuRates, gpu, typical_host
from sysbench.predict.simulated_step import SimulatedStep
from sysbench.predict.step import predict
from sysbench.predict.trace import Trace
from sysbench.predict.tracing import trace
from sysbench.simulate.gpu import Gpu
from sysbench.spec.hardware import by_name
from sysbench.spec.knobs import FP8
from sysbench.spec.model import ModelCell
from tests.cli.running import answered
from tests.lab.two_ranks import result_of

pytest.importorskip("torchao")

CPU = torch.device("cpu")
LAYERS = 2


def cell(precision: str, **fields: Any) -> ModelCell:
    built_in = {"d_model": 64, "d_ff": 128, "layers": LAYERS, "heads": 2, "vocab": 100, "ctx": 16, "batch": 2}
    (only,) = MemorySpec(**{**built_in, "mode": "train", "precision": precision, **fields}).cells()
    assert only.step is not None
    return only.step


def traced(precision: str, **fields: Any) -> Trace:
    return trace(cell(precision, device="cuda", **fields), Gpu.of(by_name("h100")))[0]


@pytest.mark.parametrize("precision", FP8)
def test_loss_and_gradients_are_close_to_those_in_bf16(precision: str) -> None:
    other, eight = (result_of(TrainingStep(cell(each), CPU)) for each in ("bf16", precision))
    assert eight["loss"] == pytest.approx(other["loss"], rel=1e-2)
    for name, gradient in other["gradients"].items():
        # e5m2 keeps two bits behind the point: each element is off by an eighth at most.
        assert torch.linalg.norm(eight["gradients"][name] - gradient) < 0.2 * torch.linalg.norm(gradient), name


def test_every_linear_layer_but_the_output_layer_is_replaced() -> None:
    model = TrainingStep(cell("fp8"), CPU).model
    kinds = Counter(type(each).__name__ for each in model.modules() if isinstance(each, nn.Linear))
    assert kinds == {"Float8Linear": 7 * LAYERS, "Linear": 1}


def test_a_model_of_ones_own_with_other_sides_is_refused_with_the_layer() -> None:
    model = nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 30), nn.Linear(30, 64), nn.Linear(64, 64))
    with pytest.raises(UnavailableError) as refused:
        use_float8(model, "fp8", CPU)
    assert "divisible by 16, but 1 maps 48 to 30, and 1 more. Nearest: --precision bf16" in str(refused.value)
    with pytest.raises(UnavailableError, match="Tanh has no linear layers for fp8"):
        use_float8(nn.Tanh(), "fp8", CPU)


@pytest.mark.parametrize("precision", FP8)
def test_products_of_a_step_are_in_fp8_once_forward_and_twice_backward(precision: str) -> None:
    found = traced(precision)
    for phase, count in {"forward": 7 * LAYERS, "backward": 14 * LAYERS}.items():
        products = Counter[str]()
        for each, launches in zip(found.kernels, found.counts[phase].tolist(), strict=True):
            products[each.dtype] += launches * (each.kind == "gemm" and each.dims[0] == 1)
        assert products["fp8"] == count
    plain = traced("bf16")
    assert found.flops == plain.flops
    assert "matmul_fp8" in predict(found, gpu("h100"), typical_host()).constants
    assert "matmul_fp8" not in predict(plain, gpu("h100"), typical_host()).constants


def test_fp8_is_assumed_to_be_nearly_twice_as_fast_where_a_gpu_has_it_and_uncertain() -> None:
    for name, has_it in {"a100-80gb": False, "rtx-3090": False, "l4": True, "h100": True, "b200": True}.items():
        rates = GpuRates.of(by_name(name)).rates
        assert ("matmul_fp8" in rates) == has_it
        if has_it:
            assert rates["matmul_fp8"].value == pytest.approx(1.8 * rates["matmul_half"].value)
            assert rates["matmul_fp8"].spread > rates["matmul_half"].spread
            assert rates["matmul_fp8"].basis == "assumed"


def test_fp8_pays_for_large_products_of_compiled_steps_only() -> None:
    def step_s(precision: str, execution: str, d_model: int) -> float:
        sides = {"d_model": d_model, "d_ff": 4 * d_model, "heads": d_model // 128, "layers": 1, "ctx": 2048, "batch": 4}
        found = traced(precision, execution=execution, attention="flash", **sides)
        return predict(found, gpu("h100"), typical_host()).time.point_s

    assert step_s("fp8", "compiled", 4096) < step_s("bf16", "compiled", 4096)
    assert step_s("fp8", "eager", 1024) > step_s("bf16", "eager", 1024)


def test_a_gpu_without_fp8_is_refused() -> None:
    with pytest.raises(UnavailableError, match=r"needs a GPU of compute capability 8\.9 or newer; .*A100"):
        _ = SimulatedStep(cell("fp8", device="cpu"), "a100-80gb").kernels
    assert SimulatedStep(cell("fp8", device="cpu"), "l4").kernels


def test_a_cpu_emulates_and_says_so(tmp_path: Path) -> None:
    words = ("--d-model=64", "--d-ff=128", "--layers=1", "--heads=2", "--vocab=100", "--ctx=16", "--precision=fp8")
    for command in ("time", "memory"):
        ran = answered(command, *words, "--mode=forward-backward", "--device=cpu", "--no-live", cwd=tmp_path)
        assert ran.code == 0, ran.err
        assert "a CPU has no products in fp8" in " ".join(ran.out.split())
    simulated = answered("memory", *words, "--mode=train", "--simulate=h100", "--no-live", cwd=tmp_path)
    assert "no products in fp8" not in simulated.out
