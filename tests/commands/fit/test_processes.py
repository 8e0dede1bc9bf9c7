"""Tasks in processes: each strand gets its own results, in parallel, and nothing that fails is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from textwrap import dedent

import pytest

from tests.cli.running import made_once
from tests.processes import HANG_S, has_ended

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


# Each prints one line. The last one runs autograd, after which a process may not fork one that can.
SCRIPTS = {
    "strands": """
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
    """,
    "order": """
        with Processes(2) as processes:
            print(list(processes.results([Task(partial(square, number)) for number in range(9)])))
    """,
    "home": """
        with Processes(3) as processes:
            there = list(processes.results([Task(os.getpid, home=number % 2) for number in range(8)]))
        assert len(set(there[::2])) == len(set(there[1::2])) == 1, there
        print(STARTED in there)
    """,
    "error": """
        try:
            with Processes(2) as processes:
                list(processes.results([Task(partial(square, 2)), Task(partial(refuse, "no such kernel"))]))
        except UnavailableError as error:
            print(error)
    """,
    "death": """
        with Processes(2) as processes:
            print(list(processes.results([Task(die), Task(die), Task(die), Task(partial(square, 3))])))
    """,
    "killed": """
        for killed, idle in (([0], True), ([0, 1], True), ([0], False), ([0, 1], False)):
            with Processes(2) as processes:
                def strand(number):
                    found.append((yield Task(partial(square, number))))
                    found.append((yield Task(partial(square, found[-1]))))
                def kill():
                    for each in killed:
                        processes._children[each].kill()
                        processes._children[each].join()
                found = []
                kill() if idle else None
                for done, _ in enumerate(processes.run([strand(2), strand(3)])):
                    kill() if done == 0 else None
                print(sorted(found), end=" ")
        print()
    """,
    "gradients": """
        differentiate()
        with Processes(2) as processes:
            print(list(processes.results([Task(differentiate) for _ in range(4)])))
    """,
}


def said(script: str, code: int = 0) -> str:
    words = [sys.executable, "-c", dedent(PRELUDE) + dedent(script)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert run.returncode == code, run.stderr
    return run.stdout.strip()


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The line of each script, or what it raised: all of them in one process, which takes two seconds to start."""
    program = f"""
    import traceback
    for script in {[dedent(script) for script in SCRIPTS.values()]!r}:
        try:
            exec(script)
        except Exception:
            print(repr(traceback.format_exc()))
    """
    found, _ = made_once(tmp_path_factory, "processes-of-fit", lambda _: said(program))
    return dict(zip(SCRIPTS, found.splitlines(), strict=True))


def test_each_strand_is_sent_its_own_results_whatever_the_number_of_processes(lines: dict[str, str]) -> None:
    assert lines["strands"] == "done"


def test_results_are_in_the_order_of_the_tasks(lines: dict[str, str]) -> None:
    assert lines["order"] == str([number**2 for number in range(9)])


def test_tasks_with_one_home_run_in_one_process(lines: dict[str, str]) -> None:
    assert lines["home"] == "False"


def test_an_error_of_a_task_is_raised_as_it_is(lines: dict[str, str]) -> None:
    assert lines["error"] == "no such kernel"


def test_a_task_whose_process_dies_runs_in_this_one(lines: dict[str, str]) -> None:
    assert lines["death"] == "['survived', 'survived', 'survived', 9]"


def test_a_process_that_is_killed_while_it_waits_or_works_costs_no_task(lines: dict[str, str]) -> None:
    assert lines["killed"].strip() == " ".join(["[4, 9, 16, 81]"] * 4)


def test_gradients_are_computed_also_if_the_parent_has_computed_some_before(lines: dict[str, str]) -> None:
    assert lines["gradients"] == "[12.0, 12.0, 12.0, 12.0]"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process ends with its task")
def test_no_process_outlives_its_parent() -> None:
    script = """
        processes = Processes(2)
        print(*(child.pid for child in processes._children), flush=True)
        os.kill(STARTED, signal.SIGKILL)
    """
    pids = [int(each) for each in said(script, -signal.SIGKILL).split()]
    assert len(pids) == 2
    assert all(map(has_ended, pids))
