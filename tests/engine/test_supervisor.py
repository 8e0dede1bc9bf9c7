"""What becomes of a run when its worker lives, fails, dies, hangs or is interrupted."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from sysbench import formulas
from sysbench.commands.time.fold import fold
from sysbench.engine.process import Launcher, WorkerProcess, _listen
from sysbench.errors import SysbenchError, UsageError
from sysbench.log.events import (
    CeilingFailed,
    CeilingMeasured,
    CellFinished,
    CellStarted,
    Event,
    Reading,
    ReadingsLost,
    RunFinished,
    RunStarted,
    StepMeasured,
    ThreadsProbed,
    WorkerExited,
    WorkerReady,
)
from tests.engine.fakes import (
    CPU,
    GPU,
    FakeSampler,
    ScriptedLauncher,
    carry_out,
    of_kind,
    only_log,
    outcomes,
    spec_of,
    start,
    verdicts,
)
from tests.processes import HANG_S, has_ended

SHORT_S = 4.0
"""Not long to wait for, and enough for a worker to come up on a busy machine."""


def test_consecutive_cells_share_a_worker(tmp_path: Path) -> None:
    spec = spec_of([16, 32, 64])
    events = carry_out(spec, tmp_path)
    assert outcomes(spec, events) == {16: "ok", 32: "ok", 64: "ok"}
    assert len(of_kind(events, WorkerReady)) == 1
    assert [(gone.exit_code, gone.signal) for gone in of_kind(events, WorkerExited)] == [(0, None)]


def test_a_run_begins_and_ends_and_is_logged_as_it_was_told(tmp_path: Path) -> None:
    events = carry_out(spec_of([16, 32]), tmp_path)
    assert isinstance(events[0], RunStarted)
    assert events[-1].event == "run_finished"
    assert events[-1].status == "complete"
    assert only_log(tmp_path) == events


def test_every_event_is_in_the_log_when_it_is_handed_over(tmp_path: Path) -> None:
    seen: list[Event] = []
    with start(spec_of([16, 32]), tmp_path) as session:
        for event in session:
            seen.append(event)
            assert only_log(tmp_path)[: len(seen)] == seen


def test_cells_are_announced_in_order_with_everything_about_them(tmp_path: Path) -> None:
    spec = spec_of([16, 32])
    started = of_kind(carry_out(spec, tmp_path), CellStarted)
    cells = list(spec.cells())
    assert [(event.cell, event.index) for event in started] == [(cell.key, index) for index, cell in enumerate(cells)]
    assert [event.axes for event in started] == [cell.model_dump(mode="json") for cell in cells]


@pytest.mark.parametrize(
    ("act", "outcome", "detail", "died_by"),
    [
        (
            "killed",
            "crashed",
            "the worker was killed by SIGKILL; the kernel does that when host memory runs out",
            "SIGKILL",
        ),
        ("aborted", "crashed", "the worker was killed by SIGABRT", "SIGABRT"),
        (
            "aborts in C++",
            "crashed",
            "the worker was killed by SIGABRT: terminate called after throwing an instance of 'c10::Error'",
            "SIGABRT",
        ),
        (
            "aborts with a reason",
            "crashed",
            "the worker was killed by SIGABRT: CUDA error: an illegal memory access was encountered",
            "SIGABRT",
        ),
        (
            "waits for a rank",
            "timeout",
            "rank 1: a collective did not end: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
            "Timeout(ms)=600000) ran for 600011 milliseconds before timing out.",
            "SIGABRT",
        ),
        ("leaves", "crashed", "the worker exited with code 3: RuntimeError: the device fell off the bus", None),
        ("hangs", "timeout", "the worker sent no message for 4 s (--timeout)", "SIGTERM"),
        (
            "babbles",
            "crashed",
            "the worker sent an invalid event: b'PK\\x03\\x04 not an event'",
            "SIGTERM",
        ),
        ("oom", "oom", "CUDA out of memory. Tried to allocate 20.00 GiB.", "SIGTERM"),
        ("crashed", "crashed", "RuntimeError: device-side assert triggered", "SIGTERM"),
    ],
)
def test_the_cell_after_a_failure_runs_in_a_new_worker(
    tmp_path: Path, act: str, outcome: str, detail: str, died_by: str | None
) -> None:
    spec = spec_of([32, 16])
    events = carry_out(spec, tmp_path, ScriptedLauncher({32: act}), timeout_s=SHORT_S if act == "hangs" else HANG_S)
    assert outcomes(spec, events) == {32: outcome, 16: "ok"}
    assert verdicts(spec, events)[32].detail == detail
    first, second = of_kind(events, WorkerReady)
    assert first.pid != second.pid
    assert of_kind(events, WorkerExited)[0].signal == died_by
    assert events[-1].event == "run_finished"
    assert events[-1].status == "complete"


def test_what_a_failing_cell_measured_before_is_kept(tmp_path: Path) -> None:
    spec = spec_of([16])
    events = carry_out(spec, tmp_path, ScriptedLauncher({16: "killed"}))
    assert len(of_kind(events, StepMeasured)) == 1


def test_what_a_dying_worker_printed_is_kept(tmp_path: Path) -> None:
    (gone,) = of_kind(carry_out(spec_of([16]), tmp_path, ScriptedLauncher({16: "leaves"})), WorkerExited)
    assert (gone.exit_code, gone.stderr_tail) == (3, "first line\nRuntimeError: the device fell off the bus")


def test_an_invalid_cell_costs_no_worker(tmp_path: Path) -> None:
    spec = spec_of([16, 32])
    events = carry_out(spec, tmp_path, ScriptedLauncher({16: "invalid"}))
    assert outcomes(spec, events) == {16: "invalid", 32: "ok"}
    assert len(of_kind(events, WorkerReady)) == 1


def test_a_worker_that_keeps_talking_is_not_given_up(tmp_path: Path) -> None:
    spec = spec_of([16])
    assert outcomes(spec, carry_out(spec, tmp_path, ScriptedLauncher({16: "slow"}), timeout_s=SHORT_S)) == {16: "ok"}


def test_a_hanging_worker_is_killed_with_everything_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child_file = tmp_path / "child"
    monkeypatch.setenv("SYSBENCH_TEST_CHILD", str(child_file))
    monkeypatch.setattr("sysbench.engine.process.TERMINATION_TIMEOUT_S", 0.2)
    spec = spec_of([16])
    events = carry_out(spec, tmp_path / "runs", ScriptedLauncher({16: "hangs stubbornly"}), timeout_s=SHORT_S)
    assert outcomes(spec, events) == {16: "timeout"}
    assert of_kind(events, WorkerExited)[0].signal == "SIGKILL"
    assert has_ended(int(child_file.read_text()))


def test_a_worker_that_lingers_after_the_last_cell_does_not_hold_the_run_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("conversation", "supervisor"):
        monkeypatch.setattr(f"sysbench.engine.{module}.EXIT_TIMEOUT_S", 0.2)
    events = carry_out(spec_of([16]), tmp_path, ScriptedLauncher(end="lingers"))
    assert of_kind(events, WorkerExited)[0].signal == "SIGTERM"
    assert of_kind(events, RunFinished)[0].status == "complete"


def test_a_worker_that_dies_between_cells_is_replaced(tmp_path: Path) -> None:
    # It dies right after it has said what it found, before or while it is asked for its first cell.
    spec = spec_of([16])
    events = carry_out(spec, tmp_path, ScriptedLauncher(idle="dies"))
    assert outcomes(spec, events)[16] in ("crashed", "ok")
    assert of_kind(events, RunFinished)[0].status == "complete"


@pytest.mark.parametrize(("act", "outcome"), [("killed", "crashed"), ("hangs", "timeout"), ("ok", "ok")])
def test_deaths_are_noticed_where_no_descriptor_tells_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, outcome: str
) -> None:
    monkeypatch.setattr("sysbench.engine.process._open_sentinel", lambda pid, resources: None)
    spec = spec_of([16])
    events = carry_out(spec, tmp_path, ScriptedLauncher({16: act}), timeout_s=SHORT_S if act == "hangs" else HANG_S)
    assert outcomes(spec, events) == {16: outcome}
    with pytest.raises(SysbenchError):
        carry_out(spec, tmp_path, ScriptedLauncher(start="dies"))


def test_steps_that_come_by_the_hundred_are_all_there(tmp_path: Path) -> None:
    spec = spec_of([16])
    steps = of_kind(carry_out(spec, tmp_path, ScriptedLauncher({16: "rushes"})), StepMeasured)
    assert [step.index for step in steps] == list(range(2000))


# A worker that does not come up


def test_a_worker_that_dies_before_it_connects_fails_the_run_in_one_line(tmp_path: Path) -> None:
    session = start(spec_of([16]), tmp_path, ScriptedLauncher(start="dies"))
    with pytest.raises(SysbenchError) as caught:
        list(session)
    assert str(caught.value) == (
        "no worker could be started: the worker exited with code 1: ModuleNotFoundError: No module named 'torch'"
    )
    assert [event.event for event in only_log(tmp_path) if event.event != "reading"] == [
        "run_started",
        "readings_lost",
        "worker_exited",
        "run_finished",
    ]
    assert of_kind(only_log(tmp_path), RunFinished)[0].status == "failed"


@pytest.fixture
def silent_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client that connects to the engine before any worker does, and says nothing."""
    monkeypatch.setattr("sysbench.engine.process.HANDSHAKE_S", 0.5)
    launch = WorkerProcess._launch
    with ExitStack() as clients:

        def connect_first(worker: WorkerProcess, environment: dict[str, str], address: Path) -> object:
            clients.enter_context(socket.socket(socket.AF_UNIX)).connect(str(address))
            return launch(worker, environment, address)

        monkeypatch.setattr(WorkerProcess, "_launch", connect_first)
        yield


@pytest.mark.usefixtures("silent_client")
def test_a_worker_that_never_connects_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysbench.engine.supervisor.START_TIMEOUT_S", SHORT_S)
    session = start(spec_of([16]), tmp_path, ScriptedLauncher(start="hangs"), timeout_s=SHORT_S)
    with pytest.raises(SysbenchError, match=r"^no worker could be started: the worker sent no message for 4 s"):
        list(session)


@pytest.mark.usefixtures("silent_client")
def test_a_silent_client_does_not_keep_the_worker_out(tmp_path: Path) -> None:
    spec = spec_of([16])
    assert outcomes(spec, carry_out(spec, tmp_path)) == {16: "ok"}


def test_a_short_timeout_is_for_cells_and_not_for_the_start_of_a_worker(tmp_path: Path) -> None:
    spec = spec_of([16])
    assert outcomes(spec, carry_out(spec, tmp_path, ScriptedLauncher(start="late"), timeout_s=SHORT_S)) == {16: "ok"}


def test_a_worker_that_is_killed_while_it_starts_is_started_once_more(tmp_path: Path) -> None:
    kills, spec = tmp_path / "kills", spec_of([16])
    kills.write_text("1")
    events = carry_out(spec, tmp_path / "once", ScriptedLauncher(start=f"killed {kills}"))
    assert outcomes(spec, events) == {16: "ok"}
    assert [gone.signal for gone in of_kind(events, WorkerExited)][:1] == ["SIGKILL"]
    kills.write_text("1\n2\n3")
    with pytest.raises(SysbenchError, match="SIGKILL"):
        carry_out(spec, tmp_path / "twice", ScriptedLauncher(start=f"killed {kills}"))
    assert kills.read_text() == "3", "two starts, not three"


def test_a_wrapper_that_is_not_installed_is_named(tmp_path: Path) -> None:
    class Wrapped(ScriptedLauncher):
        def command(self) -> list[str]:
            return ["no-such-profiler", *super().command()]

    with pytest.raises(SysbenchError, match=r"^cannot start no-such-profiler: program not found$"):
        carry_out(spec_of([16]), tmp_path, Wrapped())


def test_a_worker_behind_a_wrapper_is_found_by_its_address(tmp_path: Path) -> None:
    class Wrapped(ScriptedLauncher):
        def command(self) -> list[str]:
            # Like nsys and torchrun, the shell stays in between, and closes whatever it may have inherited.
            return ["sh", "-c", '"$@"; exit $?', "wrapper", *super().command()]

    spec = spec_of([16])
    events = carry_out(spec, tmp_path, Wrapped())
    assert outcomes(spec, events) == {16: "ok"}
    assert of_kind(events, WorkerExited)[0].exit_code == 0


def test_a_long_temporary_directory_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    spec = spec_of([16])
    assert outcomes(spec, carry_out(spec, tmp_path / "runs")) == {16: "ok"}


def test_without_a_temporary_directory_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(SysbenchError, match=r"^cannot make temporary files for a worker: no such file or directory$"):
        carry_out(spec_of([16]), tmp_path / "runs")


def test_nothing_is_left_in_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    carry_out(spec_of([32, 16]), tmp_path / "runs", ScriptedLauncher({32: "killed"}))
    with pytest.raises(SysbenchError):
        carry_out(spec_of([16]), tmp_path / "runs", ScriptedLauncher(start="dies"))
    assert list(temporary.iterdir()) == []


def test_a_temporary_directory_of_any_length_has_a_place_for_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for length in range(len(str(tmp_path)) + 2, 120):
        directory = tmp_path / ("x" * (length - len(str(tmp_path)) - 1))
        directory.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(directory))
        with ExitStack() as resources:
            address, _ = _listen(resources)
            assert address.is_socket()
            assert len(str(address)) < 104  # on macOS


def test_the_worker_is_this_python_with_this_sysbench() -> None:
    launcher = Launcher(prefix=("nsys", "profile"))
    assert launcher.command()[:2] == ["nsys", "profile"]
    assert launcher.command()[-2:] == ["-m", "sysbench.worker"]
    assert str(Path(__file__).parents[2]) in launcher.environment()["PYTHONPATH"].split(os.pathsep)


# Before a cell is started


def test_cells_at_least_as_large_as_one_that_ran_out_of_memory_are_skipped(tmp_path: Path) -> None:
    spec = spec_of([32, 16, 64], batch=(1, 4))
    launcher = ScriptedLauncher({32: "oom"})
    events = carry_out(spec, tmp_path, launcher)
    by_cell = {event.cell: event for event in of_kind(events, CellFinished)}
    told = {(cell.ctx, cell.batch): by_cell[cell.key] for cell in spec.cells()}
    assert {axes: event.outcome for axes, event in told.items()} == {
        (32, 1): "oom",
        (16, 1): "ok",
        (64, 1): "skipped",
        (32, 4): "skipped",
        (16, 4): "ok",
        (64, 4): "skipped",
    }
    assert {event.reason for event in told.values()} == {None, "out-of-memory", "larger-than-failed"}
    assert told[64, 4].detail == (
        "at least as large as tiny d_model=32 layers=1, ctx 32, batch 1, which ran out of memory. "
        "--force starts it anyway"
    )
    started = {event.cell for event in of_kind(events, CellStarted)}
    assert started.isdisjoint(key for key, event in by_cell.items() if event.outcome == "skipped")


def test_another_precision_is_not_skipped(tmp_path: Path) -> None:
    spec = spec_of([16], precision=("fp32", "bf16"))
    events = carry_out(spec, tmp_path, ScriptedLauncher({16: "oom"}))
    assert [event.outcome for event in of_kind(events, CellFinished)] == ["oom", "oom"]


def test_force_runs_larger_cells_all_the_same(tmp_path: Path) -> None:
    spec = spec_of([32, 64])
    events = carry_out(spec, tmp_path, ScriptedLauncher({32: "oom"}), force=True)
    assert outcomes(spec, events) == {32: "oom", 64: "ok"}


def test_a_cell_that_cannot_fit_is_not_started(tmp_path: Path) -> None:
    spec = spec_of([16])
    events = carry_out(spec, tmp_path, sampler=FakeSampler(free_bytes=1024))
    assert outcomes(spec, events) == {16: "skipped"}
    assert verdicts(spec, events)[16].reason == "exceeds-memory"
    detail = verdicts(spec, events)[16].detail
    assert detail is not None
    assert detail.startswith("needs about ")
    assert detail.endswith(" MiB, but 1.00 KiB are free. --force starts it anyway")
    assert of_kind(events, CellStarted) == []


def test_what_fits_on_the_device_that_auto_stands_for_is_started(tmp_path: Path) -> None:
    """Inference under autocast keeps copies of the weights on a GPU, and none on a CPU."""
    words = {"precision": "bf16", "mode": "inference", "device": "auto"}
    anywhere, on_cpu = (
        formulas.predicted_memory(next(spec_of([16], **{**words, "device": device}).cells())).total_bytes
        for device in ("auto", "cpu")
    )
    assert on_cpu < anywhere
    spec = spec_of([16], **words)
    assert outcomes(spec, carry_out(spec, tmp_path, sampler=FakeSampler(free_bytes=on_cpu))) == {16: "ok"}


def test_force_starts_what_cannot_fit(tmp_path: Path) -> None:
    spec = spec_of([16])
    assert outcomes(spec, carry_out(spec, tmp_path, sampler=FakeSampler(free_bytes=1024), force=True)) == {16: "ok"}


def test_a_gpu_tries_what_may_fit_and_skips_what_is_hopeless(tmp_path: Path) -> None:
    spec = spec_of([32, 256], device=("cuda",))
    needed_bytes = formulas.predicted_memory(next(spec.cells())).total_bytes
    sampler = FakeSampler(free_bytes=round(needed_bytes / 1.4))
    events = carry_out(spec, tmp_path, ScriptedLauncher({32: "oom"}, devices=[GPU]), sampler=sampler)
    assert outcomes(spec, events) == {32: "oom", 256: "skipped"}


def test_a_kernel_that_does_not_exist_here_is_invalid_without_a_start(tmp_path: Path) -> None:
    spec = spec_of([16], attention=("cudnn", "naive"))
    events = carry_out(spec, tmp_path)
    assert [event.outcome for event in of_kind(events, CellFinished)] == ["invalid", "ok"]
    assert len(of_kind(events, CellStarted)) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": "cuda:1"}, "--device cuda:1: no such device on this machine; available: cpu (Made-up CPU)"),
        ({"device": "auto", "precision": "tf32"}, "--precision tf32 is a CUDA format. On cpu use fp32"),
    ],
)
def test_a_machine_that_is_not_what_was_asked_for_is_refused_and_leaves_no_log(
    tmp_path: Path, fields: dict[str, str], message: str
) -> None:
    session = start(spec_of([16], **fields), tmp_path)
    with pytest.raises(UsageError) as caught:
        list(session)
    assert str(caught.value) == message
    assert list(tmp_path.iterdir()) == []


def test_auto_is_the_first_device_and_cuda_the_first_gpu(tmp_path: Path) -> None:
    second = {**GPU, "index": 1, "uuid": "GPU-2"}
    launcher = ScriptedLauncher(devices=[GPU, second, CPU])
    spec = spec_of([16], device="auto,cuda,cuda:1,cpu")
    started = of_kind(carry_out(spec, tmp_path, launcher), CellStarted)
    assert [event.device.torch_name for event in started] == ["cuda:0", "cuda:0", "cuda:1", "cpu"]


# Ceilings and readings


def test_a_ceiling_is_measured_once_for_each_device_and_precision(tmp_path: Path) -> None:
    events = carry_out(spec_of([16, 32], precision=("fp32", "bf16")), tmp_path)
    assert [event.precision for event in of_kind(events, CeilingMeasured)] == ["fp32", "bf16"]
    kinds = [event.event for event in events if isinstance(event, CeilingMeasured | CellStarted)]
    assert kinds[0] == "ceiling_measured"


def test_a_ceiling_that_nobody_will_see_is_not_measured(tmp_path: Path) -> None:
    spec = spec_of([16])
    events = carry_out(spec, tmp_path, ceilings=False)
    assert of_kind(events, CeilingMeasured) == []
    assert outcomes(spec, events) == {16: "ok"}


@pytest.mark.parametrize(
    ("how", "detail"),
    [
        ("fails", "too hot"),
        ("dies", "the worker was killed by SIGKILL; the kernel does that when host memory runs out"),
    ],
)
def test_without_a_ceiling_cells_are_measured_all_the_same(tmp_path: Path, how: str, detail: str) -> None:
    spec = spec_of([16])
    events = carry_out(spec, tmp_path, ScriptedLauncher(ceiling=how))
    assert [event.detail for event in of_kind(events, CeilingFailed)] == [detail]
    assert outcomes(spec, events) == {16: "ok"}


def test_readings_come_while_the_worker_works_and_processes_are_counted_before(tmp_path: Path) -> None:
    spec = spec_of([16])
    events = carry_out(spec, tmp_path, ScriptedLauncher({16: "slow"}))
    (began,) = [number for number, event in enumerate(events) if isinstance(event, CellStarted)]
    (ended,) = [number for number, event in enumerate(events) if isinstance(event, CellFinished)]
    counted = [number for number, event in enumerate(events) if isinstance(event, Reading) and event.other_processes]
    first_step = next(number for number, event in enumerate(events) if isinstance(event, StepMeasured))
    assert len(of_kind(events[first_step:ended], Reading)) >= 5
    assert counted == [began + 1]
    assert counted[0] < first_step


def test_a_lost_source_of_readings_is_reported_once(tmp_path: Path) -> None:
    assert len(of_kind(carry_out(spec_of([16, 32]), tmp_path), ReadingsLost)) == 1


def test_the_sampler_follows_the_worker_of_the_moment(tmp_path: Path) -> None:
    sampler = FakeSampler()
    events = carry_out(spec_of([32, 16]), tmp_path, ScriptedLauncher({32: "killed"}), sampler)
    first, second = (ready.pid for ready in of_kind(events, WorkerReady))
    assert sampler.watched == [(first,), (), (second,), ()]
    assert [device.name for device in sampler.used if device] == ["Made-up CPU", "Made-up CPU"]
    assert sampler.closed


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not say which file a descriptor is")
def test_a_finished_cell_is_on_disk_before_anyone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has been forced to disk survives a loss of power: that is taken down at every fsync of the log."""
    durable = b""
    fsync = os.fsync

    def forced(descriptor: int) -> None:
        nonlocal durable
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        durable = path.read_bytes() if path.suffix == ".jsonl" else durable

    monkeypatch.setattr(os, "fsync", forced)
    told = 0
    with start(spec_of([16, 32, 64]), tmp_path) as session:
        for event in session:
            if isinstance(event, CellFinished):
                told += 1
                assert durable.count(b'"event":"cell_finished"') == told
            if isinstance(event, RunStarted | RunFinished):
                assert f'"event":"{event.event}"'.encode() in durable
    assert told == 3


# Ctrl-C


def _interrupt_soon(number: signal.Signals = signal.SIGINT, after_s: float = 0.3) -> None:
    threading.Timer(after_s, os.kill, (os.getpid(), number)).start()


def test_an_interrupt_while_a_cell_is_measured_keeps_what_it_measured(tmp_path: Path) -> None:
    spec = spec_of([16, 32])
    events: list[Event] = []
    with start(spec, tmp_path, ScriptedLauncher({16: "goes on"})) as session:
        for event in session:
            events.append(event)
            if isinstance(event, StepMeasured) and event.index == 3:
                os.kill(os.getpid(), signal.SIGINT)
    assert outcomes(spec, events) == {16: "interrupted"}
    assert of_kind(events, RunFinished)[0].status == "interrupted"
    assert len(of_kind(only_log(tmp_path), StepMeasured)) >= 4
    assert only_log(tmp_path) == events


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_is_noticed_at_once_while_the_worker_is_silent(tmp_path: Path, number: signal.Signals) -> None:
    spec = spec_of([16])
    sampler = FakeSampler()
    sampler.interval_s = 600
    events: list[Event] = []
    with start(spec, tmp_path, ScriptedLauncher({16: "hangs"}), sampler) as session:
        for event in session:
            events.append(event)
            if isinstance(event, StepMeasured):
                _interrupt_soon(number)
    assert outcomes(spec, events) == {16: "interrupted"}
    interrupted_s = of_kind(events, WorkerExited)[0].at_s - of_kind(events, StepMeasured)[0].at_s
    assert interrupted_s < HANG_S, "it waited for the worker or for the next reading"


def test_an_interrupt_while_the_worker_starts(tmp_path: Path) -> None:
    events: list[Event] = []
    with start(spec_of([16]), tmp_path, ScriptedLauncher(start="hangs")) as session:
        for event in session:
            events.append(event)
            if isinstance(event, RunStarted):
                _interrupt_soon()
    assert [event.event for event in events if event.event not in ("reading", "readings_lost")] == [
        "run_started",
        "worker_exited",
        "run_finished",
    ]
    assert of_kind(events, RunFinished)[0].status == "interrupted"


def _interrupted_at(moment: Callable[[Event], bool], out: Path) -> list[Event]:
    events: list[Event] = []
    with start(spec_of([16, 32]), out) as session:
        for event in session:
            events.append(event)
            if moment(event):
                os.kill(os.getpid(), signal.SIGINT)
    return events


def test_an_interrupt_between_cells_starts_no_other(tmp_path: Path) -> None:
    events = _interrupted_at(lambda event: isinstance(event, CellFinished), tmp_path)
    assert [event.outcome for event in of_kind(events, CellFinished)] == ["ok"]
    assert len(of_kind(events, CellStarted)) == 1
    assert of_kind(events, RunFinished)[0].status == "interrupted"


def test_an_interrupt_before_the_worker_is_launched(tmp_path: Path) -> None:
    events = _interrupted_at(lambda event: isinstance(event, RunStarted), tmp_path)
    assert [event.event for event in events] == ["run_started", "run_finished"]
    assert of_kind(events, RunFinished)[0].status == "interrupted"


def test_an_interrupt_when_everything_is_measured_makes_the_run_no_less_complete(tmp_path: Path) -> None:
    spec = spec_of([16])
    events: list[Event] = []
    with start(spec, tmp_path, ScriptedLauncher(end="lingers")) as session:
        for event in session:
            events.append(event)
            if isinstance(event, CellFinished):
                _interrupt_soon()
    assert outcomes(spec, events) == {16: "ok"}
    assert of_kind(events, RunFinished)[0].status == "complete"


@pytest.mark.parametrize("signals", [2, 3])
def test_a_second_interrupt_changes_nothing_a_third_ends_everything_and_the_log_is_whole(
    tmp_path: Path, signals: int
) -> None:
    seen: list[Event] = []

    def interrupted() -> None:
        with start(spec_of([16]), tmp_path, ScriptedLauncher({16: "goes on"})) as session:
            for event in session:
                seen.append(event)
                if isinstance(event, StepMeasured) and len(of_kind(seen, StepMeasured)) == 1:
                    for _ in range(signals):
                        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) if signals == 3 else nullcontext():
        interrupted()
    (finished,) = of_kind(only_log(tmp_path), RunFinished)
    assert finished.status == "interrupted"
    assert [event.outcome for event in of_kind(only_log(tmp_path), CellFinished)] == ["interrupted"]
    assert has_ended(of_kind(seen, WorkerReady)[0].pid)


def test_impatience_does_not_cut_a_beginning_end_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSBENCH_TEST_CHILD", str(tmp_path / "child"))
    monkeypatch.setattr("sysbench.engine.process.TERMINATION_TIMEOUT_S", 0.6)
    spec = spec_of([16])
    events: list[Event] = []
    with start(spec, tmp_path / "runs", ScriptedLauncher({16: "hangs stubbornly"})) as session:
        for event in session:
            events.append(event)
            if isinstance(event, StepMeasured):
                os.kill(os.getpid(), signal.SIGINT)
                _interrupt_soon(after_s=0.2)
    assert outcomes(spec, events) == {16: "interrupted"}
    assert [gone.signal for gone in of_kind(events, WorkerExited)] == ["SIGKILL"]
    assert only_log(tmp_path / "runs") == events


def test_signals_are_given_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    carry_out(spec_of([16]), tmp_path)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    assert signal.set_wakeup_fd(-1) == descriptor


def test_a_run_under_nohup_survives_the_hangup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        spec = spec_of([16])
        events: list[Event] = []
        with start(spec, tmp_path, ScriptedLauncher({16: "slow"})) as session:
            for event in session:
                events.append(event)
                if isinstance(event, StepMeasured):
                    os.kill(os.getpid(), signal.SIGHUP)
        assert outcomes(spec, events) == {16: "ok"}
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_can_be_carried_out_in_a_thread(tmp_path: Path) -> None:
    spec = spec_of([16])
    told: list[Event] = []
    thread = threading.Thread(target=lambda: told.extend(carry_out(spec, tmp_path)))
    thread.start()
    thread.join(HANG_S)
    assert outcomes(spec, told) == {16: "ok"}


# Threads


def test_threads_are_chosen_once_before_the_first_cell_on_the_cpu(tmp_path: Path) -> None:
    cells = dict.fromkeys((16, 32), "tells its threads")
    spec = spec_of([16, 32])
    events = carry_out(spec, tmp_path, ScriptedLauncher(cells, threads=[4, 2]))
    (probed,) = of_kind(events, ThreadsProbed)
    assert (probed.default, probed.threads) == (4, 2)
    assert events.index(probed) < events.index(of_kind(events, CeilingMeasured)[0])
    assert [each.detail for each in of_kind(events, CellFinished)] == ["2 threads", "2 threads"]
    environment = fold(events).environment
    assert environment.torch is not None
    assert environment.threads_probe is not None
    assert (environment.torch.threads, environment.threads_probe.mean_s) == (2, [(4, 0.08), (2, 0.002)])


@pytest.mark.parametrize(
    ("fields", "device", "threads"),
    [({"threads": 4}, CPU, [4, 2]), ({"device": "cuda"}, GPU, [4, 2]), ({}, CPU, [1, 1])],
    ids=["--threads", "on a GPU", "one thread"],
)
def test_nothing_is_probed_where_nothing_is_to_be_chosen(
    tmp_path: Path, fields: dict[str, Any], device: dict[str, Any], threads: list[int]
) -> None:
    spec = spec_of([16], **fields)
    events = carry_out(spec, tmp_path, ScriptedLauncher(devices=[device], threads=threads))
    assert of_kind(events, ThreadsProbed) == []
    assert outcomes(spec, events) == {16: "ok"}


def test_a_probe_that_fails_costs_no_cell(tmp_path: Path) -> None:
    spec = spec_of([16])
    events = carry_out(spec, tmp_path, ScriptedLauncher({16: "tells its threads"}, threads=[4, 0]))
    assert [each.detail for each in of_kind(events, CellFinished)] == ["4 threads"]


def test_a_resumed_run_keeps_the_threads_that_it_began_with(tmp_path: Path) -> None:
    spec = spec_of([16, 32])
    carry_out(spec, tmp_path, ScriptedLauncher({16: "tells its threads", 32: "crashed"}, threads=[4, 2]))
    (log,) = tmp_path.glob("*.jsonl")
    again = ScriptedLauncher({32: "tells its threads"}, threads=[4, 4])
    resumed = carry_out(spec, tmp_path, again, resume=log)
    assert [each.detail for each in of_kind(resumed, CellFinished)] == ["2 threads"]
    assert [each.threads for each in of_kind(only_log(tmp_path), ThreadsProbed)] == [2, 2]
