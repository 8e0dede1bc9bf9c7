"""What is reported of a recording equals a count of the run that was recorded, whatever the recording looks like."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.trace import traces
from sysbench.trace.ranks import reading
from sysbench.trace.recording import NONE
from sysbench.trace.summarise import summarise
from tests.trace.made_recordings import Count, Looks, Run

LOOKS = {
    "plain": Looks(),
    "backlog": Looks(lag_us=15_000),
    "leaked warm-up": Looks(lag_us=3_000, leaked=9),
    "streams": Looks(has_streams=True),
    "backlog on streams": Looks(lag_us=5_000, leaked=4, has_streams=True),
    "lost launches": Looks(lag_us=4_000, has_streams=True, lost_share=0.2),
    "corrupt head": Looks(corrupt=3),
    "corrupt backlog": Looks(lag_us=4_000, corrupt=3),
    "graphs": Looks(lag_us=4_000, has_graphs=True, runtime="hip"),
    "everything": Looks(
        lag_us=6_000, leaked=5, has_streams=True, lost_share=0.1, corrupt=2, has_graphs=True, runtime="hip"
    ),
}


def reported(run: Run, path: Path) -> Count:
    run.write(path)
    recording = traces.read(path)
    rank = reading.read(recording)
    communication_ns = [
        sum(each.end_ns - each.start_ns for each in rank.collectives if each.step == step)
        for step in range(len(rank.steps))
    ]
    assert {each.step for each in rank.collectives} <= {NONE, *range(len(rank.steps))}
    summary = summarise(recording)
    assert summary.device is not None
    return Count(
        steps=summary.steps,
        kernels=sum(summary.spent.calls),
        by_class_ns=dict(summary.by_class()),
        busy_ns=summary.busy_ns,
        window_ns=summary.device.window_ns,
        device_window_ns=int(rank.breakdown.window_ns.sum()),
        communication_ns=communication_ns,
        backlog=summary.backlog,
        backlog_ns=summary.backlog_ns,
    )


@pytest.mark.parametrize("looks", LOOKS.values(), ids=LOOKS)
def test_a_recording_holds_what_was_run(tmp_path: Path, looks: Looks) -> None:
    for seed in range(8):
        run = Run(looks, seed)
        assert reported(run, tmp_path / "trace.json") == run.count(), seed


def test_every_rank_holds_what_it_ran(tmp_path: Path) -> None:
    for rank in range(3):
        run = Run(Looks(lag_us=1_000 * rank, has_streams=rank == 2), seed=rank, rank=rank, ranks=3)
        assert reported(run, tmp_path / f"rank{rank}.json") == run.count()
