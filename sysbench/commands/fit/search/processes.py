"""Simulations side by side, in forked processes of the worker."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Self

import torch

from sysbench import bootstrap
from sysbench.errors import SysbenchError

MAX_PROCESSES = 4
"""Largest number of processes: each keeps traces of its own, and a search has few strands that are long."""


class Task(NamedTuple):
    """Something to compute, where everything can be pickled.

    Tasks with the same `home` run in the same process, because they need the same slow imports; None is for any
    process.
    """

    compute: Callable[[], Any]
    home: Hashable = None


Strand = Generator[Task, Any, None]
"""A sequence of tasks; the strand is sent the result of each one before it yields the next."""


class Processes:
    """Processes that run the tasks of strands. Without any, this process runs them.

    count  number of processes; the default is the number of threads that torch would use

    A child that ends by itself, as when the system lacks memory, is not replaced: another process does its task, or
    this one if none is left.
    """

    def __init__(self, count: int | None = None) -> None:
        count = min(MAX_PROCESSES, torch.get_num_threads()) if count is None else count
        started = [_started() for _ in range(count if count > 1 else 0)]
        self._children = [child for child, _ in started]
        self._idle = [connection for _, connection in started if _can_compute(connection)]
        self._homes: dict[Hashable, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End all processes; each is killed if it still computes."""
        for child in self._children:
            child.kill()
            child.join()

    def run(self, strands: Iterable[Strand]) -> Iterator[None]:
        """Run all strands to their end, and yield after each task. Raises the errors of the tasks."""
        waiting = deque((strand, task) for strand in strands if (task := next(strand, None)) is not None)
        running: dict[Connection, tuple[Strand, Task]] = {}
        while waiting or running:
            for connection in self._idle[:]:
                chosen = next((each for each in waiting if self._may_run(each[1], connection)), None)
                if chosen is not None:
                    self._idle.remove(connection)
                    if self._give(connection, chosen[1]):
                        waiting.remove(chosen)
                        running[connection] = chosen
            if running:
                connection = next(
                    connection for connection in wait(list(running)) if isinstance(connection, Connection)
                )
                answer = self._answer(connection)
                strand, task = running.pop(connection)
                if answer is None:
                    waiting.appendleft((strand, task))
                    continue
            else:
                strand, task = waiting.popleft()
                answer = False, task.compute()
            is_error, result = answer
            if is_error:
                raise result
            with suppress(StopIteration):
                waiting.appendleft((strand, strand.send(result)))  # first: the process has what it traced
            yield

    def results(self, tasks: Iterable[Task]) -> Iterator[Any]:
        found: dict[int, Any] = {}

        def strand(number: int, task: Task) -> Strand:
            found[number] = yield task

        done = 0
        for _ in self.run([strand(number, task) for number, task in enumerate(tasks)]):
            while done in found:
                yield found.pop(done)
                done += 1

    def _may_run(self, task: Task, connection: Connection) -> bool:
        return self._homes.get(task.home, connection) is connection

    def _give(self, connection: Connection, task: Task) -> bool:
        """Hand a task to a process; return False if the process has ended."""
        try:
            connection.send(task.compute)
        except OSError:
            self._forget(connection)
            return False
        if task.home is not None:
            self._homes[task.home] = connection
        return True

    def _forget(self, connection: Connection) -> None:
        self._homes = {home: each for home, each in self._homes.items() if each is not connection}

    def _answer(self, connection: Connection) -> tuple[bool, Any] | None:
        """Return whether the result is an error, and the result; None if the process has ended."""
        try:
            answer: tuple[bool, Any] = connection.recv()
        except (EOFError, OSError):
            self._forget(connection)
            return None
        self._idle.insert(0, connection)  # first: it has what it traced
        return answer


def _started() -> tuple[BaseProcess, Connection]:
    """Start a process; return it, and the connection to it.

    A process that is forked has all imports already; only Linux's libraries allow that.
    """
    linux = sys.platform == "linux"
    context = multiprocessing.get_context("fork") if linux else multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of this process hold no lock that a child needs
        child = context.Process(target=_serve, args=(theirs, ours), daemon=True)
        child.start()
    theirs.close()
    return child, ours


def _can_compute(connection: Connection) -> bool:
    """Return whether a new process can run autograd: a forked one cannot if this process has run it before."""
    try:
        return bool(connection.recv())
    except (EOFError, OSError):
        return False


def _serve(connection: Connection, others: Connection) -> None:
    others.close()  # so that this process sees when its parent ends
    bootstrap.exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    try:
        torch.ones((), requires_grad=True).backward()
    except RuntimeError:
        connection.send(False)
        return
    connection.send(True)
    while True:
        try:
            compute = connection.recv()
        except EOFError:
            return
        try:
            answer = False, compute()
        except SysbenchError as error:
            answer = True, error
        except Exception:  # noqa: BLE001  It may be impossible to pickle; the parent raises it.
            answer = True, RuntimeError(traceback.format_exc())
        connection.send(answer)
