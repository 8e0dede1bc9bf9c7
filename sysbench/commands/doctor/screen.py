"""Screen of `sysbench doctor`: the record's sections as they become known, then what works on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from rich.console import RenderableType

from sysbench import units
from sysbench.commands.doctor.record import Advice, GpuProcess, GpuState, Prospect, Section, Tool, Works
from sysbench.log.events import DeviceInfo
from sysbench.package import VERSION
from sysbench.render.table import Column, Remark, Sheet, Table, Tone, Word
from sysbench.render.terminal import SheetView

NAMES_WIDTH = 18
"""Width of the names, so that the values of all parts begin in the same column."""

_TONES: dict[Works, Tone] = {"yes": "good", "partly": "doubtful", "no": "bad", "unknown": "doubtful"}

_UNITS: Mapping[str, object] = {
    "bytes": units.size,
    "s": units.seconds,
    "hz": units.frequency,
    "w": "{:.0f} W".format,
    "c": "{:.0f} °C".format,
    "j": "{:.0f} J".format,
    "utilisation": units.share,
}
"""Formats of fields by the end of their names."""


def section(title: str, found: Section, heading: Sequence[str] = ()) -> RenderableType:
    """Return a part of the screen: a line for each field that has a value, or is unknown."""
    columns = (Column("name", ""), Column("value", "", wraps=True))
    rows = [
        (name.ljust(NAMES_WIDTH), Word(value, "doubtful") if value.startswith("unknown: ") else value)
        for name, value in [*_facts(found)] or [("", "none")]
    ]
    subject = (f"sysbench {VERSION}", *heading) if heading else ()
    return SheetView(Sheet(subject, (Table(title, title, columns, tuple(rows)),)))


def prospects(items: Sequence[Prospect]) -> RenderableType:
    columns = (Column("what", "", wraps=True), Column("works", ""), Column("reason", "", wraps=True))
    rows = []
    for item in items:
        remedy = f"\n→ {item.remedy}" if item.remedy else ""
        rows.append((item.what, Word(item.works, _TONES[item.works]), " ".join(item.reason.split()) + remedy))
    return SheetView(Sheet((), (Table("prospects", "what works here", columns, tuple(rows)),)))


def advice(items: Sequence[Advice]) -> RenderableType:
    return SheetView(Sheet((), (), tuple(Remark("caution", item.message, item.remedy) for item in items)))


def _facts(found: BaseModel) -> Iterator[tuple[str, str]]:
    for field, value in found:
        stem, _, end = field.rpartition("_")
        label = (stem if end in _UNITS and stem else field).replace("_", " ")
        if isinstance(value, Tool):
            yield label, _join(value.path, value.version, value.problem)
        elif isinstance(value, BaseModel):
            yield from _facts(value)
        elif value and isinstance(value, list) and isinstance(value[0], GpuState):
            for gpu in value:
                yield f"GPU {gpu.index}", ""
                yield from ((f"  {name}", text) for name, text in _facts(gpu) if name != "index")
        elif value and isinstance(value, list) and isinstance(value[0], DeviceInfo):
            for device in value:
                capability = device.compute_capability and f"compute capability {device.compute_capability}"
                yield device.torch_name, _join(device.name, units.size(device.memory_bytes), capability)
        elif value not in (None, [], {}) and field != "unknown":
            yield label, _text(value, _UNITS.get(end, str))
    for field, reason in getattr(found, "unknown", {}).items():
        yield field.replace("_", " "), f"unknown: {reason}"


def _text(value: Any, show: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{name}={each if isinstance(each, str) else '/'.join(each)}" for name, each in value.items())
    if isinstance(value, list):
        named = (
            f"{process.name or '?'} ({process.pid})" if isinstance(process, GpuProcess) else str(process)
            for process in value
        )
        return ", ".join(named)
    if isinstance(value, float) and show is str:
        return f"{value:.4g}"
    return " ".join(str(show(value)).split())


def _join(*words: str | None) -> str:
    return " · ".join(word for word in words if word)
