from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sysbench.commands.time.spec import TimeCell, TimeSpec
from sysbench.lab.step import TrainingStep
from sysbench.lab.strategies import blocks, distributed
from sysbench.lab.workload.workload import Batch
from tests.cli.running import made_once
from tests.lab.two_ranks import RANKS, Step, result_of

STRATEGIES = ("ddp", "fsdp2", "tp")
OPTIMIZERS = ("foreach", "for-loop")

ACCUMULATED = {"batch": 1, "grad_accum": 3}
"""The three sequences of a rank one by one."""

KNOBS: dict[str, dict[str, Any]] = {
    "small buckets": {"strategy": "ddp", "bucket_mb": 1},
    "gradients as views of buckets": {"strategy": "ddp", "gradient_as_bucket_view": "on"},
    "parameters kept after forward": {"strategy": "fsdp2", "reshard": "off"},
    "parameters freed after forward": {"strategy": "fsdp2", "reshard": "on"},
    "logits in chunks": {"strategy": "fsdp2", "reshard": "on", "cross_entropy": "chunked-7"},
    "blocks gathered ahead": {"strategy": "fsdp2", "prefetch": 2},
    "mixed precision": {"strategy": "fsdp2", "param_dtype": "bf16", "reduce_dtype": "fp32"},
    "all of DDP's": {"strategy": "ddp", "gradient_as_bucket_view": "on", "bucket_mb": 1, "precision": "bf16"},
    "accumulation": {"strategy": "ddp", **ACCUMULATED},
    "accumulation in views of buckets": {"strategy": "ddp", "gradient_as_bucket_view": "on", **ACCUMULATED},
    "accumulation, exchanged once": {"strategy": "ddp", "bucket_mb": 1, "no_sync": "on", **ACCUMULATED},
    "accumulation in views, exchanged once": {
        "strategy": "ddp",
        "gradient_as_bucket_view": "on",
        "no_sync": "on",
        **ACCUMULATED,
    },
    "accumulation of shards": {"strategy": "fsdp2", **ACCUMULATED},
    "accumulation of whole gradients": {"strategy": "fsdp2", "no_sync": "on", **ACCUMULATED},
    "shards on the host": {"strategy": "fsdp2", "offload": "parameters", **ACCUMULATED},
    "all of FSDP2's": {"strategy": "fsdp2", "reshard": "off", "prefetch": 1, "reduce_dtype": "bf16"},
}

SHARED_STATE: dict[str, dict[str, Any]] = {
    "state": {"strategy": "zero1", "bucket_mb": 1},
    "state, accumulation": {"strategy": "zero1", "bucket_mb": 1, **ACCUMULATED},
    "state and gradients": {"strategy": "zero2", "bucket_mb": 1},
    "state and gradients, accumulation": {"strategy": "zero2", "bucket_mb": 1, **ACCUMULATED},
}

THEIRS = """
from torch import nn


class Theirs(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Embedding(50, 8), nn.ModuleList([]), nn.Linear(8, 50))

    def forward(self, tokens):
        return self[2](self[0](tokens))
"""


def cells(**axes: Any) -> list[TimeCell]:
    small = {"d_model": 16, "d_ff": 32, "layers": 2, "heads": 2, "vocab": 50, "ctx": 8, "batch": 3, "device": "cpu"}
    return list(TimeSpec(**{**small, **axes}).cells())


@pytest.fixture(scope="module")
def distributed_steps(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Step]:
    models = tmp_path_factory.mktemp("models")
    asked = cells(ranks=RANKS, strategy=STRATEGIES, optimizer=OPTIMIZERS)
    (models / "theirs.py").write_text(THEIRS)
    own = TimeSpec(model=f"{models}/theirs.py:Theirs", ranks=RANKS, strategy="fsdp2", ctx=8, batch=3, device="cpu")
    theirs = list(own.cells())
    theirs += [
        cell.model_copy(update={**ACCUMULATED, "strategy": strategy, "no_sync": sync, "size": f"{strategy} {sync}"})
        for cell in theirs
        for strategy, sync in itertools.product(("ddp", "fsdp2"), ("on", None))
    ]
    asked += theirs
    tensor_parallel = {
        "accumulation of parts": {"strategy": "tp", **ACCUMULATED},
        "scaled loss of parts": {"strategy": "tp", "precision": "fp16", "device": "auto"},
    }
    others = KNOBS | tensor_parallel | SHARED_STATE
    asked += [cell for knobs in others.values() for cell in cells(ranks=RANKS, **knobs)]
    written = json.dumps([cell.model_dump(mode="json") for cell in asked])

    def take_steps(folder: Path) -> str:
        found = str(folder / "steps.pt")
        subprocess.run([sys.executable, "-m", "tests.lab.two_ranks", written, found], check=True)
        return found

    steps = torch.load(made_once(tmp_path_factory, "steps-of-two-ranks", take_steps)[0])
    knobs = [(name, "foreach") for name in others]
    names = [(cell.size if cell.own else str(cell.strategy), cell.optimizer) for cell in asked[: -len(knobs)]]
    return dict(zip([*names, *knobs], steps, strict=True))


def one_process(batches: int) -> Step:
    """Return a step on the batches of this many ranks, joined."""
    step = TrainingStep(cells(batch=3)[0], torch.device("cpu"))
    drawn = []
    for rank in range(batches):
        generator = torch.Generator().manual_seed(rank)
        drawn.append(torch.randint(50, (3, 9), generator=generator))
    text = torch.cat(drawn)
    tokens, targets = text[:, :-1], text[:, 1:]
    step.work = type(step.work)(
        **{
            **step.work.__dict__,
            "batches": (
                Batch(
                    (tokens,), {}, lambda logits: nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
                ),
            ),
        }
    )
    return result_of(step)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_distributed_step_equals_one_process_on_the_joined_batch(
    distributed_steps: dict[tuple[str, str], Step], strategy: str, optimizer: str
) -> None:
    found, expected = distributed_steps[strategy, optimizer], one_process(1 if strategy == "tp" else RANKS)
    assert sum(found["losses"]) / RANKS == pytest.approx(expected["loss"], rel=1e-6)
    assert found["gradients"].keys() == expected["gradients"].keys()
    for name, gradient in expected["gradients"].items():
        torch.testing.assert_close(found["gradients"][name], gradient, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(found["parameters"][name], expected["parameters"][name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", KNOBS)
def test_no_knob_changes_the_result_of_a_step(distributed_steps: dict[tuple[str, str], Step], name: str) -> None:
    found, expected = distributed_steps[name, "foreach"], one_process(RANKS)
    in_bf16 = "bf16" in KNOBS[name].values()
    assert sum(found["losses"]) / RANKS == pytest.approx(expected["loss"], rel=2e-3 if in_bf16 else 1e-6)
    for parameter, gradient in expected["gradients"].items():
        difference = (found["gradients"][parameter] - gradient).norm() / gradient.norm()
        assert difference < (0.02 if in_bf16 else 1e-5), parameter
        assert found["gradients"][parameter].dtype == torch.float32


@pytest.mark.parametrize("name", SHARED_STATE)
def test_ranks_that_share_state_update_every_parameter(
    distributed_steps: dict[tuple[str, str], Step], name: str
) -> None:
    found, expected = distributed_steps[name, "foreach"], one_process(RANKS)
    assert sum(found["losses"]) / RANKS == pytest.approx(expected["loss"], rel=1e-6)
    assert not found["gradients"]  # they are released once they are reduced
    for parameter, value in expected["parameters"].items():
        torch.testing.assert_close(found["parameters"][parameter], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["ddp on", "ddp None", "fsdp2 on", "fsdp2 None"])
def test_a_model_of_the_users_accumulates_the_same_gradients(
    distributed_steps: dict[tuple[str, str], Step], name: str
) -> None:
    found, expected = distributed_steps[name, "foreach"], distributed_steps["Theirs", "foreach"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    for parameter, gradient in expected["gradients"].items():
        torch.testing.assert_close(found["gradients"][parameter], gradient, rtol=1e-5, atol=1e-7)


def test_tensor_parallel_ranks_accumulate_the_same_gradients(distributed_steps: dict[tuple[str, str], Step]) -> None:
    found, expected = distributed_steps["accumulation of parts", "foreach"], one_process(1)
    assert found["losses"] == pytest.approx([expected["loss"]] * RANKS, rel=1e-6)
    for parameter, gradient in expected["gradients"].items():
        torch.testing.assert_close(found["gradients"][parameter], gradient, rtol=1e-5, atol=1e-7)


def test_tensor_parallel_ranks_unscale_the_gradients_of_whole_and_of_sharded_parameters(
    distributed_steps: dict[tuple[str, str], Step],
) -> None:
    found, expected = distributed_steps["scaled loss of parts", "foreach"], one_process(1)
    for name, gradient in expected["gradients"].items():
        assert (found["gradients"][name] - gradient).norm() / gradient.norm() < 0.02, name
        torch.testing.assert_close(found["parameters"][name], expected["parameters"][name], rtol=1e-2, atol=1e-3)


def test_the_ranks_of_data_parallel_strategies_have_batches_of_their_own(
    distributed_steps: dict[tuple[str, str], Step],
) -> None:
    assert len(set(distributed_steps["ddp", "foreach"]["losses"])) == RANKS
    assert len(set(distributed_steps["tp", "foreach"]["losses"])) == 1


def test_a_sharded_model_of_the_users_keeps_its_name(distributed_steps: dict[tuple[str, str], Step]) -> None:
    step = distributed_steps["Theirs", "foreach"]
    assert step["class"] == "Theirs"
    assert step["gradients"]["2.weight"].shape == (50, 8)


def test_blocks_are_the_repeated_modules_wherever_they_are() -> None:
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(3)]
    model = nn.ModuleDict({"body": nn.ModuleDict({"layers": nn.ModuleList(layers)}), "head": nn.Linear(4, 4)})
    assert list(blocks(model)) == layers


def test_a_model_of_the_users_says_itself_what_tensor_parallelism_splits() -> None:
    from sysbench.errors import UnavailableError

    class Splitting(nn.Linear):
        def parallelize(self, mesh: object) -> None:
            self.split_over = mesh

    mesh: Any = object()
    (cell,) = cells(ranks=2, strategy="tp")
    model = Splitting(2, 2)
    assert distributed(model, cell, mesh) is model
    assert model.split_over is mesh
    with pytest.raises(UnavailableError, match=r"which layers of Linear to split. .*parallelize\(mesh\)"):
        distributed(nn.Linear(2, 2), cell, mesh)
