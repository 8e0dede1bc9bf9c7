"""Runs the command as a user does: with arguments, streams and an exit code, as a process or within this one."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sysbench.cli import main
from sysbench.engine.process import unused_workers_ended
from tests.processes import HANG_S

MINUTE = ("--d-model", "32", "--d-ff", "64", "--layers", "1", "--heads", "2", "--vocab", "50", "--batch", "1")
"""A model whose steps take well under a millisecond: what is left is sysbench itself."""

QUICK = (*MINUTE, "--ctx", "16", "--steps", "6", "--warmup", "1", "--device", "cpu", "--mode", "forward")
"""Without an optimizer, with the first of which torch imports its compiler: that takes as long as everything else."""


@dataclass(frozen=True)
class Ran:
    """What a finished process left behind."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line on stderr of a command that refused."""
        (line,) = self.err.splitlines()
        return line


def environment(**extra: str) -> dict[str, str]:
    """Ours, without what would make output depend on where the tests run."""
    unwanted = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    return {**{name: value for name, value in os.environ.items() if name not in unwanted}, **extra}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error::DeprecationWarning:sysbench", "-m", "sysbench", *arguments]


def sysbench(*arguments: str, cwd: Path | None = None, **extra: str) -> Ran:
    """Run to the end, with stdout and stderr in pipes."""
    done = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(**extra),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def started(*arguments: str, cwd: Path | None = None, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """A running command in a process group of its own, as a shell starts it; it does not outlive the test."""
    with subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        env=environment(**extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for what a running command is about to do."""
    deadline_s = time.monotonic() + HANG_S
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s, "it takes too long"
        time.sleep(0.05)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], str]) -> tuple[str, Path]:
    """What `make` returns as it fills a directory of that name: once, for all processes that the tests are spread over.

    Fixtures that measure are made with this: every process that runs one of a module's tests would measure again.
    """
    spread = "PYTEST_XDIST_WORKER" in os.environ
    directory = (factory.getbasetemp().parent if spread else factory.getbasetemp()) / name
    outcome = directory.with_suffix(".json")
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of when it is closed
        if not outcome.exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            outcome.write_text(make(directory))
    return outcome.read_text(), directory


def ran_once(factory: pytest.TempPathFactory, name: str, *arguments: str, **extra: str) -> tuple[Ran, Path]:
    """As `answered`, in a directory of that name, which comes with it; once, as `made_once` does it."""

    def run(directory: Path) -> str:
        return json.dumps(asdict(answered(*arguments, cwd=directory, **{"COLUMNS": "", **extra})))

    outcome, directory = made_once(factory, name, run)
    return Ran(**json.loads(outcome)), directory


def answered(*arguments: str, cwd: Path | None = None, **extra: str) -> Ran:
    """As `sysbench`, within this process, in a twentieth of the time; its workers are forked (`tests.worker.forked`).

    That the process itself behaves (its code, its streams, what it imports, signals) is for `sysbench` to show.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        mock.patch.dict(os.environ, environment(**{"COLUMNS": "80", **extra}), clear=True),
        mock.patch.object(tempfile, "tempdir", None),  # as a process that starts would look for it
        contextlib.chdir(cwd or "."),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        unused_workers_ended(),
    ):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
        finally:
            gc.enable()  # a process that is about to end needs none
    return Ran(int(code or 0), _written(out), _written(err))


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def only(directory: Path, pattern: str) -> Path:
    """The one file in `directory` that matches."""
    (path,) = directory.glob(pattern)
    return path


def record_in(directory: Path) -> dict[str, Any]:
    """The one record that a run left in its output directory."""
    content: dict[str, Any] = json.loads(only(directory, "*.json").read_text())
    return content
