from __future__ import annotations

import pytest
from pydantic import ValidationError

from sysbench.commands.memory.spec import MemorySpec
from sysbench.commands.time.spec import TimeCell, TimeSpec
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
            with pytest.raises(ValidationError, match="--strategy tp distributes a model over ranks: add --ranks 2"):
                spec.model_validate({"strategy": "tp", **ranks})


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
