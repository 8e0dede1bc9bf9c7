"""Measures kernels that move data: elementwise ones, reductions, broadcasts and transposing copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from sysbench.commands.calibrate.record import RateName
from sysbench.commands.calibrate.spec import CalibrateCell
from sysbench.commands.calibrate.timing import Bench, Timed
from sysbench.spec.cell import DeviceType

SIDES: Mapping[DeviceType, int] = {"cuda": 9216, "mps": 4096, "cpu": 2048}
"""Sides of square fp32 tensors. On a GPU three take 1 GB, far more than its L2; on a CPU, where a model's tensors are
as large as its caches, each takes 16 MiB."""

SMALL_SIDE = 256
"""Side of a tensor of 256 KiB, which fits into caches."""

MEMORY_SHARE = 1 / 8
"""Share of the device's memory that the tensors may take together."""

ITEM_BYTES = 4


def memory(cell: CalibrateCell, bench: Bench) -> Iterator[Timed]:
    """Time kernels that allocate their results, as a model does; on a CPU, allocating costs as much as filling."""
    side = SIDES[bench.info.type]
    while bench.info.memory_bytes and 4 * ITEM_BYTES * side * side > MEMORY_SHARE * bench.info.memory_bytes:
        side //= 2
    one, other = (torch.rand(side, side, device=bench.device) for _ in range(2))
    row = torch.rand(side, device=bench.device)
    small, other_small = (torch.rand(SMALL_SIDE, SMALL_SIDE, device=bench.device) for _ in range(2))
    elements, small_elements = float(side * side), float(SMALL_SIDE * SMALL_SIDE)
    shape, small_shape = f"{side} × {side}", f"{SMALL_SIDE} × {SMALL_SIDE}"
    cases: tuple[tuple[RateName, str, bool, float, Callable[[], object]], ...] = (
        ("stream", f"add {shape}", True, 3 * ITEM_BYTES * elements, lambda: torch.add(one, other)),
        ("stream", f"copy {shape}", True, 2 * ITEM_BYTES * elements, lambda: one.clone()),
        ("stream", f"add {small_shape}", False, 3 * ITEM_BYTES * small_elements, lambda: small + other_small),
        ("reduce", f"sum of rows {shape}", True, ITEM_BYTES * elements, lambda: one.sum(-1)),
        ("reduce", f"softmax of rows {shape}", True, 2 * ITEM_BYTES * elements, lambda: one.softmax(-1)),
        ("indexed", f"times a row {shape}", True, elements, lambda: one * row),
        ("transpose", f"transposing copy {shape}", True, elements, lambda: one.t().contiguous()),
    )
    for rate, case, counts, work, call in cases:
        yield Timed(rate, case, counts, work, bench.seconds(call, 1 / len(cases)))
