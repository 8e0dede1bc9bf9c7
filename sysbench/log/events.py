"""What is happening while a run goes on: one frozen class per event, told apart by `event`.

The worker says what it does and measures; the engine adds its own readings and verdicts. Together, in order, they
are the log, and everything that is shown later is computed from them. `at_s` is always seconds since the epoch.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer
from pydantic_core import from_json

from sysbench.command import Kind
from sysbench.log.outcomes import Outcome, RunStatus
from sysbench.spec.frozen import Frozen
from sysbench.spec.model import DeviceType, Precision

SCHEMA_VERSION = 1

Number = Annotated[float, PlainSerializer(lambda value: value if isfinite(value) else str(value), when_used="json")]
"""A number that may be infinite or NaN, for which JSON has no numbers: there it is the word `inf`, `-inf` or `nan`."""


class Event(Frozen):
    """Something that happened. Each class has the name of its event as the default of `event`."""

    event: str
    at_s: float

    @classmethod
    def __pydantic_init_subclass__(cls, **arguments: Any) -> None:
        """Make the class known to `decode`."""
        super().__pydantic_init_subclass__(**arguments)
        EVENTS[cls.model_fields["event"].default] = cls


EVENTS: dict[str, type[Event]] = {}
"""Every class of events that has been imported, by the name of the event."""


class HostInfo(Frozen):
    """The machine the run is on, as far as it can be known without torch."""

    hostname: str
    platform: str
    python: str
    cpu: str
    physical_cores: int | None
    logical_cores: int
    memory_bytes: int
    container: bool
    commit: str | None
    """The git commit of sysbench's own checkout, with `-dirty` when it was changed; None for an installed wheel."""


class DeviceInfo(Frozen):
    """One device that cells can run on."""

    name: str
    """The hardware's own name: `NVIDIA H200`."""
    type: DeviceType
    index: int = 0
    uuid: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    bf16: bool | None = None
    """Of a CPU: whether it multiplies bf16 in hardware; None where nobody has looked."""

    @property
    def torch_name(self) -> str:
        """What torch calls it: `cuda:0`, `mps`, `cpu`."""
        return f"cuda:{self.index}" if self.type == "cuda" else self.type


class TorchInfo(Frozen):
    """The torch that measures."""

    torch: str
    cuda: str | None
    cudnn: str | None
    triton: str | None
    threads: int
    allocator: str | None
    """PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF, as set."""
    import_s: float


class RunStarted(Event):
    """The first event of every log."""

    event: Literal["run_started"] = "run_started"
    schema_version: int = SCHEMA_VERSION
    kind: Kind
    sysbench_version: str
    source_digest: str
    """Hash of sysbench's own source: a log is only resumed by the code that made it."""
    spec: dict[str, Any]
    host: HostInfo
    driver: str | None
    """Version of the NVIDIA driver, from NVML."""
    cells: int


class RunResumed(Event):
    """A log is continued; what was failed or missing is run again."""

    event: Literal["run_resumed"] = "run_resumed"
    keep: int
    """How many finished cells are kept."""


class WorkerReady(Event):
    """A worker has imported torch and says what it found. The first device is what `auto` stands for."""

    event: Literal["worker_ready"] = "worker_ready"
    pid: int
    torch: TorchInfo
    devices: list[DeviceInfo]


class CeilingMeasured(Event):
    """What a large matrix product reaches on this device: the best of several, in FLOP/s."""

    event: Literal["ceiling_measured"] = "ceiling_measured"
    device: str
    precision: Precision
    matmul_flops_per_s: float
    matmul_size: int
    """The product is (n, n) × (n, n)."""


class CeilingFailed(Event):
    """The ceiling could not be measured; the run goes on and shares of it stay unknown."""

    event: Literal["ceiling_failed"] = "ceiling_failed"
    device: str
    precision: Precision
    detail: str


class MemoryForeseen(Event):
    """What a simulation says of a cell that is yet to be measured: whether it will fit into what is free."""

    event: Literal["memory_foreseen"] = "memory_foreseen"
    cell: str
    free_bytes: int
    fits: bool | None
    """None where it cannot be simulated; `detail` then says why."""
    lacking_bytes: int | None = None
    detail: str | None = None


class CellStarted(Event):
    """A cell begins; `index` counts from 0 over the whole run.

    Whatever an earlier attempt at the same cell left in the log (of a run that was resumed) is void from here on.
    """

    event: Literal["cell_started"] = "cell_started"
    cell: str
    index: int
    axes: dict[str, Any]
    """The cell's spec, complete, as its `model_dump()` has it."""
    device: DeviceInfo


Stage = Literal[
    "building",
    "compiling",
    "warming-up",
    "measuring",
    "simulating",
    "searching",
    "profiling",
    "writing",
    "reading",
]


class StageEntered(Event):
    """What the worker turns to next."""

    event: Literal["stage_entered"] = "stage_entered"
    cell: str
    stage: Stage


class ModelBuilt(Event):
    """The model, the optimizer and a batch are on the device."""

    event: Literal["model_built"] = "model_built"
    cell: str
    parameters: int
    parameters_without_lm_head: int
    build_s: float


class Compiled(Event):
    """torch.compile has run: the first step, compilation included, took `compile_s`."""

    event: Literal["compiled"] = "compiled"
    cell: str
    compile_s: float
    graphs: int
    graph_breaks: int
    fell_back: bool
    """Dynamo gave up on some frame and runs it eagerly."""
    detail: str | None = None


class PhaseSample(Frozen):
    """One phase of one step, in seconds.

    `wall_s` is read on the host between two synchronizations; `enqueue_s` is the part of it until the host had
    launched everything (None where launching and running are one); `device_s` is the time between two device
    events (None where there are none).
    """

    wall_s: float | None
    enqueue_s: float | None = None
    device_s: float | None = None


class StepMeasured(Event):
    """One step. With `sync=phase` each phase has a wall time, and `step` is their sum.

    With `sync=step` only `step` has a wall time, and phases have device times where there are device events.
    """

    event: Literal["step_measured"] = "step_measured"
    cell: str
    index: int
    """From 0, counted apart for warm-up and measured steps."""
    warmup: bool
    phases: dict[str, PhaseSample]
    step: PhaseSample


class MemoryMeasured(Event):
    """Peaks of the measured steps; None where the device does not tell."""

    event: Literal["memory_measured"] = "memory_measured"
    cell: str
    allocated_peak_bytes: int | None
    reserved_peak_bytes: int | None
    host_rss_peak_bytes: int | None
    """`ru_maxrss` of the worker; a high-water mark over the worker's life, not only this cell's."""


class StepChecked(Event):
    """Whether the steps did what they say: None where the mode has no such phase."""

    event: Literal["step_checked"] = "step_checked"
    cell: str
    gradients_present: bool | None
    parameters_changed: bool | None
    loss: float | None
    attention_kernel: str | None
    """The operator that attention really ran as: `aten::_scaled_dot_product_flash_attention`, say."""


class Reading(Event):
    """What the parent saw from outside; None where it cannot be known."""

    event: Literal["reading"] = "reading"
    host_rss_bytes: int | None = None
    """Resident memory of the worker and its children."""
    host_available_bytes: int | None = None
    host_cpu_share: float | None = None
    """Of all cores, by processes other than the worker's tree: 0 to 1."""
    device_used_bytes: int | None = None
    device_utilisation: float | None = None
    sm_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None
    """A counter that only grows; differences of it mean something."""
    throttle_reasons: list[str] | None = None
    other_processes: int | None = None
    """Processes on the GPU that are not ours; read between cells only."""


Source = Literal["measured", "simulated"]


class GpuSimulated(Event):
    """The cell runs on no device: this is the GPU that its memory is worked out for."""

    event: Literal["gpu_simulated"] = "gpu_simulated"
    cell: str
    title: str
    memory_bytes: int
    context_bytes: int
    """Taken by the CUDA context, outside the allocator: assumed."""
    other_bytes: int
    """Taken by other processes: assumed."""
    settings: str
    """PYTORCH_CUDA_ALLOC_CONF as it was simulated."""


class CellFinished(Event):
    """A cell is over, one way or another; the last one of a cell counts.

    A cell that was never started (`skipped`, or `invalid` here) has this event alone.
    """

    event: Literal["cell_finished"] = "cell_finished"
    cell: str
    outcome: Outcome
    detail: str | None = None
    traceback: str | None = None


class WorkerExited(Event):
    """A worker is gone; `signal` is its name when one ended it."""

    event: Literal["worker_exited"] = "worker_exited"
    pid: int
    exit_code: int | None
    signal: str | None
    stderr_tail: str | None = None


class ReadingsLost(Event):
    """A source of readings failed in mid-run; the run goes on without it."""

    event: Literal["readings_lost"] = "readings_lost"
    source: str
    detail: str


class RunFinished(Event):
    """The last event of a run that could say goodbye."""

    event: Literal["run_finished"] = "run_finished"
    status: RunStatus


def build() -> None:
    """Build the models of all events that are known by now, which otherwise happens when each is first used."""
    for model in EVENTS.values():
        model.model_rebuild()


_NAME = re.compile(rb'\s*{\s*"event":\s*"(\w+)"')


def decode(line: bytes) -> Event:
    """The event that one line of JSON holds; raises ValueError when it holds none.

    A command's own events are known once its `record` has been imported.
    """
    beginning = _NAME.match(line)
    fields = None if beginning else from_json(line)
    name = beginning[1].decode() if beginning else fields.get("event") if isinstance(fields, dict) else None
    kind = EVENTS.get(str(name))
    if kind is None:
        raise ValueError(f"{name} is no event")
    return kind.model_validate_json(line)


def encode(event: Event) -> bytes:
    """One event as one line of JSON, without the newline."""
    return event.model_dump_json().encode()
