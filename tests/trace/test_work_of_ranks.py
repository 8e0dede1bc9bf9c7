"""Work of one of several ranks, against what all ranks compute together."""

from __future__ import annotations

from typing import Any

import pytest

from sysbench.commands.profile.spec import ProfileCell, ProfileSpec
from sysbench.trace.kernels.work import attention_parts, class_amounts, expected_products


def cell_of(**fields: Any) -> ProfileCell:
    (cell,) = ProfileSpec(size="tiny", ctx=64, **fields).cells()
    return cell


def test_tensor_parallel_ranks_share_the_work_of_layers_and_each_has_that_of_the_output_head() -> None:
    alone, one_of_two = cell_of(), cell_of(ranks=2, strategy="tp")
    for part, amount in attention_parts(alone).items():
        of_rank = attention_parts(one_of_two)[part]
        assert amount.flops is not None
        assert (of_rank.flops, of_rank.bytes) == (amount.flops // 2, (amount.bytes or 0) // 2)
    assert alone.shape is not None
    head = 2 * alone.tokens * alone.shape.d_model * alone.shape.vocab
    whole, of_rank = (class_amounts(each, fused=False)["matmul", "forward"].flops for each in (alone, one_of_two))
    assert whole is not None
    assert of_rank == (whole - head) // 2 + head
    assert expected_products(one_of_two) == {}


@pytest.mark.parametrize(("strategy", "shards"), [("ddp", 1), ("fsdp2", 4), ("hsdp", 2)])
def test_a_rank_updates_its_shards_of_the_parameters(strategy: str, shards: int) -> None:
    alone, of_rank = (class_amounts(each, fused=False) for each in (cell_of(), cell_of(ranks=4, strategy=strategy)))
    assert alone["matmul", "forward"] == of_rank["matmul", "forward"]
    whole = alone["optimizer", "optimizer"].flops
    assert whole is not None
    assert of_rank["optimizer", "optimizer"].flops == pytest.approx(whole / shards, rel=1e-6)
