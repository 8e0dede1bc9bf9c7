"""Traces of real steps, counted against formulas, and what a prediction says of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from sysbench import formulas
from sysbench.errors import UnavailableError
from sysbench.predict.rates import gpu, typical_host
from sysbench.predict.step import predict
from sysbench.predict.trace import Kernel, Stage, Trace, TraceWriter
from sysbench.predict.tracing import Tracer, trace
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.recording import Platform, Recorder
from sysbench.simulate.tensors import DEVICE
from sysbench.spec.hardware import by_name
from sysbench.spec.model import ModelCell, ModelShape

SHAPE = ModelShape(d_model=64, d_ff=256, layers=3, heads=4, vocab=500)
H100 = Gpu.of(by_name("h100"))


@cache
def traced(**changes: object) -> tuple[ModelCell, Trace]:
    fields = {
        "device": "cuda", "size": "custom", "model": SHAPE, "ctx": 32, "batch": 2, "precision": "fp32",
        "attention": "naive", "execution": "eager", "optimizer": "foreach", "seed": 0, "mode": "train",
    }  # fmt: skip
    cell = ModelCell.model_validate(fields | changes)
    return cell, trace(cell, H100)[0]


def launched(of: Trace, phase: str, kind: str) -> list[Kernel]:
    (found,) = (each for each in of.phases if each.name == phase)
    return [of.kernels[i] for i in found.kernels if of.kernels[i].kind == kind]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_flops_and_products_of_a_trace_are_those_of_the_formula(precision: str) -> None:
    cell, of = traced(precision=precision)
    assert of.flops == formulas.step_flops_of(cell)
    assert len(launched(of, "forward", "gemm")) == 9 * SHAPE.layers + 1
    assert len(launched(of, "backward", "gemm")) == 2 * (9 * SHAPE.layers + 1)
    assert {each.dtype for each in launched(of, "forward", "gemm")} == {precision}


def test_products_have_the_layouts_of_a_linear_layers_forward_and_gradients() -> None:
    _, of = traced()
    tokens, forward = 2 * 32, launched(of, "forward", "gemm")
    head = next(each for each in forward if each.dims == (1, tokens, SHAPE.vocab, SHAPE.d_model))
    assert head.layout == "TN"
    backward = {each.dims[1:]: each.layout for each in launched(of, "backward", "gemm")}
    assert backward[tokens, SHAPE.d_model, SHAPE.vocab] == "NN"


@pytest.mark.parametrize(("optimizer", "bytes_each"), [("foreach", 80), ("fused", 28)])
def test_an_optimizer_moves_its_bytes_for_each_parameter(optimizer: str, bytes_each: int) -> None:
    _, of = traced(optimizer=optimizer)
    kind = "foreach" if optimizer == "foreach" else "optimizer"
    moved = sum(each.bytes for each in launched(of, "optimizer", kind))
    assert moved == pytest.approx(bytes_each * formulas.parameters(SHAPE), rel=0.02)


@pytest.mark.parametrize("attention", ["sdpa", "flash", "efficient", "flex"])
def test_fused_attention_is_one_kernel_a_layer_and_pass(attention: str) -> None:
    _, of = traced(attention=attention, precision="bf16")
    forward, backward = (launched(of, phase, "attention") for phase in ("forward", "backward"))
    assert len(forward) == len(backward) == SHAPE.layers
    assert forward[0].flops * SHAPE.layers == formulas.attention_forward_flops(SHAPE, 32, 2)
    assert backward[0].flops * 2 == 5 * forward[0].flops
    assert forward[0].layout.endswith("forward causal")


def test_phases_add_up_to_the_step_and_nothing_is_under_its_lower_bound() -> None:
    _, of = traced()
    said = predict(of, gpu("h100"), typical_host())
    assert said.time.point_s == pytest.approx(sum(phase.time.point_s for phase in said.phases))
    assert said.time.low_s <= said.time.point_s <= said.time.high_s
    assert said.lower_bound_s < said.time.point_s
    assert all(phase.lower_bound_s <= phase.time.low_s for phase in said.phases)
    assert said.bottleneck.name == "host"  # a model this small waits for Python
    assert sum(row.count for row in said.rows) == of.launches
    assert said.withheld is None
    assert {each.rate.basis for each in said.constants} >= {"measured elsewhere", "borrowed"}


def test_an_operator_that_the_model_does_not_know_is_named_and_withholds_the_step() -> None:
    tracer = Tracer(0)
    recorder = Recorder(Platform.of(H100), tracer.device, None)
    with recorder.device:
        with recorder.span(0, "forward"):
            torch.sort(torch.ones(1 << 20, device=DEVICE))
        recorder.device.stop()
    said = predict(tracer.trace(), gpu("h100"), typical_host())
    assert said.unknown == {"sort": 1}
    assert said.unknown_share > 0.05
    assert said.withheld is not None
    assert "sort" in said.withheld


def test_a_small_share_of_unknown_operators_is_said_but_does_not_withhold_the_step() -> None:
    writer = TraceWriter()
    writer.add_operator(Stage("forward"), "operator", [Kernel("map", "add", "fp32", 1 << 32, 1 << 30)])
    writer.add_operator(Stage("forward"), "operator", [Kernel("unknown", "sort", "fp32", 1 << 10, 1 << 8)])
    said = predict(writer.trace(), gpu("h100"), typical_host())
    assert 0 < said.unknown_share < 0.05
    assert said.unknown == {"sort": 1}
    assert said.withheld is None


def test_what_a_generation_has_not_got_is_refused() -> None:
    cell, _ = traced()
    with pytest.raises(UnavailableError):
        trace(cell.model_copy(update={"attention": "flash"}), H100)
    with pytest.raises(UnavailableError, match="bf16 needs sm80"):
        trace(cell.model_copy(update={"precision": "bf16"}), Gpu.of(by_name("v100-32gb")))


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_a_compiled_step_has_the_same_products_fewer_kernels_fewer_bytes_and_less_certainty(attention: str) -> None:
    _, eager = traced(attention=attention)
    _, compiled = traced(attention=attention, execution="compiled")
    assert compiled.flops == eager.flops
    assert [each.name for each in compiled.phases] == [each.name for each in eager.phases]
    for phase in ("forward", "backward"):
        assert launched(compiled, phase, "gemm") == launched(eager, phase, "gemm")
        moved = [sum(kernel.bytes for kernel in of_phase(each, phase)) for each in (compiled, eager)]
        assert len(of_phase(compiled, phase)) < 0.6 * len(of_phase(eager, phase))
        assert 0.2 < moved[0] / moved[1] < 0.9
    assert of_phase(compiled, "optimizer") == of_phase(eager, "optimizer")
    said, before = (predict(each, gpu("h100"), typical_host()) for each in (compiled, eager))
    assert said.has_estimated_fusion
    assert said.time.point_s < before.time.point_s


@pytest.mark.parametrize("execution", ["compiled-graphs", "compiled-autotune"])
def test_a_cuda_graph_has_the_kernels_of_compiled_code_and_one_launch(execution: str) -> None:
    host = typical_host()
    compiled, graphs = (predict(traced(execution=each)[1], gpu("h100"), host) for each in ("compiled", execution))
    for phase, other in zip(graphs.phases, compiled.phases, strict=True):
        assert of_phase(graphs.trace, phase.name) == of_phase(compiled.trace, other.name)
        assert phase.device == other.device
        match phase.name:
            case "forward":
                assert phase.host_s == pytest.approx(host.rates["operator"].value + host.rates["launch"].value)
            case "backward":
                assert phase.host_s == pytest.approx(host.rates["operator_backward"].value + host.rates["launch"].value)
            case _:
                assert phase.host_s == other.host_s
    assert graphs.has_estimated_fusion


def test_a_compiled_step_that_updates_in_backward_is_not_predicted() -> None:
    cell, _ = traced()
    changed = {"execution": "compiled", "optimizer_in_backward": "on"}
    with pytest.raises(UnavailableError, match="only measured: updates run between compiled code"):
        trace(cell.model_copy(update=changed), H100)


def test_the_time_of_an_update_on_the_host_is_withheld() -> None:
    _, of = traced(offload="optimizer")
    said = predict(of, gpu("h100"), typical_host())
    assert said.withheld == "the update on the host, with its copies to the device, has no predicted time"
    assert of_phase(of, "backward") == of_phase(traced()[1], "backward")


def of_phase(of: Trace, phase: str) -> list[Kernel]:
    (found,) = (each for each in of.phases if each.name == phase)
    return [of.kernels[i] for i in found.kernels]


def test_draws_of_a_step_begin_with_the_point_and_have_the_quantiles_of_its_interval() -> None:
    said = predict(traced()[1], gpu("h100"), typical_host())
    assert said.draws_s[0] == said.time.point_s
    assert np.quantile(said.draws_s, (0.05, 0.95)) == pytest.approx((said.time.low_s, said.time.high_s))


@pytest.mark.parametrize(("slower", "shared"), [(10.0, True), (1e-3, False)])
def test_two_gpus_share_the_draws_of_their_host_and_nothing_else(slower: float, shared: bool) -> None:
    typical = typical_host()
    scaled = {name: rate.model_copy(update={"value": slower * rate.value}) for name, rate in typical.rates.items()}
    host = replace(typical, rates=scaled)
    first, second = (np.log(predict(traced()[1], gpu(slug), host).draws_s) for slug in ("h100", "a100-80gb"))
    assert bool(np.corrcoef(first, second)[0, 1] > 0.8) is shared
    assert bool(np.std(first - second) < np.std(first)) is shared
