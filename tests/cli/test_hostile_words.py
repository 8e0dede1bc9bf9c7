"""Whatever stands on the command line is answered in one line that a terminal can be shown."""

from __future__ import annotations

import json
import pwd
import re
import shlex
import shutil
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from sysbench.command import runnable
from sysbench.log import runs
from sysbench.log.events import CellFinished, Event
from sysbench.log.journal import Log
from tests.cli.running import QUICK, answered, command, environment
from tests.unprivileged import permissions_obeyed

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"

UNDECODED = "runs-\udcff"
"""How Python hands on a byte that is not UTF-8."""

TOO_LONG = "x" * 300

LOG = RUNS / "ab" / "2026-11-22T02-24-39-compare" / "A" / "round-01.jsonl"


@pytest.mark.parametrize(
    "words",
    [
        ("time", "--size", UNDECODED),
        ("time", "--out", UNDECODED),
        ("memory", "--from", UNDECODED),
        ("report", UNDECODED),
        ("compare", UNDECODED, "latest"),
        ("run", UNDECODED),
    ],
)
def test_bytes_that_are_no_text_are_refused_and_shown_as_escapes(words: tuple[str, ...]) -> None:
    ran = answered(*words)
    assert (ran.code, ran.out) == (2, "")
    assert r"runs-\xff is not UTF-8 text" in ran.complaint


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("time", "--from", TOO_LONG), "file name too long"),
        (("time", "--resume", TOO_LONG), "file name too long"),
        (("memory", "--from", TOO_LONG), "file name too long"),
        (("profile", "--from", f"{TOO_LONG}.json"), "file name too long"),
        (("report", TOO_LONG), "file name too long"),
        (("compare", TOO_LONG, "latest"), "file name too long"),
        (("run", TOO_LONG), ""),
        (("time", "--resume", "."), "is a directory"),
        (("time", "--resume", "/"), "is a directory"),
        (("memory", "--from", "."), "is a directory, not a memory snapshot"),
        (("time", "--from", "/dev/null"), "/dev/null is empty"),
        (("memory", "--from", "/dev/null"), "/dev/null"),
        (("report", "/dev/null/x"), ""),
    ],
)
def test_a_path_that_is_no_file_is_answered_in_one_line(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    ran = answered(*words, cwd=tmp_path)
    assert ran.code in (1, 2)
    assert why in ran.complaint
    assert "defect" not in ran.complaint


COMMANDS = (
    *((name, "--plan") for name in runnable()), ("run", "quick", "--plan"), ("run",), ("calibrate", "matmul"),
    ("gpus",), ("gpus", "h100"), ("models",), ("models", "gpt2"), ("history",), ("doctor", "--json"),
    ("report",), ("report", str(LOG)), ("compare", str(LOG), str(LOG)), ("time", "--from", str(LOG)),
)  # fmt: skip


@pytest.mark.parametrize("words", [("run", "quick", "--plan"), ("gpus",)])
def test_a_deleted_directory_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    removing = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *command(*words)]
    ran = subprocess.run(removing, cwd=gone, env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == f"sysbench {words[0]}: the current directory has been deleted: change to another one\n"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_user_without_a_name_and_a_home_is_answered(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    ran = answered(*words, cwd=tmp_path)
    assert "this is a bug" not in ran.err
    if words == ("calibrate", "matmul"):
        assert ran.complaint.endswith("this user has no home directory for the files of sysbench: set HOME")


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A directory that holds a run, and beside a run a directory without any permission."""
    closed = tmp_path / "closed"
    closed.mkdir()
    shutil.copy(LOG, tmp_path / "a.jsonl")
    shutil.copy(LOG, closed / "b.jsonl")
    closed.chmod(0)
    with permissions_obeyed():
        yield tmp_path
    closed.chmod(0o755)


@pytest.mark.parametrize(
    ("words", "unreadable"),
    [
        (("time", "--from", "closed"), "closed"),
        (("time", "--from", "closed/b.jsonl"), "closed/b.jsonl"),
        (("time", "--resume", "closed/b.jsonl"), "closed/b.jsonl"),
        (("memory", "--from", "closed"), "closed"),
        (("memory", "--from", "closed/b.pickle"), "closed/b.pickle"),
        (("profile", "--from", "closed/b.json"), "closed/b.json"),
        (("report", "closed"), "closed"),
        (("report", "."), "closed"),
        (("compare", "closed", "latest"), "closed"),
        (("compare", ".", "."), "closed"),
        (("history", "closed"), "closed"),
        (("history", "--runs", "closed"), "closed"),
        (("history", "--runs", "closed/deeper"), "closed/deeper"),
        (("history", "latest", "--runs", "closed"), "closed"),
        (("run", "closed/b.toml"), "closed/b.toml"),
        (("run", "--resume", "closed"), "closed/manifest.json"),
    ],
)
def test_what_may_not_be_read_is_not_said_to_be_empty(words: tuple[str, ...], unreadable: str, locked: Path) -> None:
    ran = answered(*words, cwd=locked)
    assert (ran.code, ran.out) == (2, "")
    assert ran.complaint.endswith(f"cannot read {unreadable}: permission denied")


@pytest.mark.parametrize(
    "words",
    [
        ("report", str(LOG), "-o", "closed/report.html"),
        ("time", "--from", str(LOG), "--json", "closed/record.json"),
        ("doctor", "--json", "closed/record.json"),
    ],
)
def test_what_may_not_be_written_is_not_said_to_be_unreadable(words: tuple[str, ...], locked: Path) -> None:
    ran = answered(*words, cwd=locked)
    assert ran.code == 1
    assert ran.complaint.endswith(f"cannot write {words[-1]}: permission denied")


def test_other_runs_are_listed_beside_a_directory_that_may_not_be_read(locked: Path) -> None:
    ran = answered("history", "--runs", ".", cwd=locked)
    assert (ran.code, ran.err) == (0, "")
    assert "1 run" in ran.out


def test_a_long_word_is_repeated_without_its_middle() -> None:
    ran = answered("time", "--from", "x" * 5000 + ".json")
    assert ran.code == 2
    assert re.search(r" x{60}…x+\.json: file name too long$", ran.complaint)
    assert len(ran.complaint) < 255


@pytest.mark.parametrize(
    "words",
    [
        ("time", "--size", "a\x1b[31mb"),
        ("time", "--ctx", "1\x1b]0;title\x07"),
        ("time", "--\x1b[2J", "1"),
        ("time", "--from", "\x9b31m.json"),
        ("report", "\x1b[31m"),
        ("report", "a\u202eb"),
        ("\x1b[31m",),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(words: tuple[str, ...], tmp_path: Path) -> None:
    ran = answered(*words, cwd=tmp_path)
    assert ran.code == 2
    assert ran.complaint.isprintable()
    assert any(escape in ran.complaint for escape in (r"\x1b", r"\x9b", r"\u202e"))


def test_the_name_of_a_file_is_escaped_where_it_is_said_to_be_saved(tmp_path: Path) -> None:
    ran = answered("report", str(LOG), "-o", "red\x1b[31m.md", cwd=tmp_path)
    assert (ran.code, ran.complaint) == (0, r"saved  red\x1b[31m.md")
    assert (tmp_path / "red\x1b[31m.md").is_file()


HIDDEN = "\u202e \x9b31m \x7f \u200f \u061c \u2028 \ufeff \u00ad \U000e0041 \x1b[2J"


@pytest.fixture
def hostile_trace(tmp_path: Path) -> Path:
    kernel = {"ph": "X", "cat": "kernel", "name": f"évil{HIDDEN}", "pid": 0, "tid": 7, "ts": 10, "dur": 5}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{**kernel, "args": {"device": 0, "stream": 7}}]}))
    return path


@pytest.mark.parametrize("words", ["--format=csv", "--format=markdown", "--format=latex", "--json=-"])
def test_what_is_printed_has_no_character_that_a_terminal_obeys_or_hides(words: str, hostile_trace: Path) -> None:
    ran = answered("profile", f"--from={hostile_trace}", words)
    assert ran.code == 0, ran.err
    assert "évil" in ran.out
    assert not [character for character in ran.out if unicodedata.category(character) in HIDING and character != "\n"]
    if words == "--json=-":
        assert json.dumps(f"évil{HIDDEN}") in json.dumps(json.loads(ran.out))


HIDING = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_a_rank_in_other_digits_is_no_rank() -> None:
    assert answered("time", "--size", "tiny", "--plan", RANK="²", WORLD_SIZE="²").code == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_streams_that_the_shell_has_closed_are_no_fault(closed: str, tmp_path: Path) -> None:
    line = f"{shlex.join(command('gpus'))} {closed}"
    ran = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_file_that_is_no_record_is_refused_by_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it would never end
    ran = answered("time", "--from", str(path))
    assert ran.code == 2
    assert "large.json" in ran.complaint


FAULTY = """
import time

from torch import nn


class Surrogate(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)

    def forward(self, tokens):
        raise ValueError("the file \\udcff is missing")


class Huge(Surrogate):
    def forward(self, tokens):
        raise ValueError("the shapes are" + " 8" * 10**7)


class Clock(Surrogate):
    def forward(self, tokens):
        time.time = lambda: float("nan")
        return self.embed(tokens)


class Counter(Surrogate):
    def __init__(self):
        super().__init__()
        time.perf_counter = lambda: "noon"

    def forward(self, tokens):
        return self.embed(tokens)
"""


@pytest.mark.parametrize(
    ("model", "detail"),
    [
        ("Surrogate", r"ValueError: the file \udcff is missing"),
        ("Huge", "ValueError: the shapes are 8 8 8"),
        ("Huge", " in forward)"),
        ("Clock", "does the program replace time.time, time.perf_counter or time.perf_counter_ns?"),
    ],
)
def test_what_a_model_does_wrong_is_said(model: str, detail: str, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    words = ("--ctx=8", "--batch=1", "--mode=forward", "--steps=2", "--warmup=0", "--device=cpu", "--json=-", "--quiet")
    ran = answered("time", f"--model=faulty.py:{model}", *words, cwd=tmp_path)
    (cell,) = json.loads(ran.out)["cells"]
    assert detail in cell["detail"]
    assert "this is a bug" not in ran.err


def test_building_a_model_is_timed_by_a_clock_that_the_model_cannot_replace(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    words = ("--ctx=8", "--batch=1", "--mode=forward", "--steps=2", "--warmup=0", "--device=cpu", "--json=-", "--quiet")
    ran = answered("time", "--model=faulty.py:Counter", *words, cwd=tmp_path)
    (cell,) = json.loads(ran.out)["cells"]
    assert (cell["outcome"], cell["detail"]) == ("ok", None)


def test_a_plan_of_what_is_continued_names_the_damaged_line_of_its_log(tmp_path: Path) -> None:
    lines = LOG.read_bytes().splitlines(keepends=True)
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(b"".join([*lines[:-2], b"\xff" + lines[-2], lines[-1]]))
    ran = answered("time", f"--resume={path}", "--plan")
    assert ran.code == 0, ran.err
    assert f"line {len(lines) - 1} is damaged; a cell that it belongs to runs again" in ran.err


@pytest.mark.parametrize("is_deleted", [False, True], ids=["moved", "deleted"])
def test_a_log_that_is_moved_or_deleted_during_its_run_is_copied(
    is_deleted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, append = tmp_path / "out", Log.append

    def append_and_lose(log: Log, event: Event) -> None:
        append(log, event)
        if isinstance(event, CellFinished) and out.exists():
            shutil.rmtree(out) if is_deleted else out.rename(tmp_path / "elsewhere")

    monkeypatch.setattr(Log, "append", append_and_lose)
    ran = answered("time", *QUICK, "--ctx=16,18,20", "--quiet", f"--out={out}", cwd=tmp_path)
    assert ran.code == 1
    (log,) = tmp_path.glob("*.jsonl")
    assert f"was moved or deleted during the run; its copy is {log}" in ran.err
    record = runs.load(log)
    assert [cell.outcome for cell in record.cells] == ["ok"] * 3
    assert log.with_suffix(".json").is_file()
