"""Rates fitted to steps that take what the model says at known rates."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from sysbench.errors import UnavailableError
from sysbench.predict.rates import gpu, typical_host
from sysbench.predict.step import predict
from sysbench.predict.tracing import trace
from sysbench.simulate.gpu import Gpu
from sysbench.spec.grid import ModelShape
from sysbench.spec.hardware import by_name
from sysbench.spec.model import ModelCell
from sysbench.spec.steps import Attention, Precision
from tests.bench.fitting import TimedStep, fit_rates

TRUE = {
    "attention_forward": 0.6,
    "attention_backward": 0.6,
    "matmul_fp32": 0.85,
    "stream": 1.2,
    "reduce": 1.2,
    "indexed": 1.2,
    "transpose": 1.2,
}
HOST = 1.5


def step(width: int, ctx: int, attention: Attention = "naive", precision: Precision = "fp32") -> TimedStep:
    """A step as an H100 with other rates behind a slower host would take it."""
    cell = ModelCell(
        device="cuda", size="custom", model=ModelShape(d_model=width, d_ff=4 * width, layers=2, heads=4, vocab=2000),
        ctx=ctx, batch=8, precision=precision, attention=attention, execution="eager", optimizer="foreach", seed=0,
        mode="train",
    )  # fmt: skip
    of, _ = trace(cell, Gpu.of(by_name("h100")))
    rates = {
        name: rate.model_copy(update={"value": rate.value * TRUE.get(name, 1.0)}) for name, rate in H100.rates.items()
    }
    host = {
        name: rate.model_copy(update={"value": rate.value * (HOST if name != "synchronize" else 1.0)})
        for name, rate in typical_host().rates.items()
    }
    said = predict(of, replace(H100, rates=rates), replace(typical_host(), rates=host))
    return TimedStep(of, {phase.name: phase.time.point_s for phase in said.phases})


H100 = gpu("h100")


def test_host_products_and_bandwidth_are_read_from_steps_that_depend_on_them() -> None:
    shown = fit_rates([step(64, 64), step(2048, 512)], H100, typical_host())
    value = {each.rate: each.work / median(each.samples_s) for each in shown.observations}
    assert 1 / value["operator"] == pytest.approx(HOST * typical_host().rates["operator"].value, rel=0.1)
    assert value["matmul_fp32"] == pytest.approx(0.85 * H100.rates["matmul_fp32"].value, rel=0.05)
    assert value["stream"] == pytest.approx(1.2 * H100.rates["stream"].value, rel=0.1)
    assert {"matmul_half", "attention_forward", "gap_s"} <= shown.unseen.keys()


def test_attention_is_read_from_steps_of_long_contexts() -> None:
    shown = fit_rates([step(1024, ctx, "flash", "bf16") for ctx in (512, 4096, 16384)], H100, typical_host())
    value = {each.rate: each.work / median(each.samples_s) for each in shown.observations}
    for rate in ("attention_forward", "attention_backward"):
        assert value[rate] == pytest.approx(0.8 * H100.rates[rate].value, rel=0.1)


def test_steps_that_wait_for_the_host_show_nothing_of_products() -> None:
    shown = fit_rates([step(64, 64)], H100, typical_host())
    seen = {each.rate for each in shown.observations}
    assert "operator" in seen
    assert "matmul_fp32" in shown.unseen


def test_without_steps_there_is_nothing_to_see() -> None:
    with pytest.raises(UnavailableError, match="no step"):
        fit_rates([], H100, typical_host())
