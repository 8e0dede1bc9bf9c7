"""Traces of real steps, counted against formulas, and what a prediction says of them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from sysbench import formulas
from sysbench.errors import UnavailableError
from sysbench.predict.rates import Draws, HostRates, gpu, typical_host
from sysbench.predict.step import PhasePrediction, StepPrediction, predict
from sysbench.predict.trace import Kernel, PhaseTrace, Stage, Trace, TraceWriter
from sysbench.predict.tracing import Tracer, trace
from sysbench.predict.walk import LAUNCH_LATENCY_S
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.platform import Platform
from sysbench.simulate.recorder import Recorder
from sysbench.simulate.tensors import DEVICE
from sysbench.spec.grid import ModelShape
from sysbench.spec.hardware import by_name
from sysbench.spec.model import ModelCell

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


def gpt2_layer(vocab: int) -> ModelShape:
    return ModelShape(d_model=768, d_ff=3072, layers=1, heads=12, vocab=vocab)


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
    assert said.lower_bound_s is not None
    assert said.lower_bound_s < said.time.point_s
    assert all((phase.lower_bound_s or math.inf) <= phase.time.low_s for phase in said.phases)
    assert said.bottleneck.name == "host"  # a model this small waits for Python
    assert said.withheld is None
    assert {rate.basis for rate in said.constants.values()} >= {"measured elsewhere", "borrowed"}


def test_measured_rates_give_no_lower_bound_and_a_step_may_be_faster_than_they_are() -> None:
    """Rates that were measured beside other programs are too low, so a bound from them would be beaten."""
    _, of = traced()
    known = gpu("h100")
    measured = known.hardware.model_copy(update={"peak_flops_per_s": {}, "memory_bandwidth_bytes_per_s": None})
    said = predict(of, replace(known, hardware=measured), typical_host())
    assert said.lower_bound_s is None
    assert {phase.lower_bound_s for phase in said.phases} == {None}
    assert said.time.point_s > 0


def test_an_odd_vocabulary_costs_time_and_certainty_on_tensor_cores_only() -> None:
    """A published step of GPT-2 on an A100 takes 96.4 ms with 50,257 words and 93.6 with 50,304 (build-nanogpt)."""
    for precision in ("bf16", "tf32", "fp32"):
        odd, even = (
            predict(traced(precision=precision, ctx=1024, model=gpt2_layer(vocab))[1], gpu("a100-80gb"), typical_host())
            for vocab in (50_257, 50_304)
        )
        assert (odd.time.point_s > 1.05 * even.time.point_s) == (precision != "fp32")
        assert ("unaligned" in odd.constants) == (precision != "fp32")
        assert "unaligned" not in even.constants


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


def test_a_compiled_step_has_the_same_products_fewer_kernels_and_fewer_bytes() -> None:
    _, eager = traced()
    _, compiled = traced(execution="compiled")
    assert compiled.flops == eager.flops
    assert [each.name for each in compiled.phases] == [each.name for each in eager.phases]
    for phase in ("forward", "backward"):
        assert len(launched(compiled, phase, "gemm")) == len(launched(eager, phase, "gemm"))
        moved = [sum(kernel.bytes for kernel in of_phase(each, phase)) for each in (compiled, eager)]
        assert len(of_phase(compiled, phase)) < 0.6 * len(of_phase(eager, phase))
        assert 0.2 < moved[0] / moved[1] < 0.9
    for phase in ("loss", "optimizer"):
        assert of_phase(compiled, phase) == of_phase(eager, phase)
    said, before = (predict(each, gpu("h100"), typical_host()) for each in (compiled, eager))
    assert said.trace.compiled
    assert said.time.point_s < before.time.point_s


@pytest.mark.slow  # two more steps are compiled
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
    assert graphs.trace.compiled


def test_a_step_with_graphs_that_updates_in_backward_is_not_predicted() -> None:
    cell, _ = traced()
    changed = {"execution": "compiled-graphs", "optimizer_in_backward": "on"}
    with pytest.raises(UnavailableError, match="only measured: updates run between the graphs"):
        trace(cell.model_copy(update=changed), H100)


def test_an_update_on_the_host_has_a_time_only_if_the_rate_of_the_link_is_known() -> None:
    _, of = traced(offload="optimizer")
    without = predict(of, gpu("h100"), typical_host())
    assert without.withheld == (
        "the rate of the link between GPU and host is unknown: calibrate it, or give time --host-link 25GB/s"
    )
    linked = gpu("h100").with_link(25e9)
    assert predict(of, linked, typical_host()).withheld is None
    assert "use sysbench time --sync phase" in (predict(of, linked, typical_host(), sync_per_step=True).withheld or "")
    plain = predict(traced()[1], linked, typical_host())
    names = set(plain.constants)
    assert names.isdisjoint({"device_to_host", "host_to_device", "update"})
    said = {name: rate.basis for name, rate in predict(of, linked, typical_host()).constants.items()}
    assert (said["device_to_host"], said["host_to_device"], said["update"]) == ("given", "given", "assumed")


def test_compiled_code_with_an_update_on_the_host_has_no_predicted_time() -> None:
    _, of = traced(offload="optimizer", execution="compiled")
    said = predict(of, gpu("h100").with_link(25e9), typical_host())
    assert said.withheld == "an update on the host after compiled code has no predicted time"


@pytest.mark.parametrize(("optimizer", "update_bytes"), [("fused", 28), ("foreach", 140)])
def test_each_large_gradient_is_copied_once_and_each_large_parameter_updated_and_copied_back(
    optimizer: str, update_bytes: int
) -> None:
    _, of = traced(offload="optimizer", optimizer=optimizer, grad_accum=2)
    large = [500 * 64] * 2 + [64 * 64] * (4 * SHAPE.layers) + [64 * 256] * (3 * SHAPE.layers)  # all but the norms
    for phase in of.phases:
        if phase.name == "backward":  # one of each micro-batch
            assert sorted(each.bytes for each in copies(of, phase)) == sorted(4 * each for each in large)
    (update,) = (phase for phase in of.phases if phase.name == "optimizer")
    assert sorted(each.bytes for each in copies(of, update)) == sorted(4 * each for each in large)
    assert update.host_bytes is not None
    assert sum(update.host_bytes) == update_bytes * sum(large)


def copies(of: Trace, phase: PhaseTrace) -> list[Kernel]:
    return [of.kernels[i] for i in phase.kernels if of.kernels[i].kind == "copy"]


def test_an_update_on_the_host_takes_what_a_loop_over_parameters_takes() -> None:
    host = typical_host()
    steady = replace(host, rates={name: each.model_copy(update={"value": 1e-12}) for name, each in host.rates.items()})
    steady = replace(steady, rates={**steady.rates, "update": host.rates["update"]})
    link, update = 25e9, host.rates["update"].value
    _, of = traced(offload="optimizer", optimizer="fused", batch=1, ctx=8)
    said = predict(of, gpu("h100").with_link(link), steady)
    (phase,) = (phase for phase in of.phases if phase.name == "optimizer")
    assert phase.host_bytes is not None
    host_s = copied_s = 0.0
    moved = [each for each in phase.host_bytes if each]
    each_copy = copies(of, phase)
    assert len(moved) == len(each_copy)
    start_s = said.gpu.rates["kernel_s"].value
    for updated_bytes, kernel in zip(moved, each_copy, strict=True):
        host_s += updated_bytes / update
        copied_s = max(host_s + LAUNCH_LATENCY_S, copied_s + said.gpu.rates["gap_s"].value)
        copied_s += kernel.bytes / link + start_s
    (optimizer,) = (each for each in said.phases if each.name == "optimizer")
    assert optimizer.time.point_s == pytest.approx(copied_s, rel=1e-6)
    assert optimizer.host_s == pytest.approx(host_s, rel=1e-6)


def test_copies_of_gradients_run_beside_backward_and_lengthen_it_only_where_the_link_is_slow() -> None:
    _, of = traced(offload="optimizer", optimizer="fused", ctx=256, batch=16)
    fast, slow = (predict(of, gpu("h100").with_link(each), typical_host()) for each in (1e15, 1e8))
    plain = predict(traced(optimizer="fused", ctx=256, batch=16)[1], gpu("h100"), typical_host())

    def backward(said: StepPrediction) -> PhasePrediction:
        return next(each for each in said.phases if each.name == "backward")

    assert backward(fast).device.point_s == pytest.approx(backward(plain).device.point_s, rel=0.01)
    copied = sum(kernel.bytes for phase in of.phases if phase.name == "backward" for kernel in copies(of, phase))
    assert copied / 1e8 < backward(slow).time.point_s < copied / 1e8 + backward(plain).time.point_s
    assert backward(slow).bottleneck.name == "host link"


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


def test_steps_share_the_errors_of_the_kernels_that_they_share() -> None:
    """A step that computes forward again has the same kernels, more of them; one of another context has others."""

    def draws(**changes: object) -> Draws:
        return np.array(predict(traced(precision="bf16", **changes)[1], gpu("h100"), fast_host()).draws_s)

    plain, again, longer = draws(), draws(checkpoint="full"), draws(ctx=64)
    assert np.quantile(again / plain, 0.05) > 1
    assert np.std(np.log(again / plain)) < 0.4 * np.std(np.log(longer / plain))


def fast_host() -> HostRates:
    """A host that limits nothing, so that only the device's errors count."""
    typical = typical_host()
    return replace(
        typical, rates={name: rate.model_copy(update={"value": 1e-12}) for name, rate in typical.rates.items()}
    )
