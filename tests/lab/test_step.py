"""A step is what its mode says: phases apart, autocast where it belongs, an optimizer that moves something."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from sysbench.errors import UnavailableError
from sysbench.lab.knobs.optimizers import LEARNING_RATE
from sysbench.lab.ranges import visible_to
from sysbench.lab.step import TrainingStep
from sysbench.lab.workload.inputs import random_tokens
from sysbench.spec.grid import ModelShape
from sysbench.spec.model import ModelCell
from sysbench.spec.steps import PHASES_OF, AdamW, Mode
from tests.small_cells import SMALL_STEP

CPU = torch.device("cpu")
SHAPE = ModelShape(d_model=16, d_ff=24, layers=2, heads=2, vocab=31)


def cell(**changes: Any) -> ModelCell:
    return ModelCell(**{**SMALL_STEP, "model": SHAPE, "ctx": 9, "batch": 3, **changes})


def take(step: TrainingStep) -> None:
    step.forget()
    for _, phase in step.phases:
        phase()


def gradients(step: TrainingStep) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in step.model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_mode_is_the_named_sum_of_its_phases(mode: Mode) -> None:
    assert tuple(dict(TrainingStep(cell(mode=mode), CPU).phases)) == PHASES_OF[mode]


STEP_IN_A_FRESH_PROCESS = f"""
import sys, torch
from sysbench.spec.model import ModelCell
from sysbench.lab.step import TrainingStep
cell = ModelCell.model_validate_json({cell(mode="forward-backward").model_dump_json()!r})
step = TrainingStep(cell, torch.device("cpu"))
for _, phase in step.phases:
    phase()
print("torch._dynamo" in sys.modules)
"""


def test_a_step_without_an_optimizer_does_not_wait_for_torchs_compiler_to_be_imported() -> None:
    command = [sys.executable, "-c", STEP_IN_A_FRESH_PROCESS]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"]


def test_the_loss_of_untrained_weights_is_near_that_of_guessing() -> None:
    step = TrainingStep(cell(), CPU)
    take(step)
    assert step.loss == pytest.approx(math.log(SHAPE.vocab), rel=0.3)


def test_the_loss_is_the_mean_negative_log_likelihood_of_the_tokens_that_follow() -> None:
    step = TrainingStep(cell(mode="forward-backward"), CPU)
    take(step)
    assert step.output is not None
    likelihoods = torch.softmax(step.output.detach().double(), dim=-1)
    ((_, targets),) = random_tokens(SHAPE.vocab, cell(), CPU)
    picked = [likelihoods[b, t, targets[b, t]].log() for b in range(3) for t in range(9)]
    assert step.loss == pytest.approx(-sum(picked).item() / len(picked), rel=1e-5)  # type: ignore[union-attr]


def test_targets_are_the_tokens_one_place_on_and_the_seed_decides_them() -> None:
    ((tokens, targets),) = random_tokens(SHAPE.vocab, cell(), CPU)
    assert tokens.shape == targets.shape == (3, 9)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.equal(tokens, random_tokens(SHAPE.vocab, cell(), CPU)[0][0])
    assert not torch.equal(tokens, random_tokens(SHAPE.vocab, cell(seed=1), CPU)[0][0])


def test_accumulated_gradients_are_those_of_the_joined_batch() -> None:
    accumulated, joined = (TrainingStep(cell(batch=batch, grad_accum=n), CPU) for batch, n in ((1, 4), (4, 1)))
    for step in (accumulated, joined):
        take(step)
        take(step)
    assert [name for name, _ in accumulated.phases].count("backward") == 4
    assert accumulated.loss == pytest.approx(joined.loss, rel=1e-5)
    for one, other in zip(gradients(accumulated), gradients(joined), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_training_lowers_the_loss() -> None:
    step = TrainingStep(cell(), CPU)
    losses = []
    for _ in range(30):
        take(step)
        losses.append(step.loss)
    assert losses[-1] < losses[0] - 0.01


def test_inference_builds_no_graph_and_forward_keeps_it_until_forgotten() -> None:
    inference, forward = (TrainingStep(cell(mode=mode), CPU) for mode in ("inference", "forward"))
    take(inference)
    take(forward)
    assert inference.output is not None
    assert inference.output.grad_fn is None
    assert forward.output is not None
    assert forward.output.grad_fn is not None
    forward.forget()
    assert forward.output is None


def test_inference_and_training_compute_the_same_logits() -> None:
    inference, training = (TrainingStep(cell(mode=mode), CPU) for mode in ("inference", "forward-backward"))
    take(inference)
    take(training)
    torch.testing.assert_close(inference.output, training.output)


def test_each_backward_begins_without_gradients() -> None:
    step = TrainingStep(cell(mode="forward-backward"), CPU)
    take(step)
    once = gradients(step)
    take(step)
    assert len(once) == len(list(step.model.parameters()))
    for first, second in zip(once, gradients(step), strict=True):
        torch.testing.assert_close(first, second)  # and not twice as much


def test_zero_grad_frees_gradients() -> None:
    step = TrainingStep(cell(mode="forward-backward"), CPU)
    take(step)
    dict(step.phases)["zero_grad"]()
    assert gradients(step) == []


def test_gradients_and_changed_parameters_are_seen() -> None:
    step = TrainingStep(cell(), CPU)
    before = step.fingerprint()
    assert before is not None
    assert step.gradients_present is False
    take(step)
    after = step.fingerprint()
    assert step.gradients_present is True
    assert after is not None
    assert not torch.equal(before, after)


def test_an_optimizer_without_gradients_is_seen_to_do_nothing() -> None:
    step = TrainingStep(cell(), CPU)
    take(step)
    before = step.fingerprint()
    dict(step.phases)["zero_grad"]()
    dict(step.phases)["optimizer"]()
    after = step.fingerprint()
    assert step.gradients_present is False
    assert before is not None
    assert after is not None
    assert torch.equal(before, after)


def test_what_a_mode_does_not_have_is_unknown() -> None:
    step = TrainingStep(cell(mode="forward"), CPU)
    take(step)
    assert (step.gradients_present, step.fingerprint(), step.loss) == (None, None, None)


def test_a_single_parameter_without_gradient_is_noticed() -> None:
    step = TrainingStep(cell(mode="forward-backward"), CPU)
    take(step)
    step.model.final_norm.gain.grad = None
    assert step.gradients_present is False


@pytest.mark.parametrize("optimizer", get_args(AdamW))
def test_every_optimizer_implementation_is_adamw(optimizer: AdamW) -> None:
    """Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2, with torch's defaults."""
    step = TrainingStep(cell(optimizer=optimizer), CPU)
    weight = step.model.lm_head.weight
    expected = weight.detach().double()
    first = second = torch.zeros_like(expected)
    for t in (1, 2, 3):
        take(step)
        assert weight.grad is not None
        gradient = weight.grad.double()
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        expected = expected - LEARNING_RATE * 0.01 * expected
        corrected = (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
        expected = expected - LEARNING_RATE * corrected
    torch.testing.assert_close(weight.detach().double(), expected, rtol=0, atol=2e-7)


# --- precision -----------------------------------------------------------------------------------------------------


def test_fp32_computes_in_fp32_and_bf16_in_bf16() -> None:
    full, narrow = (TrainingStep(cell(precision=precision), CPU) for precision in ("fp32", "bf16"))
    take(full)
    take(narrow)
    assert full.output is not None
    assert narrow.output is not None
    assert (full.output.dtype, narrow.output.dtype) == (torch.float32, torch.bfloat16)
    difference = (full.output - narrow.output.float()).abs().max().item()
    assert 0 < difference < 0.05 * full.output.abs().max().item()


def test_autocast_keeps_parameters_gradients_and_loss_in_fp32() -> None:
    step = TrainingStep(cell(precision="bf16"), CPU)
    take(step)
    assert {parameter.dtype for parameter in step.model.parameters()} == {torch.float32}
    assert {gradient.dtype for gradient in gradients(step)} == {torch.float32}
    assert step._losses[0].dtype == torch.float32


def test_autocast_covers_forward_and_loss_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    step = TrainingStep(cell(precision="bf16"), CPU)
    seen: dict[str, bool] = {}

    def note(phase: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            seen[phase] = torch.is_autocast_enabled("cpu")
            return run(*arguments, **options)

        return noted

    assert step._optimizer is not None
    monkeypatch.setattr(step._optimizer, "step", note("optimizer", step._optimizer.step))
    monkeypatch.setattr(step, "_run_model", note("forward", step._run_model))
    cross_entropy = torch.nn.functional.cross_entropy
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", note("loss", cross_entropy))
    step.model.lm_head.weight.register_hook(note("backward", lambda gradient: gradient))
    take(step)
    assert seen == {"forward": True, "loss": True, "backward": False, "optimizer": False}


def test_fp16_scales_its_loss_and_unscales_its_gradients_before_the_update() -> None:
    scaled, full = (TrainingStep(cell(precision=precision), CPU) for precision in ("fp16", "fp32"))
    for step in (scaled, full):
        for name in ("zero_grad", "forward", "loss", "backward"):
            dict(step.phases)[name]()
    scale = gradients(scaled)[0].norm() / gradients(full)[0].norm()
    assert scale == pytest.approx(2**16, rel=0.05)
    assert scaled.loss == pytest.approx(full.loss, rel=1e-2)
    dict(scaled.phases)["optimizer"]()
    assert gradients(scaled)[0].norm() == pytest.approx(gradients(full)[0].norm().item(), rel=0.05)


def test_without_fp16_no_loss_is_scaled() -> None:
    assert all(not TrainingStep(cell(precision=p), CPU)._scaler.is_enabled() for p in ("fp32", "bf16", "tf32"))


# --- attention and ranges ------------------------------------------------------------------------------------------


def test_a_step_knows_the_operator_its_attention_runs_as() -> None:
    assert TrainingStep(cell(), CPU).work.attention_kernel == "aten::bmm"
    fused = TrainingStep(cell(attention="sdpa", precision="bf16"), CPU)
    assert fused.work.attention_kernel == "aten::_scaled_dot_product_flash_attention_for_cpu"


def test_a_step_that_cannot_be_had_here_is_refused_before_it_is_taken() -> None:
    with pytest.raises(UnavailableError, match="does not support backward on CPU"):
        TrainingStep(cell(attention="flex"), CPU)
    step = TrainingStep(cell(attention="flex", mode="inference"), CPU)
    take(step)
    written_out = TrainingStep(cell(mode="inference"), CPU)
    take(written_out)
    torch.testing.assert_close(step.output, written_out.output)


def test_a_profiler_sees_the_phases_when_it_is_on_and_only_then() -> None:
    def seen() -> set[str]:
        # Torch 2.11 warns of events that end with a cycle, where they are not said to be kept.
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
            take(step)
        return {event.key for event in profile.key_averages()}

    step = TrainingStep(cell(), CPU)
    with visible_to("record_function"):
        assert seen() >= set(dict(step.phases))
    assert not seen() & set(dict(step.phases))
