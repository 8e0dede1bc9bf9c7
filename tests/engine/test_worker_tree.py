from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from sysbench.engine.sensors.worker_tree import ForeignLoad, WorkerTree, descendants_of

MIB = 2**20

HOLD = "held = bytearray(b'x') * (64 * 2**20); print('ready', flush=True); input()"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {HOLD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
{HOLD}
child.communicate()
"""
ON_DEMAND = """
import subprocess, sys
print("ready", flush=True)
for line in sys.stdin:
    child = subprocess.Popen([sys.executable, "-c", line], stdin=subprocess.PIPE)
    print(child.pid, flush=True)
"""
BURN = "import time; end = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
BURN_ON_LINE = f"input(); exec({BURN!r}); print('done', flush=True); input()"
BURN_IN_A_CHILD = (
    f"import subprocess, sys; input(); subprocess.run([sys.executable, '-c', {BURN!r}]); "
    "print('done', flush=True); input()"
)


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        with process:
            for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
                child.kill()
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def resident_bytes(pid: int) -> int:
    """The kernel's own statement, independent of psutil."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) * 1024


def test_resident_memory_counts_the_worker_and_its_children() -> None:
    with running(PARENT) as worker:
        assert line_of(worker) == "ready"
        tree = WorkerTree(worker.pid)
        resident = tree.rss_bytes()
        assert resident is not None
        assert resident > 128 * MIB
        if sys.platform == "linux":
            assert resident == pytest.approx(sum(resident_bytes(pid) for pid in tree.pids), rel=0.05)


def test_a_child_that_is_born_later_belongs_once_the_members_are_listed() -> None:
    with running(ON_DEMAND) as worker:
        line_of(worker)
        tree = WorkerTree(worker.pid)
        assert tree.pids == {worker.pid}
        tell(worker, "input()")
        child = int(line_of(worker))
        tree.list_members()
        assert tree.pids == {worker.pid, child}
        assert {child.pid for child in psutil.Process(worker.pid).children(recursive=True)} == {child}


def test_a_worker_that_vanishes_between_two_looks_is_unknown() -> None:
    with running("print('ready', flush=True); input()") as worker:
        assert line_of(worker) == "ready"
        tree = WorkerTree(worker.pid)
        assert tree.rss_bytes()
        worker.kill()
        while psutil.Process(worker.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert tree.rss_bytes() is None  # ended, and not waited for
        worker.wait()
        assert (tree.rss_bytes(), tree.cpu_s()) == (None, None)
        tree.list_members()
        assert (tree.pids, tree.rss_bytes(), tree.cpu_s()) == (frozenset(), None, None)
        assert WorkerTree(worker.pid).pids == frozenset()


def test_no_worker_has_no_memory() -> None:
    tree = WorkerTree()
    assert (tree.pids, tree.rss_bytes(), tree.cpu_s()) == (frozenset(), None, None)


def test_our_own_descendants_include_ourselves_and_the_worker() -> None:
    own = psutil.Process().pid
    with running("input()") as worker:
        assert descendants_of(own) >= {own, worker.pid}


@pytest.mark.parametrize("program", [BURN_ON_LINE, BURN_IN_A_CHILD], ids=["itself", "in a child that ended"])
def test_processor_time_of_the_worker_is_not_other_peoples(program: str) -> None:
    """Whatever else this machine does, both loads see it; they differ by what the worker burns: 0.6 s."""
    with running(program) as worker:
        tree, nobody = WorkerTree(worker.pid), WorkerTree()
        with_worker, without_worker = ForeignLoad(), ForeignLoad()
        assert with_worker.share(tree) is None
        assert without_worker.share(nobody) is None
        before_s = sum(psutil.cpu_times()._asdict().values())
        tell(worker, "go")
        assert line_of(worker) == "done"
        tree.list_members()
        shares = with_worker.share(tree), without_worker.share(nobody)
        total_s = sum(psutil.cpu_times()._asdict().values()) - before_s
        assert None not in shares
        assert 0 <= shares[0] <= shares[1] <= 1
        # The kernel counts the machine's time in ticks and a process's exactly: a few ticks may go astray.
        assert (shares[1] - shares[0]) * total_s == pytest.approx(0.6, abs=0.25)


def test_a_load_that_begins_anew_forgets_what_was_before() -> None:
    load, tree = ForeignLoad(), WorkerTree()
    load.share(tree)
    time.sleep(0.05)
    assert load.share(tree) is not None
    load.restart()
    assert load.share(tree) is None


class Shrinking(WorkerTree):
    """A tree whose members leave without handing their time to anyone of ours."""

    def __init__(self) -> None:
        super().__init__(None)
        self._times = iter((1000.0, None))

    def cpu_s(self) -> float | None:
        return next(self._times)


def test_a_tree_that_took_its_time_along_leaves_the_load_unknown() -> None:
    load, tree = ForeignLoad(), Shrinking()
    load.share(tree)
    time.sleep(0.05)
    assert load.share(tree) is None
