"""Output of measured rates, together with the data sheet, to a TOML file that `--simulate` finds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from sysbench import cells as axes
from sysbench.commands.calibrate.record import CalibrateRecord
from sysbench.errors import UsageError
from sysbench.predict.rates import CALIBRATED_HOST_SPREAD, HOST_RATES, typical_host
from sysbench.spec import hardware
from sysbench.spec.hardware import Calibration, Hardware, Rate

NO_SHEET = "no data sheet: values reported by the device"

NO_DEVICE = Rate(
    value=1e-9, spread=0.0, source="a CPU launches no kernels: it is both host and device", basis="calibrated"
)
GPU_ONLY_RATES = ("kernel_s", "gap_s", "launch", "synchronize")
"""Rates that do not exist if host and device are the same."""


def with_measured_rates(record: CalibrateRecord) -> Hardware:
    """Return the device with the measured rates; rates that were not measured keep their previous values.

    Raises UsageError for a run that measured nothing.
    """
    device = next((cell.device for cell in record.cells if cell.device is not None), None)
    if device is None or record.slug is None or not record.rates:
        raise UsageError("nothing was measured: there are no rates to write")
    torch = record.environment.torch
    version = torch.torch if torch is not None else "unknown"
    try:
        base = hardware.by_name(record.slug)
    except UsageError:
        base = Hardware(
            slug=record.slug,
            title=device.name,
            names=(device.name,),
            compute_capability=device.compute_capability,
            memory_bytes=device.memory_bytes or 1,
            sms=device.multiprocessors or (torch.threads if torch is not None else 1),
            synchronous=device.type == "cpu",
            source=NO_SHEET,
        )
    date = record.started_at[:10]
    threads = f", {axes.phrase('threads', torch.threads)}" if torch is not None and device.type == "cpu" else ""
    source = f"sysbench calibrate on {device.name}, {date}, torch {version}{threads}"
    measured = {
        rate.name: Rate(value=rate.value, spread=rate.spread, source=source, basis="calibrated")
        for rate in record.rates
    }
    absent = dict.fromkeys(GPU_ONLY_RATES, NO_DEVICE) if device.type == "cpu" else {}
    return base.model_copy(
        update={
            "rates": {**base.rates, **absent, **measured},
            "calibration": Calibration(device=device.name, torch=version, at=record.started_at),
        }
    )


def host_toml(device: Hardware) -> str:
    """Format the host's rates as TOML, like the files in `profiles/hosts`.

    Rates that were not measured come from a typical host; on a CPU, these are `launch` and `synchronize`. Raises
    UsageError if the host was not measured at all.
    """
    if "operator" not in device.rates:
        raise UsageError("--host needs the host's rates, which were not measured: calibrate with the part host")
    typical = typical_host()
    rates = {
        name: device.rates[name]
        if name in device.rates and device.rates[name] is not NO_DEVICE
        else typical.rates[name].model_copy(update={"basis": "borrowed"})
        for name in (*HOST_RATES, "update")
    }
    written = {name: rate.model_dump(mode="json") for name, rate in rates.items()}
    return _toml({"title": f"the host of {device.title}", "spread": CALIBRATED_HOST_SPREAD, "rates": written})


def toml(device: Hardware) -> str:
    return _toml(device.model_dump(mode="json", exclude={"slug"}, exclude_none=True))


def _toml(fields: Mapping[str, object]) -> str:
    return "\n".join(_lines(fields, ())).strip()


def _lines(fields: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    for name, value in fields.items():
        if not isinstance(value, dict):
            # JSON's strings, numbers and lists are also valid TOML, but for one control character.
            written = json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")
            yield f"{name} = {written}"
    for name, value in fields.items():
        if isinstance(value, dict) and value:
            nested = (*path, name)
            if any(not isinstance(each, dict) for each in value.values()):
                yield f"\n[{'.'.join(nested)}]"
            yield from _lines(value, nested)
