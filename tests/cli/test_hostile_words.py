"""Whatever stands on the command line is answered in one line that a terminal can be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.log import runs
from tests.cli.running import answered

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"

UNDECODED = "runs-\udcff"
"""How Python hands on a byte that is not UTF-8."""

TOO_LONG = "x" * 300


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
        (("time", "--from", TOO_LONG), "the name is too long"),
        (("time", "--resume", TOO_LONG), "the name is too long"),
        (("memory", "--from", TOO_LONG), "the name is too long"),
        (("profile", "--from", f"{TOO_LONG}.json"), "the name is too long"),
        (("report", TOO_LONG), "the name is too long"),
        (("compare", TOO_LONG, "latest"), "the name is too long"),
        (("run", TOO_LONG), ""),
        (("time", "--resume", "."), "it is a directory"),
        (("time", "--resume", "/"), "it is a directory"),
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
    log = RUNS / "ab" / "2026-11-22T02-24-39-compare" / "A" / "round-01.jsonl"
    ran = answered("report", str(log), "-o", "red\x1b[31m.md", cwd=tmp_path)
    assert (ran.code, ran.complaint) == (0, r"saved  red\x1b[31m.md")
    assert (tmp_path / "red\x1b[31m.md").is_file()


def test_a_search_for_runs_ends_at_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").touch()
    monkeypatch.setattr(runs, "MAX_SEARCHED", 20)
    ran = answered("report", str(tmp_path))
    assert ran.code == 2
    assert f"{tmp_path} contains more than 20 files and directories: name the directory" in ran.complaint
