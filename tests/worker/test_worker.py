"""The real worker: what it does with a cell, with what a cell raises, and with the end of the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from sysbench.commands.time.spec import TimeCell
from sysbench.engine import protocol
from sysbench.engine.process import Launcher
from sysbench.engine.session import run
from sysbench.errors import SysbenchError, UnavailableError
from sysbench.log.events import (
    CeilingFailed,
    CeilingMeasured,
    CellFinished,
    CellStarted,
    DeviceInfo,
    Event,
    StageEntered,
    StepMeasured,
    WorkerExited,
    WorkerReady,
    decode,
)
from sysbench.spec.run import RunOptions
from sysbench.worker import service
from sysbench.worker.service import Channel, serve
from tests.engine.fakes import FakeSampler, of_kind, spec_of
from tests.processes import HANG_S, has_ended

CPU = DeviceInfo(name="Made-up CPU", type="cpu")
LONG = 100_000
"""More steps than anyone waits for."""


# One real run: two cells in one worker, which is killed in the second; one in another; one that is given up


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    spec = spec_of([16, 32], d_ff=64, heads=2, vocab=100, warmup=1, steps=(2, LONG), precision="fp32")
    events: list[Event] = []
    with run(spec, RunOptions(out=tmp_path_factory.mktemp("runs")), sampler=FakeSampler()) as session:
        for event in session:
            events.append(event)
            if isinstance(event, StepMeasured) and event.index == 2:
                if len(of_kind(events, CellStarted)) == 4:
                    break
                os.kill(of_kind(events, WorkerReady)[-1].pid, signal.SIGKILL)
    return events


@pytest.mark.slow
def test_real_cells_share_a_worker_until_it_is_killed(real_run: list[Event]) -> None:
    workers = [event.event for event in real_run if isinstance(event, WorkerReady | CellStarted | WorkerExited)]
    assert workers == [
        "worker_ready",
        "cell_started",
        "cell_started",
        "worker_exited",
        "worker_ready",
        "cell_started",
        "cell_started",
    ]
    first, second = of_kind(real_run, WorkerReady)
    assert first.pid != second.pid
    assert [(gone.pid, gone.signal) for gone in of_kind(real_run, WorkerExited)] == [(first.pid, "SIGKILL")]


@pytest.mark.slow
def test_a_real_cell_has_its_steps_and_a_killed_one_those_until_then(real_run: list[Event]) -> None:
    assert [event.outcome for event in of_kind(real_run, CellFinished)] == ["ok", "crashed", "ok"]
    measured: dict[str, int] = {}
    for step in of_kind(real_run, StepMeasured):
        measured[step.cell] = measured.get(step.cell, 0) + (not step.warmup)
    complete, killed, again, given_up = (measured[event.cell] for event in of_kind(real_run, CellStarted))
    assert (complete, again) == (2, 2)
    assert 3 <= killed < LONG
    assert 3 <= given_up < LONG


@pytest.mark.slow
def test_a_real_worker_says_what_it_found(real_run: list[Event]) -> None:
    ready = of_kind(real_run, WorkerReady)[0]
    assert ready.torch.torch == torch.__version__
    assert ready.torch.import_s > 0
    assert ready.devices[-1].type == "cpu"


ENGINE = """
import sys
from pathlib import Path
from sysbench.engine.session import run
from sysbench.log.events import StepMeasured, WorkerReady
from sysbench.spec.run import RunOptions
from tests.engine.fakes import FakeSampler, spec_of

spec = spec_of([16], d_ff=64, heads=2, vocab=100, warmup=1, steps=100_000, precision="fp32")
for event in run(spec, RunOptions(out=Path(sys.argv[1])), sampler=FakeSampler()):
    if isinstance(event, WorkerReady):
        print(event.pid, flush=True)
    if isinstance(event, StepMeasured) and event.index == 0:
        print("measuring", flush=True)
"""


@pytest.mark.slow
def test_a_busy_worker_does_not_outlive_an_engine_that_is_killed(tmp_path: Path) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert engine.stdout is not None
    with engine.stdout as output:
        worker = int(output.readline())
        assert output.readline() == "measuring\n"
        engine.kill()
        engine.wait(HANG_S)
        assert has_ended(worker)


def test_without_torch_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    session = run(spec_of([16]), RunOptions(out=tmp_path / "runs"), sampler=FakeSampler())
    with pytest.raises(SysbenchError) as caught:
        list(session)
    assert str(caught.value) == (
        "no worker could be started: the worker exited with code 1: ModuleNotFoundError: No module named 'torch'"
    )


def test_what_lies_in_the_current_directory_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sysbench").mkdir()
    (tmp_path / "sysbench" / "__init__.py").write_text("raise SystemExit('the wrong sysbench')")
    launcher = Launcher()
    shown = subprocess.run(
        launcher.command(), env=launcher.environment(), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "is started by sysbench" in shown.stderr


# What a cell raises, with the experiment replaced by one that raises it


def _answers(command: protocol.Command, orderly: bool = False) -> tuple[list[Event], bool]:
    """Everything the worker says in answer to one command and then `Exit`, and whether it exits in order."""
    engine, worker = Pipe()
    with engine:
        with worker:
            engine.send_bytes(protocol.encode(command))
            engine.send_bytes(protocol.encode(protocol.Exit(orderly=orderly)))
            in_order = serve(Channel(worker), import_s=0.5)
        messages = []
        while engine.poll():
            try:
                messages.append(engine.recv_bytes())
            except EOFError:
                break
    return [decode(message) for message in messages], in_order


def _measure(cell: TimeCell) -> CellFinished:
    events, _ = _answers(protocol.Measure(cell=cell, device=CPU))
    assert isinstance(events[-1], CellFinished)
    return events[-1]


class _Weight:
    """Stands for a tensor."""


@pytest.mark.parametrize(
    ("error", "outcome", "detail"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), "oom", "OutOfMemoryError: CUDA out of memory. Tried"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "oom", None),
        (MemoryError(), "oom", "MemoryError"),
        (UnavailableError("there is no such kernel here"), "invalid", "there is no such kernel here"),
        (ValueError("seq_len must be a multiple of 128"), "invalid", "ValueError: seq_len must be a multiple of 128"),
        (RuntimeError("x" * 1000), "crashed", "RuntimeError: " + "x" * 186 + "…" + "x" * 99),
    ],
)
def test_what_a_cell_raises_becomes_its_outcome(
    monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: str, detail: str | None
) -> None:
    held: list[weakref.ref[_Weight]] = []

    def failing(cell: TimeCell, device: DeviceInfo, artifact: Path | None) -> Iterator[Event]:
        weight = _Weight()
        held.append(weakref.ref(weight))
        yield StageEntered(at_s=time.time(), cell=cell.key, stage="building")
        raise type(error)(*error.args)  # a new one, whose traceback nobody but the worker has

    monkeypatch.setattr("sysbench.commands.time.measure.run", failing)
    (cell,) = spec_of([16]).cells()
    finished = _measure(cell)
    assert (finished.cell, finished.outcome) == (cell.key, outcome)
    assert detail is None or finished.detail == detail
    assert finished.traceback is not None
    assert "in failing" in finished.traceback
    assert held[0]() is None, "what the cell held was not let go of"


def test_a_cell_and_its_ceiling_run_on_the_threads_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def measuring(cell: TimeCell, device: DeviceInfo, artifact: Path | None) -> Iterator[Event]:
        used.append(torch.get_num_threads())
        yield StageEntered(at_s=time.time(), cell=cell.key, stage="measuring")
        used.append(torch.get_num_threads())

    monkeypatch.setattr("sysbench.commands.time.measure.run", measuring)
    before = torch.get_num_threads()
    for cell in spec_of([16], threads=(before + 1,)).cells():
        assert _measure(cell).outcome == "ok"
    assert used == [before + 1, before + 1]
    assert torch.get_num_threads() == before
    (cell,) = spec_of([16]).cells()
    _measure(cell)
    assert used[2:] == [before, before]

    def product(*_: object) -> list[tuple[float, int]]:
        used.append(torch.get_num_threads())
        return [(1.0, 0)]

    monkeypatch.setattr("sysbench.lab.ceiling._products", product)
    events, _ = _answers(protocol.MeasureCeiling(device=CPU, precision="fp32", threads=before + 1))
    (measured,) = of_kind(events, CeilingMeasured)
    assert (measured.threads, used[4:], torch.get_num_threads()) == (before + 1, [before + 1], before)


def test_a_ceiling_that_cannot_be_measured_is_said_to_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(device: DeviceInfo, precision: str, threads: int | None) -> Event:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("sysbench.lab.ceiling.measure", failing)
    events, _ = _answers(protocol.MeasureCeiling(device=CPU, precision="bf16"))
    (failed,) = of_kind(events, CeilingFailed)
    assert (failed.device, failed.precision, failed.detail) == ("cpu", "bf16", "OutOfMemoryError: CUDA out of memory")


@pytest.mark.parametrize("orderly", [True, False])
def test_a_worker_ends_as_it_is_told_to(monkeypatch: pytest.MonkeyPatch, orderly: bool) -> None:
    monkeypatch.setattr("sysbench.commands.time.measure.run", lambda cell, device, artifact: iter(()))
    (cell,) = spec_of([16]).cells()
    assert _answers(protocol.Measure(cell=cell, device=CPU), orderly)[1] is orderly


@pytest.mark.parametrize(
    "message",
    [
        "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
        "cuDNN Frontend error: No valid execution plans built.",
        "No valid triton configs. OutOfMemoryError: out of resource: triton_mm Required: 262144 Hardware limit: 232448",
    ],
)
def test_what_no_kernel_can_compute_is_invalid_and_no_crash(message: str) -> None:
    assert service._outcome_and_reason(RuntimeError(message))[0] == "invalid"
    fault = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert service._outcome_and_reason(fault)[0] == "crashed"
