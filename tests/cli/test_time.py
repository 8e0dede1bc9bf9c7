"""`sysbench time` as a user runs it: real workers, real signals, real files."""

import csv
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from sysbench.commands.time.record import TimeRecord
from sysbench.units import significant
from tests.cli.running import (
    QUICK,
    Ran,
    answered,
    command,
    environment,
    only,
    ran_once,
    record_in,
    started,
    wait_until,
)
from tests.processes import HANG_S

CONTROL = "\x1b"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """What one run of two cells says."""
    return _run_of_two_cells(tmp_path_factory)[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it leaves its files."""
    return _run_of_two_cells(tmp_path_factory)[1]


def _run_of_two_cells(factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    words = (*QUICK, "--mode", "train", "--precision", "fp32,bf16", "--out", ".")
    ran, directory = ran_once(factory, "time-of-two-cells", "time", *words)
    assert ran.code == 0, ran.err
    return ran, directory


def test_a_run_leaves_a_log_a_record_and_tables(finished: Path, shown: Ran) -> None:
    made = TimeRecord.model_validate_json(only(finished, "*.json").read_bytes())
    assert made.status == "complete"
    assert [cell.outcome for cell in made.cells] == ["ok", "ok"]
    for cell in made.cells:
        step = cell.phases["step"].wall
        assert step is not None
        assert len(step.samples_s) == 6
        assert len(cell.warmup_samples_s) == 1
        assert cell.loss is not None
        assert cell.memory.allocated_peak_bytes is None  # a CPU does not tell, and then nothing is made up
    assert "fp32" in shown.out
    assert "bf16" in shown.out
    assert "±" in shown.out


def test_phases_of_a_step_add_up_to_the_step(finished: Path) -> None:
    for cell in record_in(finished)["cells"]:
        walls = [phase["wall"]["samples_s"] for name, phase in cell["phases"].items() if name != "step"]
        for parts, whole in zip(zip(*walls, strict=True), cell["phases"]["step"]["wall"]["samples_s"], strict=True):
            assert sum(parts) == pytest.approx(whole, rel=1e-9)


def test_what_is_not_a_terminal_gets_plain_lines_one_per_cell(shown: Ran) -> None:
    assert CONTROL not in shown.err
    assert CONTROL not in shown.out
    assert sum(line.lstrip().startswith(("1/2", "2/2")) for line in shown.err.splitlines()) == 2


def test_a_saved_run_is_shown_again_as_it_was_from_its_log_and_from_its_record(finished: Path, shown: Ran) -> None:
    for pattern in ("*.jsonl", "*.json"):
        again = answered("time", "--from", str(only(finished, pattern)), COLUMNS="")
        assert again.code == 0
        assert again.out == shown.out


def test_csv_holds_the_numbers_of_the_record(finished: Path) -> None:
    ran = answered("time", "--from", str(only(finished, "*.jsonl")), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert rows
    step = record_in(finished)["cells"][0]["phases"]["step"]["wall"]
    assert any(repr(significant(step["median_s"])) in row.values() for row in rows)


@pytest.mark.parametrize(("form", "mark"), [("markdown", "|"), ("latex", r"\toprule")])
def test_tables_come_in_the_formats_that_reports_are_written_in(finished: Path, form: str, mark: str) -> None:
    ran = answered("time", "--from", str(only(finished, "*.jsonl")), "--format", form)
    assert ran.code == 0
    assert mark in ran.out


def test_a_table_that_the_run_cannot_fill_costs_nothing_that_was_measured(finished: Path) -> None:
    ran = answered("time", "--from", str(only(finished, "*.jsonl")), "--tables", "device")
    assert ran.code == 2
    assert "±" in ran.out
    assert "device" in ran.complaint


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_the_first_line_is_what_an_h100_would_take_and_the_cpu_is_measured(tmp_path: Path) -> None:
    words = [word for word in QUICK if word not in ("--device", "cpu")]
    ran = answered("time", *words, "--out", str(tmp_path))
    assert ran.code == 0, ran.err
    first = ran.err.splitlines()[0]
    assert re.fullmatch(
        r"no GPU here; PREDICTED, not measured, for NVIDIA H100 .*: .* takes \S+ .?s \(\S+–\S+\), "
        r"\S+ tokens/s → --simulate h100 for more",
        first,
    )
    (cell,) = record_in(tmp_path)["cells"]
    assert (cell["outcome"], cell["device"]["type"], len(cell["phases"]["step"]["wall"]["samples_s"])) == (
        "ok",
        "cpu",
        6,
    )
    assert "prediction" not in cell


def test_a_limit_that_one_step_exceeds_by_far_is_said_with_what_it_would_take(tmp_path: Path) -> None:
    words = (
        "--size",
        "xl",
        "--ctx",
        "512",
        "--device",
        "cpu",
        "--max-time",
        "0.01s",
        "--force",
        "--out",
        str(tmp_path),
    )
    ran = answered("time", *words)
    assert ran.code == 1
    (cell,) = record_in(tmp_path)["cells"]
    assert (cell["outcome"], cell["reason"]) == ("skipped", "over-budget")
    assert re.match(
        r"a step takes about .* here, longer than --max-time 0.01s. Measure one with --max-time", cell["detail"]
    )
    assert cell["expected_s"] > 0.02


def test_json_on_stdout_is_the_record_alone_and_quiet_is_only_the_result(tmp_path: Path) -> None:
    ran = answered("time", *QUICK, "--json", "-", "--quiet", "--out", str(tmp_path))
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == record_in(tmp_path)


def test_an_interrupted_run_is_saved_and_can_be_finished(tmp_path: Path) -> None:
    # A number of steps that takes far longer than this test waits.
    words = ("--ctx", "16,32", "--steps", "1000000", "--timeout", "60", "--out", str(tmp_path))
    with started("time", *QUICK, *words) as process:
        wait_until(lambda: measured_in(tmp_path) >= 50, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, err
    interrupted = record_in(tmp_path)
    assert interrupted["status"] == "interrupted"
    assert [cell["outcome"] for cell in interrupted["cells"]] == ["interrupted", "not run"]
    assert len(interrupted["cells"][0]["phases"]["step"]["wall"]["samples_s"]) >= 45
    assert "interrupted" in out
    assert "Traceback" not in err
    assert f"resume with: sysbench time --resume {only(tmp_path, '*.jsonl')}" in err


COUNTED = """
import os
import time

import torch


class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, tokens):
        time.sleep(0.3)
        result = tokens.unsqueeze(-1) * self.weight
        with open(os.environ["COUNTED"], "a") as file:
            file.write(f"{time.time()}\\n")
        return result
"""
"""A model that notes the end of each forward pass, for itself."""


@pytest.mark.slow
@pytest.mark.parametrize("chance", range(4))
def test_whenever_a_run_ends_every_step_that_had_ended_is_in_its_log(tmp_path: Path, chance: int) -> None:
    dice = random.Random(chance)
    (tmp_path / "counted.py").write_text(COUNTED)
    notes = tmp_path / "notes"
    words = ("--model", "counted.py:Counted", "--mode", "forward", "--device", "cpu", "--batch", "2", "--ctx", "8,16")
    words += ("--input", "tokens=int64[B,T]<50")
    many = ("--warmup", "6", "--steps", "40", "--out", "runs")
    ending = dice.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    with started("time", *words, *many, cwd=tmp_path, COUNTED=str(notes)) as process:
        wait_until(lambda: bool(_steps_in(tmp_path / "runs")), process)
        time.sleep(dice.uniform(0, 12))
        at_s = time.time()
        process.send_signal(ending)
        process.communicate(timeout=HANG_S)
    logged_s = _steps_in(tmp_path / "runs")
    noted_s = [float(line) for line in notes.read_text().splitlines()]
    # A step ends a moment after its forward pass, and its event is written a moment later still.
    ended = [each for each in noted_s if logged_s[0] < each < at_s - 0.3]
    assert sum(logged_s[0] < each for each in logged_s) >= len(ended)
    log = only(tmp_path / "runs", "*.jsonl")
    shown = answered("time", "--from", str(log), "--format", "csv", "--columns", "samples,phase")
    assert shown.code in (0, 1), shown.err


def _steps_in(directory: Path) -> list[float]:
    """When each step of the only log ended, warm-up steps included."""
    logs = list(directory.glob("*.jsonl"))
    events = [json.loads(line) for log in logs for line in log.read_text().splitlines() if line.endswith("}")]
    return [event["at_s"] for event in events if event["event"] == "step_measured"]


def test_resuming_runs_what_is_missing_and_keeps_the_rest(finished: Path, tmp_path: Path) -> None:
    whole = only(finished, "*.jsonl").read_text().splitlines(keepends=True)
    second = [number for number, line in enumerate(whole) if '"event":"cell_started"' in line][1]
    log = tmp_path / "killed.jsonl"
    # As a process that was killed in the middle of the second cell leaves it: half a line at the end.
    log.write_text("".join(whole[: second + 3]) + whole[second + 3][:20])
    ran = answered("time", "--resume", str(log))
    assert ran.code == 0, ran.err
    resumed = json.loads(log.with_suffix(".json").read_text())
    assert resumed["status"] == "complete"
    assert [cell["outcome"] for cell in resumed["cells"]] == ["ok", "ok"]
    assert resumed["cells"][0] == record_in(finished)["cells"][0]
    again = answered("time", "--resume", str(log))
    assert again.code == 0
    assert json.loads(log.with_suffix(".json").read_text())["cells"] == resumed["cells"]


def test_a_log_of_another_spec_is_not_continued(finished: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(only(finished, "*.jsonl").read_bytes())
    ran = answered("time", "--resume", str(log), "--ctx", "32")
    assert ran.code == 2
    assert "ctx" in ran.complaint
    assert log.read_bytes() == only(finished, "*.jsonl").read_bytes()


def test_a_worker_that_is_killed_costs_its_cell_and_no_other(tmp_path: Path) -> None:
    def kill() -> None:
        until_s = time.monotonic() + HANG_S
        while measured_in(tmp_path) < 20:
            assert time.monotonic() < until_s
            time.sleep(0.05)
        lines = only(tmp_path, "*.jsonl").read_text().splitlines()
        (worker,) = [json.loads(line)["pid"] for line in lines if '"event":"worker_ready"' in line]
        os.kill(worker, signal.SIGKILL)

    words = ("--steps", "1000000,5", "--out", str(tmp_path))
    with ThreadPoolExecutor() as beside:
        killing = beside.submit(kill)
        ran = answered("time", *QUICK, *words)
        killing.result()
    assert ran.code == 1, ran.err
    killed, after = record_in(tmp_path)["cells"]
    assert (killed["outcome"], after["outcome"]) == ("crashed", "ok")
    assert "SIGKILL" in killed["detail"]
    assert len(killed["phases"]["step"]["wall"]["samples_s"]) >= 15


def test_a_device_that_is_not_here_is_refused_with_what_is(tmp_path: Path) -> None:
    ran = answered("time", *QUICK, "--device", "cuda:7", "--out", str(tmp_path), "--quiet")
    assert ran.code == 2
    assert ran.complaint.startswith("sysbench time: --device cuda:7: no such device on this machine; available: ")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    arguments = command("time", *QUICK, "--json", "-", "--out", str(tmp_path))
    process = subprocess.Popen(
        arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=HANG_S) == 0, err
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
    assert record_in(tmp_path)["status"] == "complete"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
def test_a_full_disk_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    ran = answered("time", *QUICK, "--json", "/dev/full", "--out", str(tmp_path), "--quiet")
    assert ran.code == 1
    assert "cannot write /dev/full: no space left on device" in ran.complaint
    assert record_in(tmp_path)["status"] == "complete"


def test_showing_a_run_that_failed_does_not_fail() -> None:
    failed = Path(__file__).parents[1] / "fixtures" / "runs" / "time-failures.jsonl"
    shown = answered("time", "--from", str(failed))
    assert (shown.code, "crashed" in shown.out) == (0, True)


FILLING = """
import resource, sys
from sysbench.cli import main

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
main(sys.argv[1:])
"""


def test_a_run_that_a_full_disk_stops_is_shown_and_can_be_finished(tmp_path: Path) -> None:
    # A limit on file size fails like a full disk. Every cell takes some 20 kB of the log.
    lengths = ",".join(str(16 + 2 * number) for number in range(12))
    words = ("time", *QUICK, "--ctx", lengths, "--steps", "60", "--out", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-c", FILLING, *words], env=environment(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert re.search(r"^ +16 [! ]+\d", ran.stdout, re.MULTILINE), "the first cell is in the table"
    assert re.search(r"^ +38 +not run", ran.stdout, re.MULTILINE)
    log = only(tmp_path, "*.jsonl")
    resume, complaint = ran.stderr.splitlines()[-2:]
    assert resume == f"resume with: sysbench time --resume {log}"
    assert "file too large. The run was stopped" in complaint
    resumed = answered(*resume.removeprefix("resume with: sysbench ").split(), "--no-live")
    assert (resumed.code, "not run" in resumed.out) == (0, False)
    assert re.search(r"^resumed: \d+ finished cells? kept", resumed.err)
    assert [cell["outcome"] for cell in record_in(tmp_path)["cells"]] == ["ok"] * 12


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
def test_a_full_disk_under_stdout_is_one_line(finished: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            command("time", "--from", str(only(finished, "*.jsonl"))),
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr == "sysbench time: cannot write standard output: no space left on device\n"


def test_an_output_directory_that_cannot_be_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = answered("time", *QUICK, "--out", str(tmp_path / "file" / "runs"))
    assert ran.code == 1
    # Once a worker is there, the first line says what it runs on.
    assert ran.complaint.startswith(f"sysbench time: cannot create {tmp_path / 'file' / 'runs'}: ")


def measured_in(directory: Path) -> int:
    """How many steps the log in `directory` holds by now."""
    return sum(path.read_text().count('"event":"step_measured"') for path in directory.glob("*.jsonl"))
