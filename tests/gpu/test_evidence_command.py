"""The run that collects evidence on a GPU: nothing that hangs, fails or lacks time costs what else was seen."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sysbench.cli import main as sysbench_main
from sysbench.spec.hardware import Hardware, by_name
from tests.gpu import memory_accuracy
from tests.gpu.evidence import commands, keeping, schedule, screen
from tests.gpu.evidence.book import AnotherMachineError, Book
from tests.gpu.evidence.parts import PARTS, fidelity, fit, suite
from tests.gpu.evidence.promises import Promise, at_least, at_most, near_one, none_of
from tests.gpu.evidence.work import ROOT, Part, Work, carry_out, result_path, write_whole

H200 = {"name": "NVIDIA H200", "memory_bytes": 150_109_945_856, "compute_capability": "9.0", "multiprocessors": 132}
MACHINE = {
    "gpu": H200,
    "driver": "580.1",
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "python": "3.12.3",
    "commit": "0123456789ab",
    "date": "2026-11-30",
}
PRODUCTS = [
    {
        "precision": precision,
        "size": size,
        "best_flops_per_s": best,
        "sustained_flops_per_s": 0.9 * best,
        "calls": 20,
        "peak_flops_per_s": 989.4e12,
    }
    for precision, size, best in (("bf16", 4096, 700e12), ("bf16", 8192, 812.34e12), ("fp32", 8192, 51.5e12))
]
COPY = {"best_bytes_per_s": 4.3e12, "sustained_bytes_per_s": 4.2e12, "peak_bytes_per_s": 4.8e12}


def part(name: str = "one", *promises: Promise, estimate_s: float = 1.0, alone: bool = True, **more: Any) -> Part:
    return Part(name, f"about {name}", estimate_s, lambda work: None, promises, alone, **more)


def book_in(directory: Path, **changes: Any) -> Book:
    content = {"machine": MACHINE, "rehearsal": False, "started_at": "then", "command": "python -m …", **changes}
    return Book(directory, **content)


def result(name: str, **changes: Any) -> dict[str, Any]:
    """What a part has found that came to its end."""
    promised = at_most("a share", 0.5).outcome(0.25)
    found = {"name": name, "title": name, "outcome": "done", "rehearsal": False, "estimate_s": 1.0, "took_s": 2.0}
    empty: dict[str, Any] = {"commands": [], "numbers": {}, "tables": [], "problems": [], "left_out": []}
    return {**found, **empty, "promises": [promised], **changes}


# --- promises


@pytest.mark.parametrize(
    ("promise", "kept", "missed"),
    [
        (none_of("tests that fail"), 0, 1),
        (at_most("a share", 0.02), 0.02, 0.0201),
        (at_least("a share", 0.99), 0.99, 0.9899),
        (near_one("a ratio", 0.005), 1.005, 0.9949),
        (Promise("a peak", "bytes", 0, 0), 0, 512),
    ],
)
def test_a_promise_is_kept_up_to_its_limit_and_no_further(promise: Promise, kept: float, missed: float) -> None:
    assert (promise.verdict(kept), promise.verdict(missed)) == ("kept", "missed")


@pytest.mark.parametrize("seen", [None, math.nan])
def test_what_was_not_seen_is_neither_kept_nor_missed(seen: float | None) -> None:
    outcome = none_of("tests that fail").outcome(seen)
    assert (outcome["verdict"], outcome["seen"], outcome["shown"]) == ("not seen", None, "")


def test_nothing_that_a_rehearsal_comes_to_counts_as_seen() -> None:
    outcome = at_least("MFU", 0.5).outcome(0.7, rehearsal=True)
    assert (outcome["verdict"], outcome["seen"], outcome["rehearsed"]) == ("not seen", None, 0.7)


# --- the schedule


WRITE = """
import json, pathlib, sys, time
path = pathlib.Path(sys.argv[1])
path.parent.mkdir(parents=True, exist_ok=True)
def write(outcome):
    path.write_text(json.dumps({"outcome": outcome, "numbers": {"so far": 7}}))
"""
FINE = f"{WRITE}\nwrite('done')"
RAISES = f"{WRITE}\nwrite('unfinished'); raise SystemExit(3)"
CRASHES = "import os; os.abort()"
HANGS = f"""{WRITE}
import signal, subprocess
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
write('unfinished')
path.with_suffix('.pid').write_text(str(child.pid))
time.sleep(600)
"""


def starting(directory: Path, programs: dict[str, str]) -> Callable[[Part, float], subprocess.Popen[bytes]]:
    def start(each: Part, seconds: float) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", programs[each.name], str(result_path(directory, each.name))]
        return subprocess.Popen(words, stderr=subprocess.DEVNULL)

    return start


def run(directory: Path, parts: Sequence[Part], programs: dict[str, str], seconds: float = 60.0) -> list[Any]:
    found: list[dict[str, Any]] = []
    schedule.run(parts, directory, time.monotonic() + seconds, starting(directory, programs), found.append, grace_s=0.0)
    return found


def test_a_part_that_fails_or_crashes_or_hangs_costs_no_other(tmp_path: Path) -> None:
    parts = [part("raises"), part("crashes"), part("hangs", limit_s=3.0), part("fine", none_of("errors"))]
    programs = {"raises": RAISES, "crashes": CRASHES, "hangs": HANGS, "fine": FINE}
    found = run(tmp_path, parts, programs)
    assert [(each["name"], each["outcome"]) for each in found] == [
        ("raises", "failed"),
        ("crashes", "failed"),
        ("hangs", "hung"),
        ("fine", "done"),
    ]
    assert "ended with 3" in found[0]["problems"][0]
    assert "ended with -6" in found[1]["problems"][0]


def test_what_a_part_has_found_before_it_hangs_is_kept_and_its_processes_are_ended(tmp_path: Path) -> None:
    (found,) = run(tmp_path, [part("hangs", none_of("errors"), limit_s=3.0)], {"hangs": HANGS})
    assert found["numbers"] == {"so far": 7}
    assert [promise["verdict"] for promise in found["promises"]] == ["not seen"]
    pid = int(result_path(tmp_path, "hangs").with_suffix(".pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_part_for_which_there_is_no_time_is_left_out_and_a_shorter_one_is_not(tmp_path: Path) -> None:
    parts = [part("long", none_of("errors"), estimate_s=1000), part("short", estimate_s=5)]
    long, short = run(tmp_path, parts, {"short": FINE}, seconds=60)
    assert (long["outcome"], short["outcome"]) == ("left out", "done")
    assert long["left_out"] == ["takes about 1000 s, and 60 s were left"]
    assert long["promises"][0]["verdict"] == "not seen"


# --- a part at work


def test_a_command_that_hangs_is_stopped_with_what_it_has_started(tmp_path: Path) -> None:
    program = f"""
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
time.sleep(600)
"""
    ran = commands.run([sys.executable, "-c", program], 4.0, tmp_path / "out", tmp_path / "err")
    assert ran.code is None
    assert ran.problem is not None
    assert "stopped after" in ran.problem
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_what_goes_wrong_in_one_step_of_a_part_leaves_the_others(tmp_path: Path) -> None:
    def steps(work: Work) -> None:
        with work.attempt("the first"):
            raise ValueError("no such thing")
        work.command(sys.executable, "-c", "import sys; sys.exit('something broke')")
        work.see("errors", 0)

    outcome = carry_out(replace(part("one", none_of("errors")), run=steps), tmp_path, 30.0, rehearsal=False)
    found = json.loads(result_path(tmp_path, "one").read_text())
    assert (outcome, found["outcome"]) == ("failed", "failed")
    assert "the first: " in found["problems"][0]
    assert "no such thing" in found["problems"][0]
    assert "something broke" in found["problems"][1]
    assert found["promises"][0]["verdict"] == "kept"


def test_a_part_that_the_deadline_cuts_short_is_run_again(tmp_path: Path) -> None:
    def steps(work: Work) -> None:
        work.command(sys.executable, "-c", "import time; time.sleep(600)")

    outcome = carry_out(replace(part("one"), run=steps), tmp_path, 1.0, rehearsal=False)
    found = json.loads(result_path(tmp_path, "one").read_text())
    assert outcome == "incomplete"
    assert "stopped after" in found["left_out"][0]
    book = book_in(tmp_path)
    book.add(found, "10:00")
    assert book.finished() == set()


# --- the book


def test_evidence_is_written_after_each_part_and_gone_on_with(tmp_path: Path) -> None:
    first = book_in(tmp_path)
    first.add(result("one"), "10:00")
    assert [each["name"] for each in json.loads(first.path.read_text())["parts"]] == ["one"]
    first.add(result("two", outcome="hung"), "10:01")
    second = book_in(tmp_path, started_at="now")
    second.take_up()
    assert second.started_at == "then"
    assert second.finished() == {"one"}
    second.add(result("two"), "10:02")
    written = json.loads(second.path.read_text())
    assert [(each["name"], each["outcome"]) for each in written["parts"]] == [("one", "done"), ("two", "done")]
    assert [(each["part"], each["verdict"]) for each in written["promises"]] == [("one", "kept"), ("two", "kept")]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"machine": {**MACHINE, "torch": "2.12.0"}}, "torch"),
        ({"machine": {**MACHINE, "gpu": None}}, "gpu"),
        ({"rehearsal": True}, "rehearsal"),
    ],
)
def test_evidence_of_one_machine_is_not_mixed_with_that_of_another(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    book_in(tmp_path).write("10:00")
    with pytest.raises(AnotherMachineError, match=f"another {what}"):
        book_in(tmp_path, **changes).take_up()


# --- what is kept


def test_ceilings_are_put_into_the_file_of_a_known_gpu_beside_its_data_sheet() -> None:
    slug, content = keeping.hardware_file(MACHINE, PRODUCTS, COPY)
    before, after = by_name("h200"), Hardware(slug=slug, **tomllib.loads(content))
    assert slug == "h200"
    assert after.model_copy(update={"measured": {}}) == before.model_copy(update={"measured": {}})
    rates = {precision: ceiling.matmul_flops_per_s for precision, ceiling in after.measured.items()}
    assert rates == {"bf16": 812.3e12, "fp32": 51.5e12}
    for words in ("n = 8192", "731.1 TFLOP/s sustained", "torch 2.11.0+cu130", "driver 580.1", "2026-11-30"):
        assert words in after.measured["bf16"].source
    assert "4.300 TB/s" in content
    assert "mamf-finder" not in content
    assert "[measured" not in keeping._MEASURED.sub("", content)  # the next evidence takes this one's place, whole
    assert "TB/s" not in keeping._MEASURED.sub("", content)


def test_records_are_packed_and_those_of_a_part_still_at_work_are_left_alone(tmp_path: Path) -> None:
    book = book_in(tmp_path)
    for name in ("over", "running"):
        place = tmp_path / "records" / name / "1"
        place.mkdir(parents=True)
        (place / "a-time.jsonl").write_text("{}\n")
    book.add(result("over"), "10:00")
    keeping.keep(book)
    assert (tmp_path / "records" / "running" / "1" / "a-time.jsonl").exists()
    assert not (tmp_path / "records" / "over" / "1" / "a-time.jsonl").exists()
    with tarfile.open(tmp_path / "evidence.tar.gz") as archive:
        names = archive.getnames()
    assert names[0] == "evidence/evidence.json"
    assert "evidence/records/over/1/a-time.jsonl.gz" in names
    assert not any("running" in name for name in names)


def test_the_archive_holds_what_is_worth_most_and_no_more_than_can_be_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "LARGEST_BYTES", 100_000)
    book = book_in(tmp_path)
    place = tmp_path / "records" / "one"
    place.mkdir(parents=True)
    for number in range(8):
        (place / f"{number}.out").write_bytes(os.urandom(30_000))
    book.add(result("one"), "10:00")
    write_whole(result_path(tmp_path, "one"), "{}")
    keeping.keep(book)
    archive = tmp_path / "evidence.tar.gz"
    assert archive.stat().st_size < 110_000
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    assert {"evidence/evidence.json", "evidence/parts/one.json"} <= set(names)
    assert 1 <= sum(name.endswith(".out") for name in names) < 8


# --- what is shown


def test_the_table_says_of_every_promise_what_became_of_it(tmp_path: Path) -> None:
    book = book_in(tmp_path)
    promises = [at_most("errors", 0.01).outcome(0.2), at_least("MFU", 0.5).outcome(0.61), none_of("odd").outcome(None)]
    book.add(result("speed", promises=promises, problems=["it broke:\n  File x\nValueError: [red]no"]), "10:00")
    book.add(result("later", outcome="left out", promises=[], left_out=["takes about 60 s"]), "10:01")
    shown = screen.text(book)
    for words in ("NVIDIA H200 · driver 580.1 · torch 2.11.0+cu130", "20.00%", "missed", "61.00%", "kept", "not seen"):
        assert words in shown
    assert "later (left out)" in shown
    assert "ValueError: [red]no" in shown
    assert "1 kept, 1 missed, 1 not seen" in shown


# --- what is run


def test_a_report_of_pytest_is_read_as_pytest_writes_it(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "@pytest.mark.skip(reason='not here')\n"
        "def test_absent(): pass\n"
        "@pytest.fixture\n"
        "def broken(): raise OSError('gone')\n"
        "def test_error(broken): pass\n"
    )
    report = tmp_path / "junit.xml"
    words = [sys.executable, "-m", "pytest", "-q", f"--rootdir={tmp_path}", f"--junitxml={report}", str(tmp_path)]
    subprocess.run(words, capture_output=True, check=False, cwd=tmp_path)
    found = {each["test"].rpartition("::")[2]: each for each in suite.outcomes(report)}
    assert {name: each["outcome"] for name, each in found.items()} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_absent": "skipped",
        "test_error": "failed",
    }
    assert "assert 1 == 2" in found["test_bad"]["detail"]


class Listing(Work):
    """Writes down what it would run."""

    def command(self, *words: str, codes: Sequence[int] = (0,)) -> commands.Ran:
        self.commands.append({"words": words})
        self.place.joinpath("nothing").write_text("{}")
        return commands.Ran(words, 0, 0.0, self.place / "nothing", self.place / "nothing")


def given(each: Part, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The arguments of sysbench in every command that a part runs on a GPU."""
    work = Listing(each, directory, rehearsal=False, ends_at_s=time.monotonic() + 1e6)

    def remember(*words: str) -> list[Any]:
        work.commands.append({"words": ("sysbench", *words)})
        return []

    monkeypatch.setattr(fit, "simulated_as", lambda: "h200")
    monkeypatch.setattr(memory_accuracy, "_slug", lambda: "h200")
    monkeypatch.setattr(memory_accuracy, "run", lambda out, *words: remember("memory", *words))
    monkeypatch.setattr(fidelity, "_in_terminal", lambda words, watch=None: remember(*words) or (0.0, 0))
    with work.attempt("all of it"):  # what is made of results that are not there does not matter here
        each.run(work)
    for command in work.commands:
        words = list(command["words"])
        if "sysbench" in words:
            yield words[words.index("sysbench") + 1 :]


@pytest.mark.parametrize("each", [each for each in PARTS if each.name != "ceilings"], ids=lambda each: each.name)
def test_every_command_is_one_that_can_be_given(
    each: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands_given = list(given(each, tmp_path, monkeypatch))
    assert commands_given or each.name.startswith("tests-")
    for words in commands_given:
        if words[0] == "doctor":
            continue
        with pytest.raises(SystemExit) as exit_:
            sysbench_main([*words, "--plan"])
        assert exit_.value.code == 0, (words, capsys.readouterr().err)


@pytest.mark.slow
def test_a_rehearsal_runs_for_real_and_claims_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.gpu.evidence", "--rehearse", "--only", "attention", f"--out={tmp_path}"]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    written = json.loads((tmp_path / "evidence.json").read_text())
    (attention,) = written["parts"]
    assert (written["rehearsal"], attention["outcome"], attention["problems"]) == (True, "done", [])
    assert {promise["verdict"] for promise in written["promises"]} == {"not seen"}
    assert any(promise.get("rehearsed") is not None for promise in written["promises"])
    assert "REHEARSAL" in ran.stdout
    assert not (tmp_path / "hardware").exists()
    assert (tmp_path / "evidence.tar.gz").exists()
