"""Screen of `sysbench doctor`: the parts of the machine as they become known, then what works on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType

from sysbench import units
from sysbench.commands.doctor.record import (
    Advice,
    AllocatorSection,
    GpuState,
    HostSection,
    NvmlSection,
    Prospect,
    Section,
    Tool,
    ToolsSection,
    TorchSection,
    Works,
)
from sysbench.package import VERSION
from sysbench.render.table import Column, Remark, Sheet, Table, Tone, Word
from sysbench.render.terminal import SheetView

Fact = tuple[str, str]
"""A name and its value."""

NAMES_WIDTH = 11
"""Width of the names, so that the values of all parts begin in the same column."""

_TONES: dict[Works, Tone] = {"yes": "good", "partly": "doubtful", "no": "bad", "unknown": "doubtful"}


def heading(host: HostSection) -> RenderableType:
    name = host.system.hostname if host.system else ""
    return SheetView(Sheet(tuple(filter(None, (f"sysbench {VERSION}", name))), ()))


def machine(host: HostSection) -> RenderableType:
    return _facts(
        "machine", [*_system(host), *_cores(host), *_memory(host), *_environment(host), *_unknown_fields(host)]
    )


def gpus(nvml: NvmlSection) -> RenderableType:
    driver = f"{nvml.driver}, supports CUDA up to {nvml.cuda}" if nvml.driver and nvml.cuda else nvml.driver
    facts: list[Fact] = [("driver", driver or "none (no libnvidia-ml.so.1)")] if not nvml.unknown or driver else []
    for state in nvml.gpus:
        facts += _gpu(state)
    return _facts("NVIDIA", [*facts, *_unknown_fields(nvml)])


def tools(section: ToolsSection, allocator: AllocatorSection) -> RenderableType:
    facts = [
        *_tool("nsys", section.nsys),
        *_tool("C", section.c_compiler),
        *_tool("C++", section.cxx_compiler),
        ("Python.h", section.python_headers or "not installed"),
        ("allocator", _allocator(allocator)),
    ]
    return _facts("tools", [*facts, *_unknown_fields(section)])


def torch(section: TorchSection) -> RenderableType:
    facts: list[Fact] = []
    if section.version:
        build = (
            f"built for CUDA {section.cuda}"
            if section.cuda
            else f"for ROCm {section.hip}"
            if section.hip
            else "without CUDA"
        )
        cudnn = f"cuDNN {section.cudnn}" if section.cudnn else None
        triton = f"Triton {section.triton}" if section.triton else "no Triton"
        imported = f"imported in {units.seconds(section.import_s)}"
        facts.append(("torch", _join(section.version, build, cudnn, triton, imported)))
    if section.archs:
        facts.append(("kernels for", " ".join(section.archs)))
    facts += [
        (device.torch_name, _device(device.name, device.memory_bytes, device.compute_capability))
        for device in section.devices
    ]
    if section.threads:
        facts.append(
            (
                "CPU kernels",
                _join(f"{section.threads} threads" if section.threads > 1 else "1 thread", section.cpu_capability),
            )
        )
    if section.backends:
        facts.append(("backends", _join(*section.backends)))
    return _facts("torch", [*facts, *_unknown_fields(section)])


def prospects(items: Sequence[Prospect]) -> RenderableType:
    columns = (Column("what", "", wraps=True), Column("works", ""), Column("reason", "", wraps=True))
    rows = []
    for each in items:
        explanation = [" ".join(each.reason.split()), *([f"→ {each.remedy}"] if each.remedy else [])]
        rows.append((each.what, Word(each.works, _TONES[each.works]), "\n".join(explanation)))
    return SheetView(Sheet((), (Table("prospects", "what works here", columns, tuple(rows)),)))


def advice(items: Sequence[Advice]) -> RenderableType:
    return SheetView(Sheet((), (), tuple(Remark("caution", each.message, each.remedy) for each in items)))


# --- the parts of the machine


def _system(host: HostSection) -> Iterator[Fact]:
    if host.system is None:
        return
    yield "system", _join(host.system.platform, f"Python {host.system.python}")
    if host.system.commit:
        yield "sysbench", f"commit {host.system.commit}"


def _cores(host: HostSection) -> Iterator[Fact]:
    system = host.system
    usable = f"{host.usable_cores} usable" if host.usable_cores else None
    core_counts = None
    if system:
        core_counts = f"{system.logical_cores} logical core{'' if system.logical_cores == 1 else 's'}"
        if system.physical_cores and system.physical_cores != system.logical_cores:
            core_counts += f" ({system.physical_cores} physical)"
    cpu_quota = f"{host.quota_cores:g} cores of CPU time (cgroup)" if host.quota_cores is not None else None
    load = f"load {host.load_1min:.1f}" if host.load_1min is not None else None
    governor = f"governor {host.cpu_governor}" if host.cpu_governor else None
    yield "processor", _join(system.cpu if system else None, core_counts, usable, cpu_quota, load, governor)


def _memory(host: HostSection) -> Iterator[Fact]:
    if host.available_bytes is not None:
        total = f" of {units.size(host.system.memory_bytes)}" if host.system and host.system.memory_bytes else ""
        limit_note = " (limit of the cgroup)" if host.limit_bytes is not None else ""
        yield "memory", f"{units.size(host.available_bytes)} free{total}{limit_note}"


def _environment(host: HostSection) -> Iterator[Fact]:
    if host.system and host.system.container:
        yield "container", "yes"
    if host.variables:
        yield "variables", " ".join(f"{name}={value}" for name, value in host.variables.items())


def _gpu(state: GpuState) -> Iterator[Fact]:
    capability = f"compute capability {state.compute_capability}" if state.compute_capability else None
    yield f"GPU {state.index}", _join(state.name, capability, state.uuid)
    if state.total_bytes is not None:
        yield "  memory", f"{units.size(state.free_bytes)} free of {units.size(state.total_bytes)}"
    yield "  now", _current_state(state)
    mig = None if state.mig is None else f"MIG {'on' if state.mig else 'off'}"
    mode = f"compute mode {state.compute_mode}" if state.compute_mode else None
    counter = "counts energy" if state.energy_j is not None else "does not count energy"
    yield "  settings", _join(mig, mode, counter)
    if state.processes:
        yield "  processes", ", ".join(f"{each.name or '?'} ({each.pid})" for each in state.processes)
    for field, reason in state.unknown.items():
        yield f"  {_field_label(field)}", f"unknown: {reason}"


def _current_state(state: GpuState) -> str:
    clock = None
    if state.sm_clock_hz is not None:
        maximum = f" of {units.frequency(state.sm_clock_max_hz)}" if state.sm_clock_max_hz else ""
        clock = f"{units.frequency(state.sm_clock_hz)}{maximum}"
    power = None
    if state.power_w is not None:
        limit = f" of {state.power_limit_w:.0f} W" if state.power_limit_w else " W"
        power = f"{state.power_w:.0f}{limit}"
    utilisation = f"{units.share(state.utilisation)} busy" if state.utilisation is not None else None
    temperature = f"{state.temperature_c:.0f} °C" if state.temperature_c is not None else None
    throttling = None
    if state.throttle_reasons is not None:
        throttling = f"throttled by {', '.join(state.throttle_reasons)}" if state.throttle_reasons else "not throttled"
    return _join(clock, power, temperature, utilisation, throttling)


def _tool(name: str, tool: Tool | None) -> Iterator[Fact]:
    if tool is not None:
        yield name, _join(tool.path, tool.version, tool.problem)


def _allocator(allocator: AllocatorSection) -> str:
    if allocator.text is None:
        return "PyTorch's defaults"
    return _join(
        f"{allocator.variable}={allocator.text}",
        allocator.problem,
        allocator.not_simulated,
        f"{allocator.overridden} is ignored" if allocator.overridden else None,
    )


def _device(name: str, memory_bytes: int | None, capability: str | None) -> str:
    memory = units.size(memory_bytes) if memory_bytes else None
    return _join(name, memory, f"compute capability {capability}" if capability else None)


def _unknown_fields(section: Section) -> Iterator[Fact]:
    for field, reason in section.unknown.items():
        yield ("", f"unknown: {reason}") if field == "everything" else (_field_label(field), f"unknown: {reason}")


def _field_label(field: str) -> str:
    label = field
    for unit in ("_bytes", "_hz", "_w", "_c", "_j"):
        label = label.removesuffix(unit)
    return label.replace("_", " ")


def _join(*words: str | None) -> str:
    return " · ".join(word for word in words if word)


def _facts(title: str, facts: Iterable[Fact]) -> SheetView:
    columns = (Column("name", ""), Column("value", "", wraps=True))
    rows = []
    for name, value in facts:
        text = " ".join(value.split())
        rows.append((name.ljust(NAMES_WIDTH), Word(text, "doubtful") if text.startswith("unknown: ") else text))
    return SheetView(Sheet((), (Table(title, title, columns, tuple(rows)),)))
