"""Bounds from few layers, against simulations of the whole model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sysbench.commands.fit.measure import Simulations, search_with
from sysbench.commands.fit.record import Trial
from sysbench.commands.fit.search.processes import Processes
from sysbench.commands.fit.search.trials import bounds, outcome_of, simulated
from sysbench.commands.fit.spec import FitCell, FitSpec
from sysbench.commands.fit.suggestions import worth_showing
from sysbench.simulate.depths import depths_for_lines, layers_of, with_layers

LAYERS = 12
GPU = "a100-40gb"
SHAPE = {"d_model": (1024,), "d_ff": (4096,), "layers": (LAYERS,), "heads": (16,), "gpus": (GPU,)}


KEPT = ("lora", "ranks", "precision", "optimizer", "optimizer-in-backward")


def question(budget_gib: int | None = None, **changed: object) -> FitCell:
    (cell,) = FitSpec(**{**SHAPE, "ctx": (512,), "batch": (8,), "keep": KEPT, **changed}).cells()
    return cell.model_copy(update={"budget": budget_gib * 2**30 if budget_gib else None})


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"checkpoint": ("full",)},
        {"checkpoint": ("every-2",), "optimizer": ("fused",)},
        {"cross_entropy": ("chunked",), "attention": ("sdpa",)},
        {"grad_accum": (2,), "precision": ("bf16",)},
        {"optimizer_in_backward": ("on",), "checkpoint": ("selective",)},
    ],
)
def test_two_shallow_models_bound_time_and_memory_of_a_deep_one_from_below(knobs: dict[str, object]) -> None:
    asked = question(**knobs)
    depths = depths_for_lines(asked)
    assert depths is not None
    *smaller, deep = (with_layers(asked, layers) for layers in depths)
    found, trial = bounds(smaller, depths, (), [GPU])[GPU], simulated(deep, (), GPU)
    assert trial is not None
    whole = outcome_of(trial)
    assert found.step_s <= whole.step_s <= found.step_s * 1.01
    assert found.needed_bytes <= whole.needed_bytes
    assert found.tensors_bytes >= 0.97 * whole.tensors_bytes


@pytest.mark.parametrize("budget_gib", [5, pytest.param(7, marks=pytest.mark.slow)])
def test_a_search_with_bounds_shows_what_one_without_them_shows(budget_gib: int) -> None:
    asked = question(budget_gib, precision=("bf16",), keep=(*KEPT, "batch", "cross-entropy"))
    assert depths_for_lines(asked) is not None
    shown = []
    for depths, count in ((None, 1), (depths_for_lines(asked), 2)):
        with Processes(count) as processes:
            tried = [
                Trial(**event.model_dump(include=set(Trial.model_fields)))
                for event in search_with(Simulations(asked, depths), processes)
            ]
        parts = worth_showing(tried, [GPU], faster=False)
        shown.append(([trial.model_dump() for _, _, part in parts for trial in part], len(tried)))
    (without, all_tried), (with_bounds, few) = shown
    assert with_bounds == without
    assert without
    assert few < all_tried


def test_checkpoints_every_n_layers_are_estimated_from_multiples_of_n() -> None:
    assert depths_for_lines(question(layers=(48,), checkpoint=("every-4",))) == (4, 8, 48)
    assert depths_for_lines(question(layers=(48,), checkpoint=("full",))) == (2, 4, 48)


def test_a_model_with_few_layers_is_simulated_whole() -> None:
    assert depths_for_lines(question(layers=(8,))) is None


def test_the_layers_of_a_config_are_those_of_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 24}))
    (asked,) = FitSpec(model=(f"hf:{tmp_path}",), gpus=(GPU,)).cells()
    assert (layers_of(asked), layers_of(with_layers(asked, 4))) == (24, 4)


def test_code_of_the_user_is_simulated_whole(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Gpt: ...\n")
    (asked,) = FitSpec(model=("mine.py:Gpt",), app_dir=str(tmp_path), gpus=(GPU,)).cells()
    assert depths_for_lines(asked) is None
