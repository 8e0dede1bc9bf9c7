"""Time against FLOPs and bytes: what the parts of attention and the classes of kernels achieve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sysbench.spec import hardware as known_hardware
from sysbench.trace.range_tree import part_of
from sysbench.trace.summary import KernelClass, KernelName, Rate, SpentColumns
from sysbench.trace.work_estimate import Amount, Amounts

if TYPE_CHECKING:
    from sysbench.spec.hardware import Hardware
    from sysbench.spec.model import Precision

_ON_TENSOR_CORES: Final = frozenset({"scores", "output", "matmul", "attention"})


def rates(
    spent: Mapping[tuple[str, str], int],
    amounts: Amounts,
    order: Sequence[str],
    kind: str,
    *,
    precision: Precision | None,
    hardware: Hardware | None,
    from_model: bool,
) -> Iterator[Rate]:
    """One row for each part and phase in which it took time; `spent` and `amounts` are by part and phase."""
    for part in order:
        for (each, phase), total_ns in spent.items():
            if each != part:
                continue
            amount = amounts.get((part, phase), Amount(None, None))
            yield Rate(
                part=part,
                kind="attention" if kind == "attention" else "class",
                phase=phase,
                total_ns=total_ns,
                flops=amount.flops,
                bytes=amount.bytes,
                peak_flops_per_s=_peak(part, precision, hardware),
                peak_bytes_per_s=hardware.memory_bandwidth_bytes_per_s if hardware else None,
                basis="model" if from_model else "shapes",
            )


def _peak(part: str, precision: Precision | None, hardware: Hardware | None) -> float | None:
    """Of the units that a part runs on: matrix products at their precision, everything else in fp32."""
    if hardware is None or (part in _ON_TENSOR_CORES and precision is None):
        return None
    found = known_hardware.peak(hardware, precision if part in _ON_TENSOR_CORES and precision else "fp32")
    return found.flops_per_s if found else None


def by_part(spent: SpentColumns, phases: Sequence[str], modules: Sequence[str]) -> dict[tuple[str, str], int]:
    """Time of attention's parts by phase; without anything unless scores, softmax and output can all be told apart."""
    parts = [part_of(module) for module in modules]
    found = _added((parts[module], phases[phase], ns) for phase, module, _, ns, _ in _rows(spent) if parts[module])
    return found if {part for part, _ in found} >= {"scores", "softmax", "output"} else {}


def by_class(spent: SpentColumns, phases: Sequence[str], names: Sequence[KernelName]) -> dict[tuple[str, str], int]:
    """Time of kernel classes by phase."""
    return _added(
        (class_in(names[kernel], phases[phase]), phases[phase], ns) for phase, _, kernel, ns, _ in _rows(spent)
    )


def class_in(name: KernelName, phase: str) -> KernelClass:
    """What a kernel does in a phase: what adds, multiplies or sums within the optimizer is the optimizer."""
    if phase == "optimizer" and name.kernel_class in ("elementwise", "reduction"):
        return "optimizer"
    return name.kernel_class


def _rows(spent: SpentColumns) -> Iterator[tuple[int, int, int, int, int]]:
    return zip(spent.phase, spent.module, spent.kernel, spent.total_ns, spent.calls, strict=True)


def _added(rows: Iterator[tuple[str | None, str, int]]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for part, phase, ns in rows:
        if part is not None:
            found[part, phase] = found.get((part, phase), 0) + ns
    return found
