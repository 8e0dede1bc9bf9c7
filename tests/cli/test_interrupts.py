"""Requests to stop, from the first line of the program to its last."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import QUICK, Ran, environment, record_in
from tests.processes import HANG_S

AT_AN_IMPORT = """
import os, signal, sys

class Fault:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{number})

sys.meta_path.insert(0, Fault())
from sysbench.__main__ import main
main()
"""

IN_ITS_PLACE = """
import os, signal, sys
import sysbench.cli
from sysbench.__main__ import main
signal.signal(signal.SIGHUP, signal.SIG_IGN)
sysbench.cli.main = lambda: {what}
main()
"""

IN_A_RUN = """
import os, signal
from sysbench.__main__ import main
from sysbench.log.journal import Log
from sysbench.log.events import CellStarted, RunFinished

append = Log.append

def appended(self, event):
    append(self, event)
    if isinstance(event, (CellStarted, RunFinished)):
        os.kill(os.getpid(), signal.SIGTERM)

Log.append = appended
main()
"""


def run(program: str, *arguments: str, temporary: Path) -> Ran:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment(TMPDIR=str(temporary)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("number", "module"),
    [
        ("SIGTERM", "sysbench.engine.interrupts"),
        ("SIGINT", "sysbench.command"),
        ("SIGHUP", "sysbench.engine.process"),
        ("SIGTERM", "typer"),
        ("SIGINT", "pydantic"),
        ("SIGTERM", "sysbench.commands.time.command"),
    ],
)
def test_a_request_while_the_program_starts_is_one_line_and_130(tmp_path: Path, number: str, module: str) -> None:
    runs, temporary = tmp_path / "runs", tmp_path / "temporary"
    temporary.mkdir()
    fault = AT_AN_IMPORT.format(module=module, number=number)
    ran = run(fault, "time", *QUICK, "--out", str(runs), temporary=temporary)
    assert (ran.code, ran.out) == (130, "")
    assert ran.complaint.startswith("sysbench: interrupted by ")
    assert not runs.exists()
    assert list(temporary.iterdir()) == [], "the worker that was launched ahead has left something"


def test_a_request_in_code_that_is_made_from_text_does_not_end_the_program_by_a_signal(tmp_path: Path) -> None:
    """Python remembers a KeyboardInterrupt that has passed through such code, and ends by SIGINT for it."""
    ran = run(IN_ITS_PLACE.format(what="exec('os.kill(os.getpid(), signal.SIGTERM)')"), temporary=tmp_path)
    assert (ran.code, ran.complaint) == (130, "sysbench: interrupted by SIGTERM")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As under `nohup`, or in the background of a shell without job control."""
    ran = run(IN_ITS_PLACE.format(what="sys.exit(os.kill(os.getpid(), signal.SIGHUP))"), temporary=tmp_path)
    assert (ran.code, ran.err) == (0, "")


def test_a_second_request_does_not_cut_the_saving_short(tmp_path: Path) -> None:
    ran = run(IN_A_RUN, "time", *QUICK, "--out", str(tmp_path), temporary=tmp_path)
    assert ran.code == 130, ran.err
    assert record_in(tmp_path)["status"] == "interrupted"
    assert "saved  " in ran.err
    assert "Traceback" not in ran.err
