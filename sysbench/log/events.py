"""What is happening while a run goes on: one frozen class per event, told apart by `event`.

The worker says what it does and measures; the engine adds its own readings and verdicts. Together, in order, they
are the log, and everything that is shown later is computed from them. `at_s` is always seconds since the epoch.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ValidationError, model_validator
from pydantic_core import from_json

from sysbench.command import Kind, spec_of
from sysbench.log.outcomes import Outcome, RunStatus
from sysbench.spec.frozen import Frozen
from sysbench.spec.model import DeviceType, Precision
from sysbench.spec.quantities import (
    Amount,
    Bytes,
    Count,
    Finite,
    Instant,
    PerSecond,
    Seconds,
    Signed,
    SomeSeconds,
    Unbounded,
)
from sysbench.spec.validation import first_fault

SCHEMA_VERSION = 1


def _of_a_command(fields: dict[str, Any]) -> dict[str, Any]:
    try:
        spec_of(fields)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from None
    return fields


WrittenSpec = Annotated[dict[str, Any], AfterValidator(_of_a_command)]
"""What a run was asked for, as a command wrote it down, and as it can be read again."""


class Event(Frozen):
    """Something that happened. Each class has the name of its event as the default of `event`."""

    event: str
    at_s: Instant

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
    physical_cores: Count | None
    logical_cores: Count
    memory_bytes: Bytes
    container: bool
    commit: str | None
    """The git commit of sysbench's own checkout, with `-dirty` when it was changed; None for an installed wheel."""


class DeviceInfo(Frozen):
    """One device that cells can run on."""

    name: str
    """The hardware's own name: `NVIDIA H200`."""
    type: DeviceType
    index: Count = 0
    uuid: str | None = None
    memory_bytes: Bytes | None = None
    compute_capability: str | None = None
    multiprocessors: Count | None = None
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
    threads: Count
    allocator: str | None
    """PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF, as set."""
    import_s: Seconds


def refuse_spec_of_another(kind: Kind, spec: WrittenSpec) -> None:
    """Raise ValueError unless the spec is of this command."""
    if spec["kind"] != kind:
        raise ValueError(f"its spec is of `sysbench {spec['kind']}`, and it is of `sysbench {kind}`")


class RunStarted(Event):
    """The first event of every log."""

    event: Literal["run_started"] = "run_started"
    schema_version: int = SCHEMA_VERSION
    kind: Kind
    sysbench_version: str
    source_digest: str
    """Hash of sysbench's own source: a log is only resumed by the code that made it."""
    spec: WrittenSpec
    host: HostInfo
    driver: str | None
    """Version of the NVIDIA driver, from NVML."""
    cells: Count

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        refuse_spec_of_another(self.kind, self.spec)
        return self


class RunResumed(Event):
    """A log is continued; what was failed or missing is run again."""

    event: Literal["run_resumed"] = "run_resumed"
    keep: Count
    """How many finished cells are kept."""


class WorkerReady(Event):
    """A worker has imported torch and says what it found. The first device is what `auto` stands for."""

    event: Literal["worker_ready"] = "worker_ready"
    pid: Count
    torch: TorchInfo
    devices: list[DeviceInfo]


class CeilingMeasured(Event):
    """What a large matrix product reaches on this device: the best of several, in FLOP/s."""

    event: Literal["ceiling_measured"] = "ceiling_measured"
    device: str
    precision: Precision
    matmul_flops_per_s: PerSecond
    matmul_size: Count
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
    free_bytes: Bytes
    fits: bool | None
    """None where it cannot be simulated; `detail` then says why."""
    lacking_bytes: Bytes | None = None
    detail: str | None = None


class CellStarted(Event):
    """A cell begins; `index` counts from 0 over the whole run.

    Whatever an earlier attempt at the same cell left in the log (of a run that was resumed) is void from here on.
    """

    event: Literal["cell_started"] = "cell_started"
    cell: str
    index: Count
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
    parameters: Count
    parameters_without_lm_head: Count
    build_s: Seconds


class Compiled(Event):
    """torch.compile has run: the first step, compilation included, took `compile_s`."""

    event: Literal["compiled"] = "compiled"
    cell: str
    compile_s: Seconds
    graphs: Count
    graph_breaks: Count
    fell_back: bool
    """Dynamo gave up on some frame and runs it eagerly."""
    detail: str | None = None


class PhaseSample(Frozen):
    """One phase of one step, in seconds.

    `wall_s` is read on the host between two synchronizations; `enqueue_s` is the part of it until the host had
    launched everything (None where launching and running are one); `device_s` is the time between two device
    events (None where there are none).
    """

    wall_s: SomeSeconds | None
    enqueue_s: Seconds | None = None
    device_s: Seconds | None = None


class StepMeasured(Event):
    """One step. With `sync=phase` each phase has a wall time, and `step` is their sum.

    With `sync=step` only `step` has a wall time, and phases have device times where there are device events.
    """

    event: Literal["step_measured"] = "step_measured"
    cell: str
    index: Count
    """From 0, counted apart for warm-up and measured steps."""
    warmup: bool
    phases: dict[str, PhaseSample]
    step: PhaseSample


class MemoryMeasured(Event):
    """Peaks of the measured steps; None where the device does not tell."""

    event: Literal["memory_measured"] = "memory_measured"
    cell: str
    allocated_peak_bytes: Bytes | None
    reserved_peak_bytes: Bytes | None
    host_rss_peak_bytes: Bytes | None
    """`ru_maxrss` of the worker; a high-water mark over the worker's life, not only this cell's."""


class StepChecked(Event):
    """Whether the steps did what they say: None where the mode has no such phase."""

    event: Literal["step_checked"] = "step_checked"
    cell: str
    gradients_present: bool | None
    parameters_changed: bool | None
    loss: Unbounded | None
    attention_kernel: str | None
    """The operator that attention really ran as: `aten::_scaled_dot_product_flash_attention`, say."""


class Reading(Event):
    """What the parent saw from outside; None where it cannot be known."""

    event: Literal["reading"] = "reading"
    host_rss_bytes: Bytes | None = None
    """Resident memory of the worker and its children."""
    host_available_bytes: Bytes | None = None
    host_cpu_share: Amount | None = None
    """Of all cores, by processes other than the worker's tree: 0 to 1."""
    device_used_bytes: Bytes | None = None
    device_utilisation: Amount | None = None
    sm_clock_hz: Amount | None = None
    power_w: Amount | None = None
    temperature_c: Finite | None = None
    energy_j: Amount | None = None
    """A counter that only grows; differences of it mean something."""
    throttle_reasons: list[str] | None = None
    other_processes: Count | None = None
    """Processes on the GPU that are not ours; read between cells only."""


Source = Literal["measured", "simulated"]


class GpuSimulated(Event):
    """The cell runs on no device: this is the GPU that its memory is worked out for."""

    event: Literal["gpu_simulated"] = "gpu_simulated"
    cell: str
    title: str
    memory_bytes: Bytes
    context_bytes: Bytes
    """Taken by the CUDA context, outside the allocator: assumed."""
    other_bytes: Bytes
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
    pid: Count
    exit_code: Signed | None
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
