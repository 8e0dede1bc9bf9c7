"""Find the dtypes of all parts of a model under autocast, on this device and by CUDA's rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from sysbench.commands.accum.record import DtypeSeen, DtypesMeasured
from sysbench.commands.accum.spec import AccumCell
from sysbench.commands.accum.toy import Supervised, supervised
from sysbench.lab.devices import torch_device
from sysbench.lab.precision import TORCH_DTYPES
from sysbench.log.events import DeviceInfo, Event, Source
from sysbench.rounding import FormatName
from sysbench.simulate.cuda.autocast import cuda_autocast
from sysbench.simulate.tensors import DEVICE, DeviceObserver, SimulatedDevice


def run(cell: AccumCell, device: DeviceInfo) -> Iterator[Event]:
    for precision in cell.dtypes:
        found: dict[Source, list[DtypeSeen]] = {
            "measured": measured(cell, precision, torch_device(device)),
            "simulated": simulated(cell, precision),
        }
        for source, seen in found.items():
            yield DtypesMeasured(at_s=time.time(), cell=cell.key, precision=precision, source=source, seen=seen)


def measured(cell: AccumCell, precision: FormatName, device: torch.device) -> list[DtypeSeen]:
    work = supervised(cell.step, cell.batch or 1, device, cell.seed)
    return types_of(work, device.type, precision)


def simulated(cell: AccumCell, precision: FormatName) -> list[DtypeSeen]:
    with SimulatedDevice(DeviceObserver()), cuda_autocast():
        work = supervised(cell.step, cell.batch or 1, DEVICE, cell.seed)
        return types_of(work, "cpu", precision)


def types_of(work: Supervised, device_type: str, precision: FormatName) -> list[DtypeSeen]:
    """Return the dtypes of a step with forward and loss under autocast, and backward outside of it, as in training."""
    model = work.model

    def note(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor):
                seen.append(DtypeSeen(part="output", name=name, dtype=_name(output)))

        return hook

    seen = [DtypeSeen(part="parameter", name=name, dtype=_name(value)) for name, value in model.named_parameters()]
    seen.append(DtypeSeen(part="input", name="", dtype=_name(work.inputs)))
    hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name]
    try:
        with torch.autocast(device_type, TORCH_DTYPES[precision]):
            logits = model(work.inputs)
            loss = work.loss_of(logits)
        loss.backward()
    finally:
        for hook in hooks:
            hook.remove()
    seen.append(DtypeSeen(part="logits", name="", dtype=_name(logits)))
    seen.append(DtypeSeen(part="loss", name="", dtype=_name(loss)))
    gradients = ((name, parameter.grad) for name, parameter in model.named_parameters())
    seen += [
        DtypeSeen(part="gradient", name=name, dtype=_name(value)) for name, value in gradients if value is not None
    ]
    return seen


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
