"""Work of one of several ranks, against what all ranks compute together."""

from __future__ import annotations

from typing import Any

from sysbench.commands.profile.spec import ProfileCell, ProfileSpec
from sysbench.trace.kernels.work import attention_parts, expected_products


def cell_of(**fields: Any) -> ProfileCell:
    (cell,) = ProfileSpec(size="tiny", ctx=64, **fields).cells()
    return cell


def test_tensor_parallel_ranks_share_the_work_of_attention() -> None:
    alone, one_of_two = cell_of(), cell_of(ranks=2, strategy="tp")
    for part, amount in attention_parts(alone).items():
        of_rank = attention_parts(one_of_two)[part]
        assert amount.flops is not None
        assert (of_rank.flops, of_rank.bytes) == (amount.flops // 2, (amount.bytes or 0) // 2)
    assert expected_products(one_of_two) == {}
