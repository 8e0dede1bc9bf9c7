"""What kernels take beside their results: tensors of `meta` have the shapes and strides that decide about it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sysbench.extras import installed_torch
from sysbench.simulate.cuda.kernels import COPIES, SCRATCH, uses_cublas_lt
from sysbench.simulate.cuda.reductions import REDUCTIONS

aten = torch.ops.aten


def _empty(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def _bytes(operator: object, *arguments: object) -> list[int]:
    return [sum(group) for group in SCRATCH[operator](*arguments)]


@pytest.mark.parametrize(
    ("first", "second", "copied"),
    [
        (_empty(2, 5, 7), _empty(2, 7, 3), 0),
        (_empty(2, 7, 5).mT, _empty(2, 3, 7).mT, 0),
        (_empty(2, 5, 20)[:, :, :7], _empty(2, 7, 3), 0),
        (_empty(2, 5, 14)[:, :, ::2], _empty(2, 7, 3), 2 * 2 * 5 * 7),
        (_empty(2, 5, 7), _empty(2, 1, 1).expand(2, 7, 3), 2 * 2 * 7 * 3),
        (_empty(1, 1, 1).expand(2, 5, 7), _empty(2, 1, 1).expand(2, 7, 3), 2 * 2 * (5 * 7 + 7 * 3)),
        (_empty(2, 5, 7), _empty(2, 7, 1), 0),
    ],
)
def test_operands_that_cublas_cannot_stride_through_are_copied(first: Tensor, second: Tensor, copied: int) -> None:
    assert sum(_bytes(aten.bmm.default, first, second)) == copied


def test_matrices_in_rows_or_columns_are_multiplied_where_they_are() -> None:
    assert sum(_bytes(aten.mm.default, _empty(5, 7), _empty(3, 7).mT)) == 0
    assert sum(_bytes(aten.mm.default, _empty(5, 14)[:, ::2], _empty(7, 3))) == 2 * 5 * 7
    assert sum(_bytes(aten.addmm.default, _empty(3), _empty(5, 7), _empty(14, 6)[::2, ::2])) == 2 * 7 * 3


def test_few_tokens_need_nothing_for_the_gradient_of_their_embedding_and_many_are_sorted() -> None:
    operator = aten.embedding_dense_backward.default
    few = _bytes(operator, _empty(4, 768, 64), _empty(4, 768), 10_000, -1, False)
    many = _bytes(operator, _empty(4, 1024, 64), _empty(4, 1024), 10_000, -1, False)
    assert sum(few) == 0
    assert max(many) > (4096 + 4096 // 10) * 64 * 4
    assert max(many) < 1.5 * (4096 + 4096 // 10) * 64 * 4


@pytest.mark.parametrize(("ctx", "rows"), [(128, 128), (300, 384)])
def test_flash_attention_sums_the_gradient_of_its_queries_in_fp32(ctx: int, rows: int) -> None:
    by_position = _empty(2, ctx, 4, 80).transpose(1, 2)
    operator = aten._scaled_dot_product_flash_attention_backward.default
    sums, queries = 4 * 2 * 4 * rows, 4 * 2 * rows * 4 * 96
    assert _bytes(operator, by_position, by_position, by_position, by_position, by_position) == [sums + queries]
    by_head = _empty(2, 4, ctx, 80)
    copy = 2 * 2 * 4 * ctx * 80
    assert COPIES[operator](by_head, by_position, by_position, by_position, by_head) == [copy, copy]
    assert COPIES[operator](by_position, by_position, by_position, by_position, by_position) == []


def test_truth_values_are_summed_as_a_copy_of_whole_numbers() -> None:
    summed = REDUCTIONS[aten.sum.default]
    assert summed(_empty(512, dtype=torch.bool)) == [[8 * 512]]
    assert summed(_empty(512, dtype=torch.int64)) == []


@pytest.mark.skipif(installed_torch() < (2, 15), reason="until then, cuBLAS added matrices")
def test_cublaslt_adds_a_matrix_to_a_product_of_16_bits() -> None:
    """As `torch.cuda.memory._snapshot` shows by the workspace under the fake GPU: Muon's updates are such products."""
    first, second, result = _empty(64, 96), _empty(96, 80), _empty(64, 80)

    def is_lt(added: Tensor, beta: float, **dtype: torch.dtype) -> bool:
        operands = [_empty(*each.shape, **dtype) for each in (added, first, second)]
        return uses_cublas_lt(aten.addmm.default, operands, {"beta": beta}, _empty(64, 80, **dtype))

    assert is_lt(result, 2.0)
    assert not is_lt(result, 0.0)
    assert not is_lt(result, 2.0, dtype=torch.float32)
    assert is_lt(_empty(80), 1.0, dtype=torch.float32)
    assert not is_lt(_empty(80), 2.0)


def test_efficient_attention_needs_more_for_wide_heads_and_for_fp32() -> None:
    forward = aten._scaled_dot_product_efficient_attention.default
    wide, narrow = _empty(2, 4, 128, 160), _empty(2, 4, 128, 64)
    assert sum(_bytes(forward, narrow, narrow, narrow)) == 0
    assert sum(_bytes(forward, wide, wide, wide)) == 4 * wide.numel()
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    full = _empty(2, 128, 4, 64, dtype=torch.float32).transpose(1, 2)
    assert len(_bytes(backward, full, full, full, full, None)) == 2
    # The gradient of the queries in fp32, tile by tile, with 16 bytes of locks for each.
    tiles = 2 * 4 * 2
    delta = 4 * 2 * 4 * 128
    by_position = _empty(2, 128, 4, 64).transpose(1, 2)
    expected = delta + tiles * (4 * 64 * 64 + 16)
    assert _bytes(backward, by_position, by_position, by_position, by_position, None) == [expected]


def test_a_softmax_that_is_safe_takes_what_is_masked_and_its_gradient_a_product() -> None:
    scores = _empty(2, 3, 5, 7, dtype=torch.float32)
    masked, rows, _ = SCRATCH[aten._safe_softmax.default](scores, -1)[0]
    assert (masked, rows) == (scores.numel(), 2 * 3 * 5)
    assert _bytes(aten._softmax_backward_data.default, scores, scores, -1, torch.float32) == [4 * 210]
