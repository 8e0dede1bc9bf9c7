"""The cells that a run has to measure, and the device of each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sysbench import formulas
from sysbench.errors import UsageError
from sysbench.log.events import DeviceInfo
from sysbench.spec.cell import RunCell
from sysbench.spec.model import DeviceType


@dataclass(frozen=True)
class PlacedCell:
    """A cell, its position in the whole run, and its device."""

    index: int
    cell: RunCell
    device: DeviceInfo
    earlier_s: tuple[float, ...] = ()
    """Times of steps that an earlier attempt at the cell has measured."""

    @property
    def predicted_bytes(self) -> int | None:
        """Predicted peak memory on the device in bytes; None if memory is not a constraint."""
        return formulas.predicted_bytes(self.cell, self.device.torch_name)


def refuse_impossible(cells: Sequence[RunCell]) -> None:
    """Raise UsageError for the first cell that cannot run on any device, or on the type of device that it names."""
    kinds: dict[str, DeviceType] = {"cpu": "cpu", "mps": "mps", "cuda": "cuda"}
    for cell in cells:
        _refuse(cell, kinds.get(cell.device.partition(":")[0]))


def place(
    cells: Sequence[RunCell], devices: Sequence[DeviceInfo], started_ranks: int | None = None
) -> list[PlacedCell]:
    """Assign a device to every cell; raises UsageError."""
    placed = [PlacedCell(index, cell, resolve_device(cell.device, devices)) for index, cell in enumerate(cells)]
    for each in placed:
        _refuse(each.cell, each.device.type)
        if started_ranks is None:
            _refuse_too_many_ranks(each, devices)
        elif each.cell.workers > started_ranks:
            raise UsageError(f"--ranks {each.cell.workers} needs that many processes, but {started_ranks} were started")
    return placed


def resolve_device(name: str, devices: Sequence[DeviceInfo]) -> DeviceInfo:
    """Return the device named `auto`, `cuda`, `cuda:1`, `mps` or `cpu`; raises UsageError."""
    if name == "auto" and devices:
        return devices[0]
    for device in devices:
        if name in (device.type, device.torch_name):
            return device
    available = ", ".join(f"{device.torch_name} ({device.name})" for device in devices)
    raise UsageError(f"--device {name}: no such device on this machine; available: {available or 'none'}")


def device_of_rank(rank: int, first: DeviceInfo, devices: Sequence[DeviceInfo]) -> DeviceInfo:
    """Return the device of a rank: the GPU `rank` places after the first one, or the CPU, which all ranks share."""
    if first.type != "cuda" or rank == 0:
        return first
    return next(device for device in devices if device.type == "cuda" and device.index == first.index + rank)


def devices_of_other_ranks(placed: PlacedCell, devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Return the devices on this machine of all ranks of a cell but the first: the GPUs after that of rank 0."""
    first = placed.device
    after = range(first.index + 1, first.index + placed.cell.workers)
    return [device for device in devices if device.type == first.type == "cuda" and device.index in after]


def _refuse_too_many_ranks(placed: PlacedCell, devices: Sequence[DeviceInfo]) -> None:
    first, ranks = placed.device, placed.cell.workers
    if ranks == 1 or first.type == "cpu":
        return
    available = sum(device.type == first.type and device.index >= first.index for device in devices)
    if ranks > available:
        wording = "is 1 device" if available == 1 else f"are {available} devices"
        raise UsageError(
            f"--ranks {ranks} needs a device for each rank, but from {first.torch_name} on there {wording}. Use "
            "--device cpu for ranks on the CPU; memory --simulate needs no device"
        )


def _refuse(cell: RunCell, kind: DeviceType | None) -> None:
    problem = cell.problem(kind)
    if problem is not None:
        raise UsageError(problem)
