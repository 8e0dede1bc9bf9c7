"""Kernels that Inductor generates for a GPU that is not there: bytes and elements, counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding

from sysbench.predict.trace import Kernel
from tests.bench.published_models import recorded

ROWS, WIDTH = 64, 1000
TABLE, IDS = 5000, 32
FLOAT, INTEGER = 4, 8

CASES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "elementwise": lambda x, bias, table, ids: (x * 2 + bias).relu(),
    "rows": lambda x, bias, table, ids: torch.softmax(x + bias, -1),
    "slice": lambda x, bias, table, ids: x[:, :100] * 2,
    "gather": lambda x, bias, table, ids: embedding(ids, table) * 2,
}


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    """The only kernel of each case."""

    def made() -> Callable[[], Iterator[str]]:
        compiled = {name: torch.compile(function) for name, function in CASES.items()}
        x, bias, table = torch.zeros(ROWS, WIDTH), torch.zeros(WIDTH), torch.zeros(TABLE, WIDTH)
        ids = torch.zeros(IDS, dtype=torch.int64)

        def step() -> Iterator[str]:
            for name, function in compiled.items():
                yield name
                function(x, bias, table, ids)

        return step

    trace = recorded(made, training=False, compiled=True)
    assert trace.compiled
    assert [phase.name for phase in trace.phases] == list(CASES)
    return {phase.name: trace.kernels[position] for phase in trace.phases for position in phase.kernels}


def test_elementwise_operators_are_one_kernel_that_reads_each_input_once_and_writes_one_result(
    kernels: dict[str, Kernel],
) -> None:
    name = "triton_poi_fused_add_mul_relu_0"
    moved_bytes = FLOAT * (2 * ROWS * WIDTH + WIDTH)
    assert kernels["elementwise"] == Kernel("map", name, "fp32", moved_bytes, ROWS * WIDTH)


def test_a_softmax_of_a_sum_is_one_kernel_over_rows(kernels: dict[str, Kernel]) -> None:
    found = kernels["rows"]
    assert "softmax" in found.name
    assert (found.kind, found.dims, found.elements) == ("softmax", (ROWS, WIDTH), ROWS * WIDTH)
    assert found.bytes == FLOAT * (2 * ROWS * WIDTH + WIDTH)


def test_of_a_slice_or_a_table_only_what_is_read_counts(kernels: dict[str, Kernel]) -> None:
    assert kernels["slice"].bytes == FLOAT * 2 * ROWS * 100
    assert kernels["gather"].bytes == FLOAT * 2 * IDS * WIDTH + INTEGER * IDS
