"""Ranks that a launcher has started: each runs its worker, and rank 0 the engine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from sysbench.commands.time.fold import fold
from sysbench.engine.provisions import Provisions, Surroundings
from sysbench.engine.rendezvous import other_rank
from sysbench.engine.rendezvous.rank_zero import Hello, LaunchedRank, RankConnections, connect_ranks, launched_rank
from sysbench.engine.session import run
from sysbench.errors import SysbenchError, UsageError
from sysbench.log.events import CellFinished, OfRank, RunFinished, StepMeasured, WorkerExited
from sysbench.log.journal import read
from sysbench.spec.run import RunOptions
from tests.cli.running import MINUTE, answered, environment
from tests.engine.fakes import FakeSampler, ScriptedLauncher, carry_out, of_kind, only_log, outcomes, spec_of, verdicts
from tests.processes import HANG_S

HELLO = Hello(rank=1, ranks=2, host="elsewhere", version="1.0", digest="d", spec="s")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def process(rank: int, port: int, key: bytes = b"") -> LaunchedRank:
    return LaunchedRank(rank, 2, 0, "127.0.0.1", port, key)


@contextmanager
def seated(
    own: LaunchedRank, hello: Hello = HELLO, before: Callable[[], None] = lambda: None, **given: Any
) -> Iterator[list[Exception]]:
    """Rank 1 in a thread of this process, which does something `before`; yields what it raised, complete at the end."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            before()
            other_rank.serve(own, hello, **{"cells": {}, "timeout_s": HANG_S, **given})
        except Exception as error:  # noqa: BLE001  It is handed to the test.
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield raised
    finally:
        thread.join(HANG_S)
        assert not thread.is_alive()


@contextmanager
def two_nodes(spec: Any, script: ScriptedLauncher) -> Iterator[RankConnections]:
    """Rank 0's connections, and a rank 1 whose worker is scripted."""
    port = free_port()
    cells = {cell.key: cell for cell in spec.cells()}
    with (
        seated(process(1, port), cells=cells, launcher=script) as raised,
        connect_ranks(process(0, port), HELLO, HANG_S) as links,
    ):
        yield links
    assert raised == []


def test_a_rank_of_another_node_measures_beside_rank_0(tmp_path: Path) -> None:
    spec = spec_of([16, 32], ranks=(1, 2))
    with two_nodes(spec, ScriptedLauncher()) as links:
        events = carry_out(spec, tmp_path, links=links)
    assert only_log(tmp_path) == events
    assert set(outcomes(spec, events).values()) == {"ok"}
    assert {event.rank for event in of_kind(events, OfRank)} == {1}
    assert [[rank.rank for rank in cell.ranks] for cell in fold(events).cells] == [[], [], [0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("act", "outcome", "detail"),
    [
        ("killed", "crashed", "rank 1 was killed by SIGKILL"),
        ("oom", "oom", "rank 1: CUDA out of memory."),
        ("leaves", "crashed", "rank 1 exited with code 3: RuntimeError: the device fell off the bus"),
    ],
)
def test_a_rank_of_another_node_that_fails_is_named_and_starts_anew(
    tmp_path: Path, act: str, outcome: str, detail: str
) -> None:
    spec = spec_of([32, 16], ranks=2)
    with two_nodes(spec, ScriptedLauncher({32: act})) as links:
        events = carry_out(spec, tmp_path, ScriptedLauncher({32: "hangs"}), links=links)
    assert outcomes(spec, events) == {32: outcome, 16: "ok"}
    assert (verdicts(spec, events)[32].detail or "").startswith(detail)
    assert of_kind(events, WorkerExited)[0].rank == (1 if outcome == "crashed" else 0)  # the first that is gone


def test_what_writes_files_takes_the_ranks_of_one_node_which_rank_0_starts_itself(tmp_path: Path) -> None:
    spec = spec_of([16], ranks=2)
    (cell,) = spec.cells()
    files = Provisions({cell.key: tmp_path / "trace.json"})
    of_two, of_one = (RankConnections(replace(process(0, 1), on_one_node=one), {}, {}) for one in (False, True))
    with pytest.raises(UsageError, match="ranks on several nodes would be written on each"):
        run(spec, RunOptions(out=tmp_path), provisions=files, surroundings=Surroundings(links=of_two))
    scripted = partial(run, launcher=ScriptedLauncher(), sampler=FakeSampler(), provisions=files)
    with scripted(spec, RunOptions(out=tmp_path), surroundings=Surroundings(links=of_one)) as session:
        assert outcomes(spec, list(session)) == {16: "ok"}


def test_a_node_that_leaves_ends_the_run_and_the_log_names_its_rank(tmp_path: Path) -> None:
    spec, port = spec_of([16, 32], ranks=2), free_port()
    with (
        seated(process(1, port), launcher=ScriptedLauncher({16: "goes on"})),  # knows no cell, and leaves
        connect_ranks(process(0, port), HELLO, HANG_S) as links,
        pytest.raises(SysbenchError, match=r"rank 1 (is lost|on elsewhere has left)"),
    ):
        carry_out(spec, tmp_path, ScriptedLauncher({16: "goes on"}), links=links)
    events = only_log(tmp_path)
    lost = "rank 1 is lost: its process, on this node or another, has exited or is unreachable"
    assert verdicts(spec, events)[16].detail == lost
    assert of_kind(events, RunFinished)[0].status == "failed"


def test_a_rank_with_another_torch_ends_the_run_in_one_line_with_both_versions(tmp_path: Path) -> None:
    spec = spec_of([16], ranks=2)
    with (
        two_nodes(spec, ScriptedLauncher(torch="2.9.1")) as links,
        pytest.raises(SysbenchError, match=r"^rank 1 has torch 2\.9\.1, but rank 0 has torch 2\.13\.0: install one"),
    ):
        carry_out(spec, tmp_path, links=links)


def test_a_rank_measures_only_cells_of_its_own_command_line(tmp_path: Path) -> None:
    spec, port = spec_of([16], ranks=2), free_port()
    with (
        seated(process(1, port), launcher=ScriptedLauncher()) as raised,
        connect_ranks(process(0, port), HELLO, HANG_S) as links,
    ):
        events = carry_out(spec, tmp_path, ScriptedLauncher({16: "hangs"}), links=links)
    assert outcomes(spec, events) == {16: "crashed"}
    assert "not in the command line of this rank" in str(raised[0])


def test_more_ranks_than_were_started_are_refused(tmp_path: Path) -> None:
    spec = spec_of([16], ranks=3)
    complaint = "--ranks 3 needs that many processes, but 2 were started"
    with two_nodes(spec, ScriptedLauncher()) as links, pytest.raises(UsageError, match=complaint):
        carry_out(spec, tmp_path, links=links)


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"version": "1.1"}, "rank 1 on elsewhere runs sysbench 1.1, but rank 0 runs 1.0: install one version for all"),
        ({"digest": "e"}, "rank 1 on elsewhere runs different code of sysbench 1.0 from rank 0"),
        (
            {"spec": "t"},
            "rank 1 on elsewhere was started with different options from rank 0: give all ranks the same command",
        ),
        ({"ranks": 3}, "rank 1 on elsewhere is one of 3 ranks, but rank 0 is one of 2"),
    ],
)
def test_a_rank_of_another_run_is_refused_in_the_same_line_on_both_sides(
    other: Mapping[str, Any], complaint: str
) -> None:
    port = free_port()
    with (
        seated(process(1, port), HELLO.model_copy(update=other)) as raised,
        pytest.raises(UsageError, match=f"^{complaint}"),
        connect_ranks(process(0, port), HELLO, HANG_S),
    ):
        pass
    assert str(raised[0]).startswith(complaint)


def test_a_rank_with_another_key_and_a_stranger_take_no_part() -> None:
    port = free_port()
    with (
        seated(process(1, port, b"other")) as raised,
        pytest.raises(SysbenchError, match=r"^rank 1 did not connect to"),
        connect_ranks(process(0, port, b"ours"), HELLO, 1),
    ):
        pass
    assert "is not rank 0 of this run, or has another SYSBENCH_KEY" in str(raised[0])

    def stray() -> None:
        """Say what no rank says, as soon as rank 0 listens."""
        for _ in range(int(HANG_S / 0.05)):
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                return
            time.sleep(0.05)
        raise TimeoutError("rank 0 does not listen")

    with socket.create_server(("127.0.0.1", port)), seated(process(1, port), timeout_s=1) as raised:
        pass  # a server that accepts and says nothing
    assert "is not rank 0 of this run" in str(raised[0])

    with seated(process(1, port), before=stray) as raised, connect_ranks(process(0, port), HELLO, HANG_S) as links:
        assert links.ranks == 2
    assert raised == []


def test_a_port_in_use_and_a_rank_0_that_is_nowhere_are_one_line_each(tmp_path: Path) -> None:
    words = ("time", *MINUTE, "--ctx=16", "--ranks=2", "--timeout=1")

    def refused(rank: int, address: str, port: int) -> str:
        there = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": str(port - 1)}
        ran = answered(*words, cwd=tmp_path, **there)
        assert ran.code in (1, 2)
        return ran.complaint

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use: set SYSBENCH_PORT" in refused(0, "127.0.0.1", port)
    began_s = time.monotonic()
    assert f"rank 0 does not answer at 127.0.0.1 port {port} after 1 s: connection refused" in refused(
        1, "127.0.0.1", port
    )
    assert f"rank 1 did not connect to 127.0.0.1 port {port} within 1 s" in refused(0, "127.0.0.1", port)
    assert "MASTER_ADDR=nowhere.invalid is not a known host" in refused(1, "nowhere.invalid", port)
    assert "MASTER_ADDR=192.0.2.1 is not an address of this machine" in refused(0, "192.0.2.1", port)
    assert time.monotonic() - began_s < HANG_S
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # a script of sbatch, which runs once
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29400"},
            LaunchedRank(3, 4, 1, "a", 29401, b""),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a"},
            LaunchedRank(1, 2, 1, "a", 29501, b"", on_one_node=True),
        ),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1", "MASTER_ADDR": "a"}
            | {"SYSBENCH_PORT": "7", "SYSBENCH_KEY": "k"},
            LaunchedRank(1, 2, 1, "a", 7, b"k"),
        ),
    ],
)
def test_the_variables_of_torchrun_and_srun_say_which_rank_this_is(
    variables: Mapping[str, str], expected: LaunchedRank | None
) -> None:
    assert launched_rank(variables) == expected


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "RANK=2 is not a number that a launcher sets"),
        ({"RANK": "0", "WORLD_SIZE": "x", "MASTER_ADDR": "a"}, "WORLD_SIZE=x is not a number"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "set MASTER_ADDR to the address of rank 0"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "70000"}, "it must be 1 to 65535"),
    ],
)
def test_variables_that_make_no_sense_are_refused(variables: Mapping[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        launched_rank(variables)


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.slow
def test_ctrl_c_under_torchrun_on_either_of_two_nodes_ends_all_ranks_and_keeps_the_log(
    tmp_path: Path, node: int
) -> None:
    port = free_port()
    words = (*MINUTE, "--ctx=16", "--mode=forward", "--steps=100000", "--ranks=2", "--device=cpu", f"--out={tmp_path}")
    nodes = []
    for number in (0, 1):
        where = ("--nnodes=2", f"--node-rank={number}", "--master-addr=127.0.0.1", f"--master-port={port}")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", *where]
        nodes.append(
            subprocess.Popen(
                [*torchrun, "-m", "sysbench", "time", *words],
                env=environment(),
                cwd=Path(__file__).parents[2],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
    everyone = []
    try:
        deadline_s = time.monotonic() + HANG_S
        step_of_rank_0 = '\n{"event":"step_measured"'  # a step of the other rank stands within an event
        while not any(step_of_rank_0 in log.read_text() for log in tmp_path.glob("*.jsonl")):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        everyone = [child for node in nodes for child in psutil.Process(node.pid).children(recursive=True)]
        os.killpg(nodes[node].pid, signal.SIGINT)
        for node in nodes:
            node.wait(HANG_S)
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    assert len(everyone) == 4  # on each node sysbench and a worker
    assert psutil.wait_procs(everyone, timeout=HANG_S)[1] == []
    (log,) = tmp_path.glob("*.jsonl")
    events = list(read(log))
    assert [event.outcome for event in of_kind(events, CellFinished)] == ["interrupted"]
    assert of_kind(events, RunFinished)[0].status == "interrupted"
    assert of_kind(events, StepMeasured)
    assert len(fold(events).cells[0].ranks) == 2
