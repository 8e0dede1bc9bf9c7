"""Instruments read what is there, set what they say they set, and put it back."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from sysbench.commands.time import measure
from sysbench.commands.time.spec import TimeSpec
from sysbench.lab import ceiling
from sysbench.lab import devices as device_facts
from sysbench.lab.clocks import Call, Marks, StepTimes, SynchronizedClock, clock_for, sum_of, until_hidden
from sysbench.lab.compilation import compiled_event, fresh_compiler, reset_counters
from sysbench.lab.devices import available_devices, synchronize, torch_device, torch_info
from sysbench.lab.memory import allocator
from sysbench.lab.precision import fp32_settings, matmul_precision
from sysbench.lab.ranges import named, visible_to
from sysbench.log import cautions
from sysbench.log.collect import CellEvents
from sysbench.log.events import DeviceInfo, ModelBuilt, PhaseSample
from sysbench.spec.steps import Sync
from tests.fixtures_cautions import in_words
from tests.lab.fake_clock import FakeClock

CPU = torch.device("cpu")
CPU_DEVICE = DeviceInfo(name="a processor", type="cpu")


# --- clocks --------------------------------------------------------------------------------------------------------


class FakeTime(SynchronizedClock):
    """A clock whose time passes only where a test says so."""

    now_s = 0.0

    def __init__(self) -> None:
        super().__init__(
            lambda: None, Marks(torch.device("cpu")), launches_ahead=False, now_ns=lambda: round(self.now_s * 1e9)
        )


class Machine:
    """A device that runs behind its host: launching takes 1 s of the host's time, the work takes longer."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self.device_free_s = 0.0
        self.marks_s: dict[int, float] = {}
        self.synchronized = 0

    def launch(self, work_s: float) -> Call:
        def call() -> None:
            self.host_s += 1.0
            self.device_free_s = max(self.device_free_s, self.host_s) + work_s

        return call

    def synchronize(self) -> None:
        self.synchronized += 1
        self.host_s = max(self.host_s, self.device_free_s)

    def place(self, number: int) -> None:
        self.marks_s[number] = max(self.device_free_s, self.host_s)

    def between_s(self, first: int, last: int) -> float | None:
        return self.marks_s[last] - self.marks_s[first]

    def clock(
        self, *, launches_ahead: bool = True, marks: bool = True, occupied_s: float | None = None
    ) -> SynchronizedClock:
        return SynchronizedClock(
            synchronize=self.synchronize,
            marks=self if marks else Marks(torch.device("cpu")),
            launches_ahead=launches_ahead,
            now_ns=lambda: round(self.host_s * 1e9),
            keep_busy=None if occupied_s is None else lambda seconds: self.launch(seconds)(),
            busy_s=occupied_s or 0.0,
        )


def test_a_phase_ends_when_the_device_is_done_and_the_next_one_begins_then() -> None:
    machine = Machine()
    times = machine.clock().measure({"forward": machine.launch(5.0), "backward": machine.launch(9.0)}.items(), "phase")
    assert times.phases == {
        "forward": PhaseSample(wall_s=6.0, enqueue_s=1.0, device_s=6.0),
        "backward": PhaseSample(wall_s=10.0, enqueue_s=1.0, device_s=10.0),
    }
    assert times.step == PhaseSample(wall_s=16.0, enqueue_s=2.0, device_s=16.0)
    assert machine.synchronized == 4


def test_on_a_device_that_is_occupied_meanwhile_launching_takes_none_of_its_time() -> None:
    machine = Machine()
    times = machine.clock(occupied_s=20.0).measure({"forward": machine.launch(5.0)}.items(), "phase")
    assert times.phases["forward"] == PhaseSample(wall_s=None, enqueue_s=1.0, device_s=5.0)


def test_a_device_that_idles_before_everything_is_launched_is_kept_busy_for_longer() -> None:
    # 500 kernels of 1 µs: the host needs 6 µs for each, and the device 2 µs from one to the next.
    machine = Machine()

    def kernels() -> None:
        for _ in range(500):
            machine.host_s += 6e-6
            machine.device_free_s = max(machine.device_free_s, machine.host_s) + 3e-6

    clock = SynchronizedClock(
        synchronize=machine.synchronize,
        marks=machine,
        launches_ahead=True,
        now_ns=lambda: round(machine.host_s * 1e9),
        keep_busy=lambda seconds: setattr(machine, "device_free_s", machine.host_s + seconds),
        busy_s=0.001,
    )
    step = until_hidden(lambda: clock.measure([("kernels", kernels)], "phase").step)
    assert step.device_s == pytest.approx(500 * 3e-6)  # at the pace of the host, these are 500 × 6 µs


def test_launches_that_nothing_can_hide_are_still_timed() -> None:
    machine = Machine()
    clock = machine.clock(occupied_s=0.05)  # launching takes 1 s, more than a device is ever kept busy
    step = until_hidden(lambda: clock.measure([("forward", machine.launch(5.0))], "phase").step)
    assert step.enqueue_s == 1.0


def test_an_unperturbed_step_is_synchronized_at_its_ends_only() -> None:
    machine = Machine()
    times = machine.clock().measure({"forward": machine.launch(5.0), "backward": machine.launch(9.0)}.items(), "step")
    assert times.step == PhaseSample(wall_s=15.0, enqueue_s=2.0, device_s=15.0)  # the second launch is hidden
    assert times.phases == {
        "forward": PhaseSample(wall_s=None, device_s=6.0),
        "backward": PhaseSample(wall_s=None, device_s=9.0),
    }
    assert machine.synchronized == 2


@pytest.mark.parametrize("sync", ["phase", "step"])
def test_work_left_over_from_before_is_not_counted(sync: Sync) -> None:
    machine = Machine()
    machine.launch(100.0)()
    assert machine.clock().measure({"forward": machine.launch(2.0)}.items(), sync).wall_s == 3.0


def test_where_launching_is_running_there_is_no_enqueue_time() -> None:
    machine = Machine()
    times = machine.clock(launches_ahead=False, marks=False).measure({"forward": machine.launch(0.0)}.items(), "phase")
    assert times.phases["forward"] == PhaseSample(wall_s=1.0, enqueue_s=None, device_s=None)


def test_a_sum_is_unknown_where_a_part_is() -> None:
    known = PhaseSample(wall_s=1.0, enqueue_s=0.5, device_s=0.75)
    assert sum_of([known, known]) == PhaseSample(wall_s=2.0, enqueue_s=1.0, device_s=1.5)
    assert sum_of([known, PhaseSample(wall_s=1.0)]) == PhaseSample(wall_s=2.0)


def test_a_step_that_no_clock_timed_is_not_a_number() -> None:
    assert StepTimes({}, PhaseSample(wall_s=None)).wall_s != StepTimes({}, PhaseSample(wall_s=None)).wall_s


def test_the_clock_of_a_cpu_runs_phases_in_order_and_its_parts_add_up() -> None:
    ran: list[str] = []
    phases: dict[str, Call] = {name: lambda name=name: ran.append(name) for name in ("a", "b")}  # type: ignore[misc]
    times = clock_for(CPU).measure(phases.items(), "phase")
    assert ran == ["a", "b"]
    assert [sample.enqueue_s for sample in times.phases.values()] == [None, None]
    assert times.wall_s == pytest.approx(sum(sample.wall_s or 0 for sample in times.phases.values()))
    assert times.wall_s > 0


def test_a_fake_clock_runs_the_phases_and_says_what_it_was_told() -> None:
    ran: list[int] = []
    phases: dict[str, Call] = {"forward": lambda: ran.append(1), "loss": lambda: ran.append(2)}
    clock = FakeClock([0.5, 0.25, 1.0, 2.0])
    assert clock.measure(phases.items(), "phase").phases["loss"].wall_s == 0.25
    whole = clock.measure(phases.items(), "step")
    assert (whole.wall_s, whole.phases["loss"].wall_s) == (3.0, None)
    assert ran == [1, 2, 1, 2]


# --- devices -------------------------------------------------------------------------------------------------------


def test_the_cpu_is_the_last_device_and_has_a_name_and_memory() -> None:
    cpu = available_devices()[-1]
    assert (cpu.type, cpu.torch_name, cpu.memory_bytes) == ("cpu", "cpu", psutil.virtual_memory().total)
    assert len(cpu.name) > 2
    synchronize(torch_device(cpu))


def test_a_device_is_addressed_by_its_index() -> None:
    assert torch_device(DeviceInfo(name="a GPU", type="cuda", index=3)) == torch.device("cuda:3")


def test_torch_says_which_torch_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    info = torch_info(import_s=1.5)
    assert (info.torch, info.threads, info.import_s) == (torch.__version__, torch.get_num_threads(), 1.5)
    assert info.allocator == "expandable_segments:True"


# --- memory --------------------------------------------------------------------------------------------------------


def test_running_out_of_host_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60, dtype=torch.uint8)
    assert allocator.is_out_of_memory(error.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        MemoryError(),
        RuntimeError("MPS backend out of memory (MPS allocated: 18.0 GB, other allocations: 1.0 GB)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=str,
)
def test_other_ways_of_running_out_are_recognised(error: BaseException) -> None:
    assert allocator.is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("out of memory"), KeyError(1)]
)
def test_other_errors_are_not_taken_for_it(error: BaseException) -> None:
    assert not allocator.is_out_of_memory(error)


def test_a_cpu_tells_the_process_peak_in_bytes_and_nothing_that_it_does_not_know() -> None:
    allocator.reset_peaks(CPU)
    held = torch.ones(32 * 2**20)
    peaks = allocator.peaks(CPU)
    assert (peaks.allocated_bytes, peaks.reserved_bytes) == (None, None)
    resident = psutil.Process().memory_info().rss
    assert held.nbytes < resident <= 1.02 * peaks.host_rss_bytes < 100 * resident


def test_release_collects_what_only_cycles_keep_alive() -> None:
    class Holder:
        def __init__(self) -> None:
            self.itself = self
            self.tensor = torch.zeros(8)

    gone = weakref.ref(Holder().tensor)
    allocator.release(CPU)
    assert gone() is None


# --- precision and ranges ------------------------------------------------------------------------------------------


def test_tf32_is_on_by_name_only_and_what_was_set_is_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        with matmul_precision("fp32"):
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_precision_is_put_back_after_an_error() -> None:
    before = torch.get_float32_matmul_precision()
    with pytest.raises(KeyError), matmul_precision("tf32"):
        raise KeyError
    assert torch.get_float32_matmul_precision() == before


@pytest.fixture
def default_precision() -> Iterator[None]:
    """Settings of fp32 kernels that a test may change in any way."""
    kernels = (torch.backends, torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [each.fp32_precision for each in kernels]
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    for each, setting in zip(kernels, before, strict=True):
        each.fp32_precision = setting


@pytest.mark.usefixtures("default_precision")
def test_fp32_is_fp32_in_convolutions_and_recurrent_layers_too() -> None:
    torch.backends.fp32_precision = "tf32"  # type: ignore[attr-defined]
    with matmul_precision("fp32"):
        assert set(fp32_settings().values()) == {"ieee"}
    with matmul_precision("tf32"):
        assert set(fp32_settings().values()) == {"tf32"}


@pytest.mark.usefixtures("default_precision")
def test_precision_can_be_set_after_a_program_has_used_torchs_newer_settings() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # the older setting can no longer be read
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    before = fp32_settings()
    with matmul_precision("fp32"):
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.allow_tf32
    assert fp32_settings() == before


@pytest.mark.usefixtures("default_precision")
def test_what_a_models_code_sets_is_undone_and_named(tmp_path: Path) -> None:
    source = tmp_path / "fast.py"
    source.write_text(
        "import torch\n"
        "torch.backends.cuda.matmul.allow_tf32 = True\n"
        "torch.backends.cudnn.conv.fp32_precision = 'tf32'\n"
        "class Fast(torch.nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50))\n"
    )
    (cell,) = TimeSpec(model=f"{source}:Fast", ctx="8", batch="1", device="cpu", warmup="0", steps=1).cells()  # type: ignore[arg-type]
    built = next(event for event in measure.run(cell, CPU_DEVICE) if isinstance(event, ModelBuilt))
    assert set(built.fp32_precision.values()) == {"ieee"}
    assert sorted(built.precision_overridden) == ["convolution", "matmul"]
    (caution,) = cautions.precision_overridden(cell.precision, CellEvents(built=built))
    assert "matmul and convolution" in in_words(caution)
    assert caution.remedy.startswith("use --precision tf32")


def test_a_range_is_one_shared_nothing_until_a_profiler_is_on() -> None:
    nothing = named("scores")
    assert named("phase") is nothing
    with visible_to("record_function"):
        assert isinstance(named("layer"), torch.profiler.record_function)
        with visible_to("none"):
            assert named("layer") is nothing
    assert named("layer") is nothing


def test_ranges_for_nsys_nest() -> None:
    with visible_to("nvtx"), named("outer"), named("inner"):
        assert named("outer") is not named("outer")


# --- compilation ---------------------------------------------------------------------------------------------------


def unbroken(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def broken(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    torch._dynamo.graph_break()
    return x + 2


@pytest.fixture
def compile_without_inductor() -> Iterator[Callable[[Callable[[torch.Tensor], torch.Tensor]], Call]]:
    def compiled(function: Callable[[torch.Tensor], torch.Tensor]) -> Call:
        return lambda: torch.compile(function, backend="eager", dynamic=False)(torch.ones(3))

    with fresh_compiler():
        yield compiled


def test_a_whole_graph_is_one_graph(compile_without_inductor: Callable[..., Call]) -> None:
    compile_without_inductor(unbroken)()
    made = compiled_event("cell", 1.0)
    assert (made.graphs, made.graph_breaks, made.fell_back, made.detail) == (1, 0, False, None)


def test_a_graph_break_is_counted_and_explained(compile_without_inductor: Callable[..., Call]) -> None:
    compile_without_inductor(broken)()
    made = compiled_event("cell", 1.0)
    assert (made.graphs, made.graph_breaks, made.fell_back) == (2, 1, False)
    assert made.detail
    assert "graph_break" in made.detail


def test_giving_up_past_the_recompile_limit_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "torch._dynamo")
    with fresh_compiler(), torch._dynamo.config.patch(recompile_limit=2):
        function = torch.compile(unbroken, backend="eager", dynamic=False)
        for size in (2, 3):
            function(torch.ones(size))
        assert not compiled_event("cell", 1.0).fell_back
        function(torch.ones(4))
        made = compiled_event("cell", 1.0)
    assert made.fell_back
    assert made.detail
    assert "recompile" in made.detail.lower()


def test_the_next_cell_counts_from_zero(compile_without_inductor: Callable[..., Call]) -> None:
    compile_without_inductor(broken)()
    reset_counters()
    assert compiled_event("cell", 1.0).graph_breaks == 0
    with fresh_compiler():
        compile_without_inductor(unbroken)()
        assert compiled_event("cell", 1.0).graphs == 1


# --- ceiling -------------------------------------------------------------------------------------------------------


def test_the_ceiling_is_the_best_product_and_stops_when_its_time_is_up() -> None:
    # Of each size a warm-up and five products; size 512 is the best, and 1024 would take eight times as long again.
    seconds = iter([9.0, 0.02, 0.01, 0.01, 0.01, 0.01, 9.0, 0.02, 0.02, 0.016, 0.02, 0.02])
    best = ceiling.measure(CPU_DEVICE, "fp32", budget_s=0.25, clock=FakeClock(seconds))
    assert best.matmul_size == 512
    assert best.matmul_flops_per_s == pytest.approx(2 * 512**3 / 0.016)
    assert next(seconds, None) is None


def test_a_ceiling_whose_fastest_product_lost_its_cores_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    for step, disturbed in ((0, False), (1, False), (9, True)):
        monkeypatch.setattr(ceiling, "preemptions", count(step=step).__next__)
        found = ceiling.measure(CPU_DEVICE, "fp32", budget_s=0.25, clock=FakeClock(iter([9.0, 0.2])))
        assert (found.matmul_size, found.disturbed) == (256, disturbed)


def test_a_slow_machine_gets_one_product_beside_its_warm_up() -> None:
    seconds = iter([60.0, 60.0])
    best = ceiling.measure(CPU_DEVICE, "bf16", budget_s=0.25, clock=FakeClock(seconds))
    assert (best.matmul_size, best.precision) == (256, "bf16")
    assert best.matmul_flops_per_s == pytest.approx(2 * 256**3 / 60)


def test_connecting_the_ranks_does_not_count_towards_the_ceiling_of_their_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL connects ranks in the first call: 1 s here, after which a call takes 20 µs and 475 GB/s pass the link."""
    clock, connected = FakeTime(), [False]

    def all_reduce(message: torch.Tensor, *_: object) -> None:
        if message.dtype == torch.float64:
            return  # a number of the host, which goes through gloo
        clock.now_s += 20e-6 + message.numel() * 4 / 475e9 + (0.0 if connected[0] else 1.0)
        connected[0] = True

    store = FakeStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=2)
    try:
        monkeypatch.setattr(dist, "all_reduce", all_reduce)
        size_bytes, rate = ceiling.fastest_all_reduce(CPU, clock=clock)
    finally:
        dist.destroy_process_group()
    assert size_bytes == ceiling.LARGEST_MESSAGE_BYTES
    assert rate == pytest.approx(475e9, rel=0.01)


def test_a_real_ceiling_is_a_rate_that_a_processor_can_have() -> None:
    best = ceiling.measure(CPU_DEVICE, "fp32", budget_s=0.02)
    assert best.device == "cpu"
    assert 1e7 < best.matmul_flops_per_s < 1e15


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="the system does not list what the processor has")
def test_whether_the_cpu_multiplies_bf16_is_what_the_kernel_lists() -> None:
    listed = set(Path("/proc/cpuinfo").read_text().split())
    assert device_facts.cpu_bf16() is bool(listed & {"avx512_bf16", "amx_bf16", "bf16", "svebf16"})


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be reset here")
def test_memory_of_a_large_cell_is_no_memory_of_the_small_one_after_it() -> None:
    allocator.release(CPU)
    before_bytes = allocator.peaks(CPU).host_rss_bytes
    # 1 MiB each: glibc keeps such blocks when they are freed, if it has kept a larger one before.
    blocks = [torch.ones(2**18) for _ in range(600)]
    assert allocator.peaks(CPU).host_rss_bytes - before_bytes > 500 * 2**20
    del blocks
    allocator.release(CPU)
    assert allocator.peaks(CPU).host_rss_bytes - before_bytes < 100 * 2**20
