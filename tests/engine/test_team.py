"""What becomes of a cell of several ranks, and of their processes."""

from __future__ import annotations

import itertools
import os
import signal
from functools import reduce
from pathlib import Path

import psutil
import pytest

from sysbench.commands.time.fold import fold
from sysbench.commands.time.live import LiveState, advance
from sysbench.errors import SysbenchError, UsageError
from sysbench.log.events import (
    CellFinished,
    Event,
    OfRank,
    PhaseSample,
    RunFinished,
    RunStarted,
    StepMeasured,
    WorkerExited,
    WorkerReady,
)
from sysbench.log.journal import read
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
from tests.fixtures_cautions import in_words
from tests.worker import forked

SHORT_S = 4.0


def left_behind() -> list[psutil.Process]:
    return [child for child in forked.children() if child.status() != psutil.STATUS_ZOMBIE]


def test_every_rank_reports_its_own_steps_and_the_cell_is_finished_once(tmp_path: Path) -> None:
    spec = spec_of([16], ranks=3)
    sampler = FakeSampler()
    events = carry_out(spec, tmp_path, sampler=sampler)
    assert outcomes(spec, events) == {16: "ok"}
    assert len(of_kind(events, CellFinished)) == len(of_kind(events, StepMeasured)) == 1
    assert sorted(event.rank for event in of_kind(events, OfRank)) == [1, 2]
    assert only_log(tmp_path) == events
    (cell,) = fold(events).cells
    assert [each.rank for each in cell.ranks] == [0, 1, 2]
    assert all(each.median_step_s == 0.001 for each in cell.ranks)
    assert len(max(sampler.watched, key=len)) == 3
    assert left_behind() == []


def test_the_dashboard_shows_the_slowest_rank_of_each_step(tmp_path: Path) -> None:
    events = carry_out(spec_of([16], ranks=3), tmp_path)
    for rank in (1, 2):
        (place,) = (at for at, event in enumerate(events) if isinstance(event, OfRank) and event.rank == rank)
        event = events[place]
        assert isinstance(event, OfRank)
        said = event.said.model_copy(update={"step": PhaseSample(wall_s=0.003 / rank)})
        events[place] = event.model_copy(update={"said": said})
    running = reduce(
        advance, itertools.takewhile(lambda event: not isinstance(event, CellFinished), events), LiveState()
    )
    assert running.current_cell is not None
    assert [step.total_s for step in running.current_cell.steps] == [0.003]


def test_more_ranks_than_cores_of_a_cpu_get_a_caution_that_names_both(tmp_path: Path) -> None:
    opening, *events = carry_out(spec_of([16], ranks=3), tmp_path)
    assert isinstance(opening, RunStarted)
    for cores, expected in ((2, ["3 ranks share 2 cores and take turns"]), (3, [])):
        host = opening.host.model_copy(update={"logical_cores": cores})
        (cell,) = fold([opening.model_copy(update={"host": host}), *events]).cells
        shared = [each for each in cell.cautions if each.code == "cores-shared"]
        assert [in_words(each) for each in shared] == expected
        assert all(each.remedy.startswith("use --ranks 2 or fewer") for each in shared)


def test_the_worker_of_one_rank_becomes_rank_0_and_stays_for_all_cells_of_that_many(tmp_path: Path) -> None:
    spec = spec_of([16, 32], ranks=(1, 2), strategy=("ddp", "fsdp2"))
    sampler = FakeSampler()
    events = carry_out(spec, tmp_path, sampler=sampler)
    assert set(outcomes(spec, events).values()) == {"ok"}
    alone, together, *_ = (pids for pids in sampler.watched if pids)
    assert together[:1] == alone
    assert len(of_kind(events, WorkerReady)) == 2


@pytest.mark.parametrize(
    ("acts", "outcome", "detail", "died_by"),
    [
        (
            ["hangs", "killed"],
            "crashed",
            "rank 1 was killed by SIGKILL; the kernel does that when host memory runs out",
            "SIGKILL",
        ),
        (["bereft", "aborted"], "crashed", "rank 1 was killed by SIGABRT", "SIGABRT"),
        (["leaves", "hangs"], "crashed", "rank 0 exited with code 3: RuntimeError: the device fell off the bus", None),
        (["hangs", "oom"], "oom", "rank 1: CUDA out of memory. Tried to allocate 20.00 GiB.", "SIGTERM"),
        (["bereft", "oom"], "oom", "rank 1: CUDA out of memory. Tried to allocate 20.00 GiB.", "SIGTERM"),
        (["hangs", "invalid"], "invalid", "rank 1: there is no such kernel", "SIGTERM"),
        (["invalid", "invalid"], "invalid", "there is no such kernel", "SIGTERM"),
        (["hangs", "babbles"], "crashed", "an invalid event", "SIGTERM"),
    ],
)
def test_the_rank_that_failed_is_named_the_others_are_ended_and_the_sweep_goes_on(
    tmp_path: Path, acts: list[str], outcome: str, detail: str, died_by: str | None
) -> None:
    spec = spec_of([32, 16], ranks=2)
    events = carry_out(spec, tmp_path, ScriptedLauncher({32: acts}))
    assert outcomes(spec, events) == {32: outcome, 16: "ok"}
    assert detail in (verdicts(spec, events)[32].detail or "")
    assert of_kind(events, WorkerExited)[0].signal == died_by
    assert of_kind(events, RunFinished)[0].status == "complete"
    assert left_behind() == []


@pytest.mark.parametrize(
    ("acts", "detail"),
    [
        (
            ["timeout", "hangs"],
            "rank 1 did not join a collective operation; rank 0 waited for 2.8 s (--timeout)",
        ),
        (
            ["hangs", "timeout"],
            "rank 0 did not join a collective operation; rank 1 waited for 2.8 s (--timeout)",
        ),
        (["hangs", "hangs"], "ranks 0, 1 sent no message for 4 s (--timeout)"),
    ],
)
def test_a_rank_that_hangs_is_named(tmp_path: Path, acts: list[str], detail: str) -> None:
    spec = spec_of([32, 16], ranks=2)
    events = carry_out(spec, tmp_path, ScriptedLauncher({32: acts}), timeout_s=SHORT_S)
    assert outcomes(spec, events) == {32: "timeout", 16: "ok"}
    assert verdicts(spec, events)[32].detail == detail
    assert left_behind() == []


def test_an_interrupt_ends_all_ranks_and_keeps_what_they_measured(tmp_path: Path) -> None:
    spec = spec_of([16, 32], ranks=2)
    events: list[Event] = []
    with start(spec, tmp_path, ScriptedLauncher({16: "goes on"})) as session:
        for event in session:
            events.append(event)
            if isinstance(event, StepMeasured) and event.index == 3:
                os.kill(os.getpid(), signal.SIGINT)
    assert outcomes(spec, events) == {16: "interrupted"}
    assert left_behind() == []
    (path,) = tmp_path.glob("*.jsonl")
    cell = fold(read(path)).cells[0]
    assert [len(each.phases["step"].wall.samples_s) >= 3 for each in cell.ranks if each.phases["step"].wall] == [
        True
    ] * 2


def test_a_failed_cell_of_several_ranks_runs_again_when_the_log_is_continued(tmp_path: Path) -> None:
    spec = spec_of([16, 32], ranks=2)
    carry_out(spec, tmp_path, ScriptedLauncher({32: ["ok", "crashed"]}))
    (log,) = tmp_path.glob("*.jsonl")
    carry_out(spec, tmp_path, resume=log)
    record = fold(read(log))
    assert [cell.outcome for cell in record.cells] == ["ok", "ok"]
    assert [len(cell.ranks) for cell in record.cells] == [2, 2]


def test_more_ranks_than_gpus_are_refused_and_no_log_stays(tmp_path: Path) -> None:
    gpus = [{**GPU, "index": index, "uuid": f"GPU-{index}"} for index in range(2)]
    launcher = ScriptedLauncher(devices=[*gpus, CPU])
    with pytest.raises(UsageError, match=r"--ranks 3 needs a device for each rank, but from cuda:0 on there are 2"):
        carry_out(spec_of([16], ranks=3, device="auto"), tmp_path, launcher)
    with pytest.raises(UsageError, match=r"--ranks 2 .* from cuda:1 on there is 1 device"):
        carry_out(spec_of([16], ranks=2, device="cuda:1"), tmp_path, launcher)
    assert list(tmp_path.iterdir()) == []
    spec, sampler = spec_of([16], ranks=2, device="cuda"), FakeSampler()
    assert outcomes(spec, carry_out(spec, tmp_path, launcher, sampler=sampler)) == {16: "ok"}
    assert [each.torch_name for each in sampler.used_by_other_ranks] == ["cuda:1"]


def test_ranks_that_cannot_start_end_the_run_and_the_worker_that_had(tmp_path: Path) -> None:
    launcher = ScriptedLauncher()
    with start(spec_of([16], ranks=2), tmp_path, launcher) as session:
        while not isinstance(next(session), WorkerReady):
            pass
        launcher.script["start"] = "dies"
        with pytest.raises(
            SysbenchError, match="no worker could be started: rank 1 exited with code 1: ModuleNotFound"
        ):
            list(session)
    assert left_behind() == []
