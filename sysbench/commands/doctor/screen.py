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
    return _Line(" · ".join(filter(None, (f"sysbench {__version__}", name))), theme.TITLE)


def machine(host: HostSection) -> RenderableType:
    """Render the facts about the machine, except its GPUs."""
    return _Part("machine", [*_system(host), *_cores(host), *_memory(host), *_surroundings(host), *_reasons(host)])


def gpus(nvml: NvmlSection) -> RenderableType:
    """Render the facts about NVIDIA's driver and its GPUs."""
    driver = f"{nvml.driver}, supports CUDA up to {nvml.cuda}" if nvml.driver and nvml.cuda else nvml.driver
    facts: list[Fact] = [("driver", driver or "none (no libnvidia-ml.so.1)")] if not nvml.unknown or driver else []
    for state in nvml.gpus:
        facts += _gpu(state)
    return _Part("NVIDIA", [*facts, *_reasons(nvml)])


def tools(found: ToolsSection, allocator: AllocatorSection) -> RenderableType:
    """Render the programs that some options need, and the allocator's settings."""
    facts = [
        *_tool("nsys", found.nsys),
        *_tool("C", found.c_compiler),
        *_tool("C++", found.cxx_compiler),
        ("Python.h", found.python_headers or "not installed"),
        ("clusters", _clusters(found)),
        ("allocator", _allocator(allocator)),
    ]
    return _Part("tools", [*facts, *_reasons(found)])


def _clusters(found: ToolsSection) -> str:
    """List the programs that can start processes on several machines; sysbench needs none of them."""
    there = {"torchrun": found.torchrun, "SLURM": found.sbatch, "Ray": found.ray, "submitit": found.submitit}
    lacking = [name for name, version in there.items() if version is None]
    missing = f"no {', '.join(lacking)}" if lacking else None
    return _joined(*(f"{name} {version}" for name, version in there.items() if version is not None), missing)


def torch(found: TorchSection) -> RenderableType:
    """Render the facts about torch."""
    facts: list[Fact] = []
    if found.version:
        built = (
            f"built for CUDA {found.cuda}" if found.cuda else f"for ROCm {found.hip}" if found.hip else "without CUDA"
        )
        cudnn = f"cuDNN {found.cudnn}" if found.cudnn else None
        triton = f"Triton {found.triton}" if found.triton else "no Triton"
        imported = f"imported in {units.seconds(found.import_s)}"
        facts.append(("torch", _joined(found.version, built, cudnn, triton, imported)))
    if found.archs:
        facts.append(("kernels for", " ".join(found.archs)))
    facts += [
        (device.torch_name, _device(device.name, device.memory_bytes, device.compute_capability))
        for device in found.devices
    ]
    if found.threads:
        facts.append(
            (
                "CPU kernels",
                _joined(f"{found.threads} threads" if found.threads > 1 else "1 thread", found.cpu_capability),
            )
        )
    if found.backends:
        facts.append(("backends", _joined(*found.backends)))
    return _Part("torch", [*facts, *_reasons(found)])


def prospects(found: Sequence[Prospect]) -> RenderableType:
    """Render a table of commands and options: whether each one works, the reason, and the remedy."""
    return _Prospects(tuple(found))


def advice(found: Sequence[Advice]) -> Iterator[RenderableType]:
    """Yield each piece of advice, with its remedy on a line below."""
    if found:
        yield Text("")
    for each in found:
        yield _Line(each.message, "", mark=" ! ", mark_style=theme.WARNING)
        if each.remedy:
            yield _Line(f"→ {each.remedy}", theme.ACCENT, mark="   ")


def self_cost(found: SelfCost) -> RenderableType:
    """Render the overhead of sysbench."""
    facts = [(arm.part, _cost(arm)) for arm in found.arms]
    facts += [(part, f"not measured: {why}") for part, why in found.not_measured.items()]
    took = units.duration(found.took_s)
    method = f"{found.rounds} rounds in alternating order, each arm in a fresh process; took {took}"
    return _Part(f"overhead of sysbench here: {found.workload}", [*facts, ("method", method)])


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
    yield "system", _joined(host.system.platform, f"Python {host.system.python}")
    if host.system.commit:
        yield "sysbench", f"commit {host.system.commit}"


def _cores(host: HostSection) -> Iterator[Fact]:
    system = host.system
    usable = f"{host.usable_cores} usable" if host.usable_cores else None
    there = None
    if system:
        there = f"{system.logical_cores} logical core{'' if system.logical_cores == 1 else 's'}"
        if system.physical_cores and system.physical_cores != system.logical_cores:
            there += f" ({system.physical_cores} physical)"
    quota = f"{host.quota_cores:g} cores of CPU time (cgroup)" if host.quota_cores is not None else None
    load = f"load {host.load_1min:.1f}" if host.load_1min is not None else None
    governor = f"governor {host.cpu_governor}" if host.cpu_governor else None
    yield "processor", _joined(system.cpu if system else None, there, usable, quota, load, governor)


def _memory(host: HostSection) -> Iterator[Fact]:
    if host.available_bytes is not None:
        of = f" of {units.size(host.system.memory_bytes)}" if host.system and host.system.memory_bytes else ""
        limited = " (limit of the cgroup)" if host.limit_bytes is not None else ""
        yield "memory", f"{units.size(host.available_bytes)} free{of}{limited}"
    if host.shm_bytes is not None:
        yield "/dev/shm", f"{units.size(host.shm_free_bytes)} free of {units.size(host.shm_bytes)}"


def _surroundings(host: HostSection) -> Iterator[Fact]:
    if host.container:
        yield "container", "yes, of unknown kind" if host.container == "unnamed" else host.container
    if host.batch_job:
        yield "batch job", host.batch_job
    if host.variables:
        yield "variables", " ".join(f"{name}={value}" for name, value in host.variables.items())


def _gpu(state: GpuState) -> Iterator[Fact]:
    capability = f"compute capability {state.compute_capability}" if state.compute_capability else None
    yield f"GPU {state.index}", _joined(state.name, capability, state.uuid)
    if state.total_bytes is not None:
        yield "  memory", f"{units.size(state.free_bytes)} free of {units.size(state.total_bytes)}"
    yield "  now", _now(state)
    switches = {"persistence": state.persistence, "ECC": state.ecc, "MIG": state.mig}
    words = [f"{name} {'on' if value else 'off'}" for name, value in switches.items() if value is not None]
    mode = f"compute mode {state.compute_mode}" if state.compute_mode else None
    counter = "counts energy" if state.energy_j is not None else "does not count energy"
    yield "  settings", _joined(*words, mode, counter)
    if state.processes:
        yield "  processes", ", ".join(f"{each.name or '?'} ({each.pid})" for each in state.processes)
    for field, why in state.unknown.items():
        yield f"  {_plain(field)}", f"unknown: {why}"


def _now(state: GpuState) -> str:
    clock = None
    if state.sm_clock_hz is not None:
        most = f" of {units.frequency(state.sm_clock_max_hz)}" if state.sm_clock_max_hz else ""
        clock = f"{units.frequency(state.sm_clock_hz)}{most}"
    power = None
    if state.power_w is not None:
        limit = f" of {state.power_limit_w:.0f} W" if state.power_limit_w else " W"
        power = f"{state.power_w:.0f}{limit}"
    busy = f"{units.share(state.utilisation)} busy" if state.utilisation is not None else None
    warm = f"{state.temperature_c:.0f} °C" if state.temperature_c is not None else None
    held = None
    if state.throttle_reasons is not None:
        held = f"throttled by {', '.join(state.throttle_reasons)}" if state.throttle_reasons else "not throttled"
    return _joined(clock, power, warm, busy, held)


def _tool(name: str, tool: Tool | None) -> Iterator[Fact]:
    if tool is not None:
        yield name, _joined(tool.path, tool.version, tool.problem)


def _allocator(allocator: AllocatorSection) -> str:
    if allocator.text is None:
        return "PyTorch's defaults"
    return _joined(
        f"{allocator.variable}={allocator.text}",
        allocator.problem,
        allocator.not_simulated,
        f"{allocator.overridden} is ignored" if allocator.overridden else None,
    )


def _device(name: str, memory_bytes: int | None, capability: str | None) -> str:
    memory = units.size(memory_bytes) if memory_bytes else None
    return _joined(name, memory, f"compute capability {capability}" if capability else None)


def _reasons(section: Section) -> Iterator[Fact]:
    for field, why in section.unknown.items():
        yield ("", f"unknown: {why}") if field == "everything" else (_plain(field), f"unknown: {why}")


def _plain(field: str) -> str:
    """Return a field's name without its unit: `sm_clock_hz` becomes `sm clock`."""
    bare = field
    for unit in ("_bytes", "_hz", "_w", "_c", "_j"):
        bare = bare.removesuffix(unit)
    return bare.replace("_", " ")


def _joined(*words: str | None) -> str:
    return " · ".join(word for word in words if word)


# --- layout


class _Line:
    """A line of text after a mark; if the text is wrapped, further lines are aligned with the text."""

    def __init__(self, text: str, style: str, mark: str = " ", mark_style: str = "") -> None:
        self._text, self._style, self._mark, self._mark_style = text, style, mark, mark_style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid = Table.grid(padding=0)
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        mark = theme.terminal_line(self._mark, options.encoding)
        grid.add_row(Text(mark, self._mark_style), _text(self._text, options.encoding, self._style))
        yield from _stripped(console, options, grid)


class _Part:
    """A heading, and rows of names and values below it."""

    def __init__(self, title: str, facts: Iterable[Fact]) -> None:
        self._title, self._facts = title, tuple(facts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("")
        yield _text(f" {self._title}", options.encoding, theme.QUIET)
        grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        grid.add_column(no_wrap=True, width=NAMES_WIDTH)
        grid.add_column(overflow="fold")
        for name, known in self._facts:
            style = theme.WARNING if known.startswith("unknown: ") else ""
            grid.add_row(_text(f"  {name}", options.encoding), _text(known, options.encoding, style))
        yield from _stripped(console, options, grid)


class _Prospects:
    """A table of commands and options: whether each one works, the reason, and the remedy."""

    def __init__(self, found: tuple[Prospect, ...]) -> None:
        self._found = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("")
        yield _text(" what works here", options.encoding, theme.QUIET)
        grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        grid.add_column(width=0)
        grid.add_column(max_width=max(16, options.max_width // 3), overflow="fold")
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for each in self._found:
            why = _text(each.reason, options.encoding)
            if each.remedy:
                why.append("\n")
                why.append_text(_text(f"→ {each.remedy}", options.encoding, theme.ACCENT))
            grid.add_row("", _text(each.what, options.encoding), Text(each.works, _STYLES[each.works]), why)
        yield from _stripped(console, options, grid)


def _text(words: str, encoding: str, style: str = "") -> Text:
    return Text(theme.terminal_line(words, encoding), style)


def _stripped(console: Console, options: ConsoleOptions, grid: Table) -> RenderResult:
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
