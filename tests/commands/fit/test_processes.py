"""Tasks in processes: each strand gets its own results, in parallel, and nothing that fails is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from tests.processes import HANG_S

# Each script runs in a Python process of its own, because a process that has run autograd may not fork one that can.
PRELUDE = """
    import os, signal, time
    from functools import partial
    from sysbench.errors import UnavailableError
    from sysbench.commands.fit.search.processes import Processes, Task

    def square(number):
        return number**2

    def refuse(reason):
        raise UnavailableError(reason)

    def fail():
        raise ValueError("nobody asked")

    def differentiate():
        import torch
        weight = torch.ones(4, requires_grad=True)
        (weight * 3).sum().backward()
        return weight.grad.sum().item()

    def die():
        if os.getpid() != STARTED:
            os.kill(os.getpid(), signal.SIGKILL)
        return "survived"

    STARTED = os.getpid()
"""


def said(script: str, code: int = 0) -> str:
    words = [sys.executable, "-c", dedent(PRELUDE) + dedent(script)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert run.returncode == code, run.stderr
    return run.stdout.strip()


def test_each_strand_is_sent_its_own_results_whatever_the_number_of_processes() -> None:
    script = """
        def strand(found, number):
            for _ in range(3):
                number = yield Task(partial(square, number))
            found.append(number)

        for count in (1, 2, 3):
            found = []
            with Processes(count) as processes:
                for _ in processes.run([strand(found, number) for number in range(2, 7)]):
                    pass
            assert sorted(found) == [number**8 for number in range(2, 7)], found
        print("done")
    """
    assert said(script) == "done"


def test_results_are_in_the_order_of_the_tasks() -> None:
    script = """
        with Processes(2) as processes:
            print(list(processes.results([Task(partial(square, number)) for number in range(9)])))
    """
    assert said(script) == str([number**2 for number in range(9)])


def test_tasks_with_one_home_run_in_one_process() -> None:
    script = """
        with Processes(3) as processes:
            there = list(processes.results([Task(os.getpid, home=number % 2) for number in range(8)]))
        assert len(set(there[::2])) == len(set(there[1::2])) == 1, there
        print(STARTED in there)
    """
    assert said(script) == "False"


def test_an_error_of_a_task_is_raised_as_it_is() -> None:
    script = """
        try:
            with Processes(2) as processes:
                list(processes.results([Task(partial(square, 2)), Task(partial(refuse, "no such kernel"))]))
        except UnavailableError as error:
            print(error)
    """
    assert said(script) == "no such kernel"


def test_a_task_whose_process_dies_runs_in_this_one() -> None:
    script = """
        with Processes(2) as processes:
            print(list(processes.results([Task(die), Task(die), Task(die), Task(partial(square, 3))])))
    """
    assert said(script) == "['survived', 'survived', 'survived', 9]"


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("killed", ["[0]", "[0, 1]"])
def test_a_process_that_is_killed_while_it_waits_or_works_costs_no_task(killed: str, idle: bool) -> None:
    script = f"""
        with Processes(2) as processes:
            def strand(number):
                found.append((yield Task(partial(square, number))))
                found.append((yield Task(partial(square, found[-1]))))
            def kill():
                for each in {killed}:
                    processes._children[each].kill()
                    processes._children[each].join()
            found = []
            kill() if {idle} else None
            for done, _ in enumerate(processes.run([strand(2), strand(3)])):
                kill() if done == 0 else None
            print(sorted(found))
    """
    assert said(script) == "[4, 9, 16, 81]"


def test_gradients_are_computed_also_if_the_parent_has_computed_some_before() -> None:
    script = """
        differentiate()
        with Processes(2) as processes:
            print(list(processes.results([Task(differentiate) for _ in range(4)])))
    """
    assert said(script) == "[12.0, 12.0, 12.0, 12.0]"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process ends with its task")
def test_no_process_outlives_its_parent() -> None:
    script = """
        processes = Processes(2)
        print(*(child.pid for child in processes._children), flush=True)
        os.kill(STARTED, signal.SIGKILL)
    """
    pids = [int(each) for each in said(script, -signal.SIGKILL).split()]
    assert len(pids) == 2
    deadline_s = time.monotonic() + HANG_S
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether the process has not ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
