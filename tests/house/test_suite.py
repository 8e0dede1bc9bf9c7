"""What the suite itself promises: it ends, in the background too, and its last screen says what matters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sysbench.engine.process import Launcher
from tests.processes import HANG_S
from tests.worker import forked

ROOT = Path(__file__).parents[2]


def ran(directory: Path, tests: str, *options: str, ignoring: str = "") -> tuple[str, str]:
    """Both streams of pytest over one file, with this suite's settings, by a shell that ignores some signals."""
    path = directory / "test_inner.py"
    path.write_text(tests)
    python = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest"]
    shell = ["sh", "-c", f"trap '' {ignoring}; exec \"$@\"" if ignoring else 'exec "$@"', "sh"]
    done = subprocess.run(
        [*shell, *python, "-p", "no:cacheprovider", "--rootdir", str(directory), *options, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.stdout, done.stderr


def test_a_test_that_hangs_fails_the_others_go_on_and_one_line_says_what_was_skipped(
    tmp_path: Path,
) -> None:
    tests = """
import pytest, time
def test_hangs(): time.sleep(100)
def test_after(): ...
@pytest.mark.parametrize("n", range(3))
@pytest.mark.skipif(True, reason="no browser")
def test_drawn(n): ...
def test_other(): pytest.skip("no nsys")
"""
    said, _ = ran(tmp_path, tests, "--timeout", "0.5", "-n1")
    assert "Timeout (>0.5s) from pytest-timeout" in said
    assert "1 failed, 1 passed, 4 skipped" in said
    assert "skipped: 3 × no browser; 1 × no nsys" in said.splitlines()


def test_what_is_started_in_the_background_can_still_be_interrupted(tmp_path: Path) -> None:
    tests = """
import os, signal, subprocess, sys, time, pytest
ASK = "import signal as s; print(*(s.getsignal(n) is s.SIG_IGN for n in (s.SIGINT, s.SIGTERM, s.SIGHUP)))"
def test_what_is_started_ignores_nothing():
    assert subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True).stdout.split() == ["False"] * 3
def test_an_interrupt():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(100)
def test_a_closed_terminal_does_not_end_what_nohup_started():
    os.kill(os.getpid(), signal.SIGHUP)
"""
    said, _ = ran(tmp_path, tests, "-n0", ignoring="INT TERM HUP")
    assert "3 passed" in said


def test_what_bindings_leak_is_not_listed_at_the_end(tmp_path: Path) -> None:
    pytest.importorskip("triton._C.libtriton", reason="Triton is not installed")
    tests = """
import ctypes, triton._C.libtriton as triton
def test_leak():
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(triton.ir.context()))
"""
    said, complaints = ran(tmp_path, tests, "-n0")
    assert "1 passed" in said
    assert "nanobind" not in complaints


def test_a_process_that_has_compiled_still_forks_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler sets a variable of its own; workers that were started anew for it took most of the suite's time."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "is given back")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    assert cache_dir() == os.environ["TORCHINDUCTOR_CACHE_DIR"]
    assert forked.is_as_here(Launcher().environment())
    assert not forked.is_as_here({**Launcher().environment(), "OMP_NUM_THREADS": "7"})
