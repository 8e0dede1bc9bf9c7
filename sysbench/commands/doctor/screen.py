"""Screen of `sysbench doctor`: the parts of the machine as they become known, then what works on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType

from sysbench import units
from sysbench.commands.doctor.record import (
    Advice,
    GpuState,
    HostSection,
    NvmlSection,
    Prospect,
    Section,
    ToolsSection,
    TorchSection,
    Works,
)
from sysbench.package import VERSION
from sysbench.render.table import Column, Remark, Sheet, Table, Tone, Word
from sysbench.render.terminal import SheetView

Fact = tuple[str, str | None]
"""A name and its value; without a value, the fact is not shown."""

NAMES_WIDTH = 11
"""Width of the names, so that the values of all parts begin in the same column."""

_TONES: dict[Works, Tone] = {"yes": "good", "partly": "doubtful", "no": "bad", "unknown": "doubtful"}


def machine(host: HostSection) -> RenderableType:
    system, limited = host.system, " (limit of the cgroup)" * (host.limit_bytes is not None)
    cores = None
    if system:
        physical = f" ({system.physical_cores} physical)" if system.physical_cores else ""
        cores = f"{system.logical_cores} logical core{'' if system.logical_cores == 1 else 's'}{physical}"
    memory = f" of {units.size(system.memory_bytes)}" if system else ""
    facts: list[Fact] = [
        ("system", _join(system.platform, f"Python {system.python}") if system else None),
        ("commit", system.commit if system else None),
        (
            "processor",
            _join(
                system.cpu if system else None,
                cores,
                _worded("{} usable", host.usable_cores),
                _worded("{:g} cores of CPU time (cgroup)", host.quota_cores),
                _worded("load {:.1f}", host.load_1min),
                _worded("governor {}", host.cpu_governor),
            ),
        ),
        ("memory", f"{units.size(host.available_bytes)} free{memory}{limited}"),
        ("container", "yes" if system and system.container else None),
        ("variables", " ".join(f"{name}={value}" for name, value in host.variables.items())),
    ]
    title = (f"sysbench {VERSION}", *([system.hostname] if system else []))
    return _facts("machine", [*facts, *_unknown_fields(host)], title)


def gpus(nvml: NvmlSection) -> RenderableType:
    driver = _worded("{}", nvml.driver) or (None if nvml.unknown else "none (no libnvidia-ml.so.1)")
    facts: list[Fact] = [("driver", _join(driver, _worded("supports CUDA up to {}", nvml.cuda)))]
    for state in nvml.gpus:
        facts += _gpu(state)
    return _facts("NVIDIA", [*facts, *_unknown_fields(nvml)])


def tools(section: ToolsSection) -> RenderableType:
    programs = {"nsys": section.nsys, "C": section.c_compiler, "C++": section.cxx_compiler}
    allocator = _join(section.allocator, section.allocator_problem, section.allocator_not_simulated)
    return _facts(
        "tools",
        [
            *((name, _join(tool.path, tool.version, tool.problem)) for name, tool in programs.items()),
            ("Python.h", section.python_headers or "not installed"),
            ("allocator", allocator or "PyTorch's defaults"),
            *_unknown_fields(section),
        ],
    )


def torch(section: TorchSection) -> RenderableType:
    facts: list[Fact] = []
    if section.version:
        build = _worded("built for CUDA {}", section.cuda) or _worded("for ROCm {}", section.hip) or "without CUDA"
        triton = _worded("Triton {}", section.triton) or "no Triton"
        imported = f"imported in {units.seconds(section.import_s)}"
        facts += [("torch", _join(section.version, build, _worded("cuDNN {}", section.cudnn), triton, imported))]
    facts += [("kernels for", " ".join(section.archs))]
    for device in section.devices:
        capability = _worded("compute capability {}", device.compute_capability)
        facts += [(device.torch_name, _join(device.name, units.size(device.memory_bytes), capability))]
    facts += [
        ("CPU kernels", _join(_worded("{} thread(s)", section.threads), section.cpu_capability)),
        ("backends", _join(*section.backends)),
    ]
    return _facts("torch", [*facts, *_unknown_fields(section)])


def prospects(items: Sequence[Prospect]) -> RenderableType:
    columns = (Column("what", "", wraps=True), Column("works", ""), Column("reason", "", wraps=True))
    rows = []
    for each in items:
        remedy = f"\n→ {each.remedy}" if each.remedy else ""
        rows.append((each.what, Word(each.works, _TONES[each.works]), " ".join(each.reason.split()) + remedy))
    return SheetView(Sheet((), (Table("prospects", "what works here", columns, tuple(rows)),)))


def advice(items: Sequence[Advice]) -> RenderableType:
    return SheetView(Sheet((), (), tuple(Remark("caution", each.message, each.remedy) for each in items)))


def _gpu(state: GpuState) -> Iterator[Fact]:
    yield (
        f"GPU {state.index}",
        _join(state.name, _worded("compute capability {}", state.compute_capability), state.uuid),
    )
    if state.total_bytes is not None:
        yield "  memory", f"{units.size(state.free_bytes)} free of {units.size(state.total_bytes)}"
    clocks = [units.frequency(each) for each in (state.sm_clock_hz, state.sm_clock_max_hz) if each is not None]
    throttled = state.throttle_reasons
    yield (
        "  now",
        _join(
            " of ".join(clocks),
            _worded("{:.0f} W", state.power_w),
            _worded("limit {:.0f} W", state.power_limit_w),
            _worded("{:.0f} °C", state.temperature_c),
            _worded("{:.0%} busy", state.utilisation),
            f"throttled by {', '.join(throttled)}" if throttled else None,
        ),
    )
    mig = None if state.mig is None else f"MIG {'on' if state.mig else 'off'}"
    counter = "counts energy" if state.energy_j is not None else "does not count energy"
    yield "  settings", _join(mig, _worded("compute mode {}", state.compute_mode), counter)
    yield "  processes", ", ".join(f"{each.name or '?'} ({each.pid})" for each in state.processes or ())
    for name, value in _unknown_fields(state):
        yield f"  {name}", value


def _unknown_fields(section: Section) -> Iterator[Fact]:
    for field, reason in section.unknown.items():
        name = "" if field == "everything" else field.removesuffix("_j").removesuffix("_w").replace("_", " ")
        yield name, f"unknown: {reason}"


def _worded(text: str, value: object) -> str | None:
    return None if value is None else text.format(value)


def _join(*words: str | None) -> str:
    return " · ".join(word for word in words if word)


def _facts(title: str, facts: Iterable[Fact], heading: tuple[str, ...] = ()) -> SheetView:
    columns = (Column("name", ""), Column("value", "", wraps=True))
    rows = []
    for name, value in facts:
        if text := " ".join((value or "").split()):
            rows.append((name.ljust(NAMES_WIDTH), Word(text, "doubtful") if text.startswith("unknown: ") else text))
    return SheetView(Sheet(heading, (Table(title, title, columns, tuple(rows)),)))
