"""What is fused, against cases counted by hand: bytes of storages are told apart by size."""

from __future__ import annotations

from sysbench.predict.fusing import Flow, fuse
from sysbench.predict.trace import Kernel, Kind, Stage

X, W, H, A, B, G = range(6)


def flow(kind: Kind, reads: dict[int, int], writes: dict[int, int]) -> Flow:
    kernel = Kernel(kind, kind, "fp32", sum(reads.values()) + sum(writes.values()), 1, flops=7 if kind == "gemm" else 0)
    return Flow((kernel,), reads, writes, "")


def bytes_of(**phases: list[Flow]) -> list[tuple[str, str, int]]:
    stages = {Stage(phase): flows for phase, flows in phases.items()}
    return [(stage.phase, kernel.kind, kernel.bytes) for stage, _, kernels in fuse(stages) for kernel in kernels]


PRODUCT = flow("gemm", {X: 1, W: 2}, {H: 4})


def test_a_chain_reads_what_it_did_not_make_once_and_writes_what_is_needed_elsewhere() -> None:
    chain = [flow("map", {H: 4}, {A: 8}), flow("map", {A: 8, H: 4}, {B: 16})]
    last = flow("gemm", {B: 16}, {G: 32})
    assert bytes_of(forward=[PRODUCT, *chain, last]) == [
        ("forward", "gemm", 7), ("forward", "map", 4 + 16), ("forward", "gemm", 48)
    ]  # fmt: skip


def test_a_product_in_between_parts_a_chain() -> None:
    before, after = flow("map", {X: 1}, {A: 8}), flow("map", {X: 1, H: 4}, {B: 16})
    through = flow("gemm", {A: 8, W: 2}, {H: 4})
    assert bytes_of(forward=[before, through, after]) == [
        ("forward", "map", 1 + 8), ("forward", "gemm", 14), ("forward", "map", 1 + 4 + 16)
    ]  # fmt: skip


def test_what_only_fused_kernels_of_backward_want_is_computed_again_and_not_kept() -> None:
    forward = [PRODUCT, flow("map", {H: 4}, {A: 8}), flow("map", {A: 8}, {B: 16}), flow("gemm", {B: 16}, {G: 32})]
    backward = [flow("map", {A: 8, G: 32}, {7: 64})]
    found = bytes_of(forward=forward, backward=backward)
    assert found[1] == ("forward", "map", 4 + 16)
    assert found[3] == ("backward", "map", 32 + 64)


def test_what_a_product_of_backward_wants_is_kept() -> None:
    forward = [PRODUCT, flow("map", {H: 4}, {A: 8}), flow("map", {A: 8}, {B: 16})]
    backward = [flow("gemm", {A: 8, B: 16}, {7: 64})]
    assert bytes_of(forward=forward, backward=backward)[1] == ("forward", "map", 4 + 8 + 16)


def test_what_eager_phases_launch_is_left_to_them_and_keeps_what_they_read() -> None:
    forward = [PRODUCT, flow("map", {H: 4}, {A: 8}), flow("map", {A: 8}, {B: 16})]
    assert bytes_of(forward=forward, loss=[flow("map", {A: 8}, {G: 32})])[1:] == [("forward", "map", 4 + 8 + 16)]


def test_a_chain_that_sums_over_rows_is_row_wise() -> None:
    rows = Flow((Kernel("reduce", "sum", "fp32", 12, 4, dims=(2, 2), layout="rows"),), {A: 8}, {B: 4}, "")
    assert bytes_of(forward=[PRODUCT, flow("map", {H: 4}, {A: 8}), rows])[1] == ("forward", "softmax", 4 + 4)
