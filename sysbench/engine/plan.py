"""The cells that a run has to measure, and the device of each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sysbench import formulas
from sysbench.errors import Refusal, UsageError
from sysbench.log.events import DeviceInfo
from sysbench.spec.cell import DeviceType, RunCell


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
        if (problem := cell.problem(kinds.get(cell.device.partition(":")[0]))) is not None:
            raise UsageError(problem)


def place(
    cells: Sequence[RunCell], devices: Sequence[DeviceInfo], started_ranks: int | None = None
) -> list[PlacedCell]:
    """Assign a device to every cell; raises UsageError."""
    placed = [PlacedCell(index, cell, resolve_device(cell.device, devices)) for index, cell in enumerate(cells)]
    for each in placed:
        if (refusal := refusal_of(each, devices, started_ranks)) is not None:
            raise UsageError(refusal)
    return placed


def refusal_of(placed: PlacedCell, devices: Sequence[DeviceInfo], started_ranks: int | None = None) -> Refusal | None:
    """Return why the cell cannot run on its device, or on as many as it has ranks; None if it can."""
    if (problem := placed.cell.problem(placed.device.type)) is not None:
        return problem
    first, ranks = placed.device, placed.cell.workers
    needed = f"--ranks {ranks}"
    if started_ranks is not None:
        too_few = Refusal(f"needs that many processes, but {started_ranks} were started", option=needed)
        return too_few if ranks > started_ranks else None
    available = sum(device.type == first.type and device.index >= first.index for device in devices)
    if ranks == 1 or first.type == "cpu" or ranks <= available:
        return None
    wording = "is 1 device" if available == 1 else f"are {available} devices"
    return Refusal(
        f"needs a device for each rank, but from {first.torch_name} on there {wording}",
        "use --device cpu for ranks on the CPU; memory --simulate needs no device",
        needed,
    )


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
