"""Screen of `sysbench doctor`: the parts of the machine as they become known, then what works on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from sysbench import __version__, units
from sysbench.commands.doctor.record import (
    Advice,
    AllocatorSection,
    CostArm,
    GpuState,
    HostSection,
    NvmlSection,
    Prospect,
    Section,
    SelfCost,
    Tool,
    ToolsSection,
    TorchSection,
    Works,
)
from sysbench.render import theme

Fact = tuple[str, str]
"""A name and its value."""

NAMES_WIDTH = 13
_STYLES: dict[Works, str] = {"yes": theme.GOOD, "partly": theme.WARNING, "no": theme.BAD, "unknown": theme.WARNING}


def heading(host: HostSection) -> RenderableType:
    """Return the heading: `sysbench 0.1.0 · hostname`."""
    name = host.system.hostname if host.system else ""
    return _MarkedLine(" · ".join(filter(None, (f"sysbench {__version__}", name))), theme.TITLE)


def machine(host: HostSection) -> RenderableType:
    """Render the facts about the machine, except its GPUs."""
    return _FactsTable(
        "machine", [*_system(host), *_cores(host), *_memory(host), *_environment(host), *_unknown_fields(host)]
    )


def gpus(nvml: NvmlSection) -> RenderableType:
    """Render the facts about NVIDIA's driver and its GPUs."""
    driver = f"{nvml.driver}, supports CUDA up to {nvml.cuda}" if nvml.driver and nvml.cuda else nvml.driver
    facts: list[Fact] = [("driver", driver or "none (no libnvidia-ml.so.1)")] if not nvml.unknown or driver else []
    for state in nvml.gpus:
        facts += _gpu(state)
    return _FactsTable("NVIDIA", [*facts, *_unknown_fields(nvml)])


def tools(section: ToolsSection, allocator: AllocatorSection) -> RenderableType:
    """Render the programs that some options need, and the allocator's settings."""
    facts = [
        *_tool("nsys", section.nsys),
        *_tool("C", section.c_compiler),
        *_tool("C++", section.cxx_compiler),
        ("Python.h", section.python_headers or "not installed"),
        ("clusters", _clusters(section)),
        ("allocator", _allocator(allocator)),
    ]
    return _FactsTable("tools", [*facts, *_unknown_fields(section)])


def _clusters(section: ToolsSection) -> str:
    """List the programs that can start processes on several machines; sysbench needs none of them."""
    version_by_name = {
        "torchrun": section.torchrun,
        "SLURM": section.sbatch,
        "Ray": section.ray,
        "submitit": section.submitit,
    }
    missing_names = [name for name, version in version_by_name.items() if version is None]
    missing_note = f"no {', '.join(missing_names)}" if missing_names else None
    return _join(
        *(f"{name} {version}" for name, version in version_by_name.items() if version is not None), missing_note
    )


def torch(section: TorchSection) -> RenderableType:
    """Render the facts about torch."""
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
    return _FactsTable("torch", [*facts, *_unknown_fields(section)])


def prospects(items: Sequence[Prospect]) -> RenderableType:
    """Render a table of commands and options: whether each one works, the reason, and the remedy."""
    return _ProspectsTable(tuple(items))


def advice(items: Sequence[Advice]) -> Iterator[RenderableType]:
    """Yield each piece of advice, with its remedy on a line below."""
    if items:
        yield Text("")
    for each in items:
        yield _MarkedLine(each.message, "", mark=" ! ", mark_style=theme.WARNING)
        if each.remedy:
            yield _MarkedLine(f"→ {each.remedy}", theme.ACCENT, mark="   ")


def self_cost(cost: SelfCost) -> RenderableType:
    """Render the overhead of sysbench."""
    facts = [(arm.part, _cost(arm)) for arm in cost.arms]
    facts += [(part, f"not measured: {why}") for part, why in cost.not_measured.items()]
    took = units.duration(cost.took_s)
    method = f"{cost.rounds} rounds in alternating order, each arm in a fresh process; took {took}"
    return _FactsTable(f"overhead of sysbench here: {cost.workload}", [*facts, ("method", method)])


def _cost(arm: CostArm) -> str:
    change = _percent(arm.ratio)
    if arm.ratio_low is None or arm.ratio_high is None:
        return f"{change} of a step: {arm.explanation} (too few rounds for an interval)"
    interval = f"{_percent(arm.ratio_low)} to {_percent(arm.ratio_high)}"
    verdict = "" if arm.ratio_low > 1 or arm.ratio_high < 1 else ", not significant"
    return f"{change} of a step (95 %: {interval}){verdict}: {arm.explanation}"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.2f} %"


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
    if host.shm_bytes is not None:
        yield "/dev/shm", f"{units.size(host.shm_free_bytes)} free of {units.size(host.shm_bytes)}"


def _environment(host: HostSection) -> Iterator[Fact]:
    if host.container:
        yield "container", "yes, of unknown kind" if host.container == "unnamed" else host.container
    if host.batch_job:
        yield "batch job", host.batch_job
    if host.variables:
        yield "variables", " ".join(f"{name}={value}" for name, value in host.variables.items())


def _gpu(state: GpuState) -> Iterator[Fact]:
    capability = f"compute capability {state.compute_capability}" if state.compute_capability else None
    yield f"GPU {state.index}", _join(state.name, capability, state.uuid)
    if state.total_bytes is not None:
        yield "  memory", f"{units.size(state.free_bytes)} free of {units.size(state.total_bytes)}"
    yield "  now", _current_state(state)
    switches = {"persistence": state.persistence, "ECC": state.ecc, "MIG": state.mig}
    words = [f"{name} {'on' if value else 'off'}" for name, value in switches.items() if value is not None]
    mode = f"compute mode {state.compute_mode}" if state.compute_mode else None
    counter = "counts energy" if state.energy_j is not None else "does not count energy"
    yield "  settings", _join(*words, mode, counter)
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
    """Return a field's name without its unit: `sm_clock_hz` becomes `sm clock`."""
    label = field
    for unit in ("_bytes", "_hz", "_w", "_c", "_j"):
        label = label.removesuffix(unit)
    return label.replace("_", " ")


def _join(*words: str | None) -> str:
    return " · ".join(word for word in words if word)


# --- layout


class _MarkedLine:
    """A line of text after a mark; if the text is wrapped, further lines are aligned with the text."""

    def __init__(self, text: str, style: str, mark: str = " ", mark_style: str = "") -> None:
        self._text, self._style, self._mark, self._mark_style = text, style, mark, mark_style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid = Table.grid(padding=0)
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        mark = theme.terminal_line(self._mark, options.encoding)
        grid.add_row(Text(mark, self._mark_style), _text(self._text, options.encoding, self._style))
        yield from _without_trailing_spaces(console, options, grid)


class _FactsTable:
    """A heading, and rows of names and values below it."""

    def __init__(self, title: str, facts: Iterable[Fact]) -> None:
        self._title, self._facts = title, tuple(facts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("")
        yield _text(f" {self._title}", options.encoding, theme.QUIET)
        grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        grid.add_column(no_wrap=True, width=NAMES_WIDTH)
        grid.add_column(overflow="fold")
        for name, value in self._facts:
            style = theme.WARNING if value.startswith("unknown: ") else ""
            grid.add_row(_text(f"  {name}", options.encoding), _text(value, options.encoding, style))
        yield from _without_trailing_spaces(console, options, grid)


class _ProspectsTable:
    """A table of commands and options: whether each one works, the reason, and the remedy."""

    def __init__(self, items: tuple[Prospect, ...]) -> None:
        self._items = items

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("")
        yield _text(" what works here", options.encoding, theme.QUIET)
        grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        grid.add_column(width=0)
        grid.add_column(max_width=max(16, options.max_width // 3), overflow="fold")
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for each in self._items:
            explanation = _text(each.reason, options.encoding)
            if each.remedy:
                explanation.append("\n")
                explanation.append_text(_text(f"→ {each.remedy}", options.encoding, theme.ACCENT))
            grid.add_row("", _text(each.what, options.encoding), Text(each.works, _STYLES[each.works]), explanation)
        yield from _without_trailing_spaces(console, options, grid)


def _text(words: str, encoding: str, style: str = "") -> Text:
    return Text(theme.terminal_line(words, encoding), style)


def _without_trailing_spaces(console: Console, options: ConsoleOptions, grid: Table) -> RenderResult:
    """Yield lines without trailing spaces, which would otherwise end up in files and clipboards."""
    from rich.segment import Segment

    for line in console.render_lines(grid, options, pad=False):
        cells = list(line)
        while cells and not cells[-1].text.strip():
            cells.pop()
        if cells:
            last = cells[-1]
            cells[-1] = Segment(last.text.rstrip(), last.style)
        yield from cells
        yield Segment.line()
