from __future__ import annotations

import pytest
from pydantic import ValidationError

from sysbench.commands.memory.spec import MemorySpec
from sysbench.commands.time.spec import TimeCell, TimeSpec
from sysbench.spec.model import KNOBS
from sysbench.spec.ranks import layout


def cells(**axes: object) -> list[TimeCell]:
    return list(TimeSpec.model_validate({"ctx": 128, **axes}).cells())


def test_every_number_of_ranks_is_combined_with_every_strategy_and_one_rank_has_none() -> None:
    grid = cells(ranks="1,2,4", strategy="ddp,fsdp2")
    assert [(cell.ranks, cell.strategy) for cell in grid] == [
        (1, None),
        (2, "ddp"),
        (2, "fsdp2"),
        (4, "ddp"),
        (4, "fsdp2"),
    ]
    assert [(cell.ranks, cell.strategy) for cell in cells(ranks=2)] == [(2, "ddp")]


def test_a_cell_of_one_rank_is_written_down_without_ranks_and_keeps_its_key() -> None:
    (cell,) = cells()
    assert not {"ranks", "strategy"} & {*cell.model_dump(mode="json"), *TimeSpec(ctx=128).model_dump(mode="json")}
    assert cells(ranks=1)[0].key == cell.key
    keys = {each.key for each in cells(ranks="1,2,4", strategy="ddp,tp")}
    assert len(keys) == 5


def test_tensor_parallel_ranks_share_one_batch_and_all_others_have_their_own() -> None:
    assert [cell.batches for cell in cells(ranks="1,4", strategy="ddp,fsdp2,hsdp,tp")] == [1, 4, 4, 4, 1]


def test_a_strategy_without_ranks_is_refused() -> None:
    for spec in (TimeSpec, MemorySpec):
        for ranks in ({}, {"ranks": "1"}):
            with pytest.raises(ValidationError, match=r"--strategy tp distributes a model over ranks\. Add --ranks 2"):
                spec.model_validate({"strategy": "tp", **ranks})


def test_a_strategy_has_the_knobs_that_belong_to_it_and_no_others() -> None:
    knobs = {"bucket_mb": "5,100", "reshard": "off,2", "param_dtype": "bf16", "prefetch": "1"}
    grid = cells(ranks="1,4", strategy="ddp,fsdp2,tp", **knobs)
    assert [(cell.strategy, cell.bucket_mb, cell.reshard, cell.prefetch, cell.compute_precision) for cell in grid] == [
        (None, None, None, None, "fp32"),
        ("ddp", 5, None, None, "fp32"),
        ("ddp", 100, None, None, "fp32"),
        ("fsdp2", None, "off", 1, "bf16"),
        ("fsdp2", None, 2, 1, "bf16"),
        ("tp", None, None, None, "fp32"),
    ]


def test_steps_of_several_micro_batches_alone_choose_when_gradients_are_exchanged() -> None:
    grid = cells(ranks="1,2", strategy="fsdp2,tp", grad_accum="1,4", no_sync="on,off")
    assert [(cell.strategy, cell.grad_accum, cell.no_sync) for cell in grid] == [
        (None, 1, None),
        (None, 4, None),
        ("fsdp2", 1, None),
        ("fsdp2", 4, "on"),
        ("fsdp2", 4, "off"),
        ("tp", 1, None),
        ("tp", 4, None),
    ]
    assert [cell.batches for cell in grid] == [1, 4, 2, 8, 8, 1, 4]
    assert "grad_accum" not in grid[0].model_dump()
    assert grid[0].key == cells()[0].key != grid[1].key


def test_a_mode_without_backward_accumulates_nothing() -> None:
    (cell,) = cells(grad_accum=4, mode="forward")
    assert str(cell.problem(None)).startswith("--grad-accum 4 adds up the gradients of several backward passes")
    assert cells(grad_accum=4, mode="forward-backward")[0].problem(None) is None
    assert [cell.mode for cell in MemorySpec.model_validate({"ctx": 128, "grad_accum": 4}).cells()] == ["train"]


def test_knobs_that_are_not_given_leave_no_trace_and_every_value_has_a_key() -> None:
    (plain,) = cells(ranks=4, strategy="fsdp2")
    assert not set(KNOBS) & {*plain.model_dump(mode="json")}
    grid = cells(ranks=4, strategy="fsdp2", reshard="on,off,2", prefetch="0,1", reduce_dtype="fp32,bf16")
    assert len({plain.key, *(cell.key for cell in grid)}) == 13
    assert [TimeCell.model_validate_json(cell.model_dump_json()) for cell in grid] == grid


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"bucket_mb": 5}, "--bucket-mb 5 distributes a model over ranks. Add --ranks 2"),
        ({"ranks": 2, "reshard": "off"}, "--reshard applies to --strategy fsdp2, hsdp; this run has ddp"),
        (
            {"ranks": 2, "strategy": "fsdp2,tp", "gradient_as_bucket_view": "on"},
            "--gradient-as-bucket-view applies to --strategy ddp; this run has fsdp2, tp",
        ),
        ({"no_sync": "on", "grad_accum": 2}, "--no-sync on distributes a model over ranks. Add --ranks 2"),
        (
            {"ranks": 2, "no_sync": "on,off"},
            "--no-sync on,off controls the exchange of gradients between micro-batches, but each step has only one. "
            "Add --grad-accum 2",
        ),
        (
            {"ranks": 2, "strategy": "tp", "no_sync": "on", "grad_accum": 2},
            "--no-sync applies to --strategy ddp, fsdp2, hsdp; this run has tp",
        ),
        ({"ranks": 2, "bucket_mb": 0}, "0 is out of range: it must be 1 to 65536. Nearest: 1"),
        ({"ranks": 2, "strategy": "fsdp2", "reshard": "1"}, "1 is not on, off, or a number of ranks from 2"),
        ({"ranks": 2, "strategy": "fsdp2", "param_dtype": "fp16"}, "fp16 is not a type. Did you mean"),
    ],
)
def test_a_knob_that_means_nothing_is_refused(axes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace(".", r"\.")):
        cells(**axes)


def test_groups_of_resharded_ranks_divide_the_shards() -> None:
    (cell,) = cells(ranks=32, strategy="hsdp", reshard=3)
    assert str(cell.problem("cpu")) == (
        "--reshard 3 does not divide the 8 ranks of a --strategy hsdp shard group. Use one of on, off, 2, 4. Nearest: 2"
    )
    assert cells(ranks=32, strategy="hsdp", reshard=4)[0].problem("cpu") is None


def test_the_fewest_ranks_are_looked_for_with_the_knobs_of_fsdp2() -> None:
    (cell,) = MemorySpec(simulate="h100", find="ranks", reshard="off", ctx=128, mode="train").cells()  # type: ignore[arg-type]
    assert (cell.strategy, cell.reshard) == ("fsdp2", "off")


@pytest.mark.parametrize(
    ("strategy", "ranks", "expected"),
    [
        (None, 1, (1, 1)),
        ("ddp", 4, (4, 1)),
        ("fsdp2", 4, (1, 4)),
        ("tp", 4, (1, 4)),
        ("hsdp", 4, (2, 2)),
        ("hsdp", 8, (2, 4)),
        ("hsdp", 32, (4, 8)),
    ],
)
def test_hsdp_shards_within_a_node_and_replicates_over_nodes(strategy: str, ranks: int, expected: object) -> None:
    assert layout(strategy, ranks) == expected  # type: ignore[arg-type]
