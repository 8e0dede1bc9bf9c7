"""Profiles of real steps on the CPU, read back: what is known of the model beforehand is what its profile says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sysbench.commands.profile.measure import run
from sysbench.commands.profile.spec import ProfileCell, ProfileSpec
from sysbench.log.events import DeviceInfo
from sysbench.trace import traces
from sysbench.trace.summarise import summarise
from sysbench.trace.summary import ProfileSummary

CPU = DeviceInfo(name="a processor", type="cpu")
LAYERS = 2
SHAPE: dict[str, Any] = {"d_model": 32, "d_ff": 48, "layers": LAYERS, "heads": 2, "vocab": 40, "batch": 2, "ctx": 16}
ATTENTION = [f"attention.{name}" for name in ("q", "k", "v", "output", "attend.scores", "attend.output")]
FEED_FORWARD = [f"feed_forward.{name}" for name in ("w1", "w2", "w3")]
PRODUCTS = ["lm_head", *(f"layers.{layer}.{name}" for layer in range(LAYERS) for name in ATTENTION + FEED_FORWARD)]
"""Every module with a product in it."""


def profiled(path: Path, **fields: Any) -> tuple[ProfileCell, ProfileSummary]:
    spec: dict[str, Any] = {**SHAPE, "device": "cpu", "warmup": 1, **fields}
    (cell,) = ProfileSpec(**spec).cells()
    list(run(cell, CPU, path))
    return cell, summarise(traces.read(path), cell)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> ProfileSummary:
    return profiled(tmp_path_factory.mktemp("trained") / "trace.json", mode="train", active=2)[1]


def products(summary: ProfileSummary) -> Counter[tuple[str, str]]:
    """Batched products per step, by phase and module."""
    found: Counter[tuple[str, str]] = Counter()
    spent = summary.spent
    for phase, module, kernel, calls in zip(spent.phase, spent.module, spent.kernel, spent.calls, strict=True):
        if summary.names[kernel].name == "aten::bmm":
            found[summary.phases[phase], summary.modules[module]] += calls
    return Counter({key: calls // summary.steps for key, calls in found.items()})


def test_every_product_in_backward_lands_in_the_module_that_caused_it(trained: ProfileSummary) -> None:
    found = products(trained)
    assert found == {
        **{("forward", module): 1 for module in PRODUCTS},
        **{("backward", module): 2 for module in PRODUCTS},
    }


def test_backward_outside_modules_is_only_what_no_module_caused(trained: ProfileSummary) -> None:
    """The loss is no module, residual sums are the layers' own, and gradients are added up by no forward operator."""
    spent = trained.spent
    outside = {
        trained.names[kernel].name
        for phase, module, kernel in zip(spent.phase, spent.module, spent.kernel, strict=True)
        if trained.phases[phase] == "backward" and not trained.modules[module]
    }
    assert not {name for name in outside if "Bmm" in name or "Embedding" in name or "Sigmoid" in name}
    assert "aten::bmm" not in outside


def test_every_phase_of_a_step_is_found_and_nothing_is_left_over(trained: ProfileSummary) -> None:
    assert trained.steps == 2
    spent_ns = Counter[str]()
    for phase, total_ns in zip(trained.spent.phase, trained.spent.total_ns, strict=True):
        spent_ns[trained.phases[phase]] += total_ns
    assert set(spent_ns) >= {"forward", "loss", "backward", "optimizer"}
    assert sum(spent_ns.values()) <= trained.window_ns
    assert trained.unlinked_ns == 0


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("inference", {"matrix products in forward": 9 * LAYERS + 1}),
        ("forward", {"matrix products in forward": 9 * LAYERS + 1}),
        (
            "forward-backward",
            {"matrix products in forward": 9 * LAYERS + 1, "matrix products in backward": 2 * (9 * LAYERS + 1)},
        ),
    ],
)
def test_a_naive_pass_is_checked_for_its_nine_products_a_layer_and_one(
    tmp_path: Path, mode: str, expected: dict[str, int]
) -> None:
    _, summary = profiled(tmp_path / "trace.json", mode=mode)
    assert {check.name: check.expected for check in summary.checks} == expected
    assert {check.name: check.found for check in summary.checks} == expected


def test_a_profile_that_lacks_products_fails_its_check(tmp_path: Path) -> None:
    """Held against a model with a layer more than the one that was profiled."""
    cell, _ = profiled(tmp_path / "trace.json", mode="forward")
    (larger,) = ProfileSpec(**{**SHAPE, "device": "cpu", "layers": LAYERS + 1, "mode": "forward"}).cells()
    (check,) = summarise(traces.read(tmp_path / "trace.json"), larger).checks
    assert check.found == 9 * LAYERS + 1
    assert check.expected == 9 * (LAYERS + 1) + 1
    assert cell.key != larger.key


def test_fused_attention_is_not_held_against_the_products_of_the_naive_one(tmp_path: Path) -> None:
    _, summary = profiled(tmp_path / "trace.json", mode="forward", attention="sdpa")
    assert summary.checks == []
