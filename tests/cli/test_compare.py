"""`sysbench compare` as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sysbench.commands.time.spec import TimeSpec
from tests import fixtures_timing
from tests.cli.running import MINUTE, answered, environment, only, started, sysbench
from tests.processes import HANG_S

ARM = " ".join((*MINUTE, "--ctx", "16", "--steps", "9", "--warmup", "1", "--device", "cpu", "--mode", "forward"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs of the same, and one that took 5% longer with another torch."""
    directory = tmp_path / "runs"
    directory.mkdir()
    for day, factor in ((19, 1.0), (20, 1.0), (21, 1.05)):
        record = fixtures_timing.record(TimeSpec(size="small", ctx="128,256", steps="20"), seed=day)
        content = record.model_dump(mode="json")
        for cell in content["cells"]:
            wall = cell["phases"]["step"]["wall"]
            wall["samples_s"] = [sample * factor for sample in wall["samples_s"]]
        if factor > 1:
            content["environment"]["torch"]["torch"] = "2.14.0+cu131"
        (directory / f"2026-11-{day}T10-00-00-time.json").write_text(json.dumps(content, indent=1))
    return directory


def test_today_is_held_against_the_day_before(runs: Path) -> None:
    shown = sysbench("compare", "latest~1", "latest", "--gate", "3%", cwd=runs.parent, COLUMNS="100")
    assert shown.code == 3
    assert shown.err == ""
    assert shown.out.index("2.13.0+cu130  2.14.0+cu131") < shown.out.index("SLOWER")
    assert "Gate failed: 2 of 6 numbers worse by more than 3%" in shown.out


def test_what_did_not_change_passes_and_json_has_it_all(runs: Path) -> None:
    shown = answered("compare", "2026-11-19", "2026-11-20", "--gate", "0.03", "--json", "-", cwd=runs.parent)
    assert (shown.code, shown.err) == (0, "")
    found = json.loads(shown.out)
    assert found["gate"]["failed"] == []
    assert {time["verdict"] for cell in found["cells"] for time in cell["times"]} <= {"SAME", "AMBIGUOUS"}


def test_two_runs_are_compared_without_torch(runs: Path) -> None:
    program = (
        "import sys\n"
        "from sysbench.cli import main\n"
        "try:\n    main(['compare', 'latest~1', 'latest'])\n"
        "except SystemExit:\n    print('torch' in sys.modules, 'matplotlib' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=runs.parent, capture_output=True, text=True, check=True, env=environment()
    )
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], 'name what to compare: two runs, or --ab "SPEC" "SPEC"'),
        (["latest"], "compare needs two runs, but only latest is given: sysbench compare A B"),
        (["latest", "lastet"], "lastet is neither a file nor a directory, nor a run in runs. Did you mean latest?"),
        (
            ["latest", str(Path(__file__).parents[1] / "fixtures/runs/memory-a100.jsonl")],
            "nothing to compare: A has `sysbench time`, and B has `sysbench memory`; to select runs of one command, "
            "put it before the name, as in memory:NAME",
        ),
        (["latest", "latest~1", "--across", "precison"], "--across precison is not an axis. Did you mean precision?"),
        (["latest", "latest~1", "--gate", "three"], "--gate three is not a share: write 1% or 0.01"),
        (["latest", "latest~1", "--tables", "verdict"], "--tables verdict is not a table. Did you mean verdicts?"),
        (["latest", "--ab", "time", "time"], "--ab measures both arms now: it cannot be combined with earlier runs"),
        (["--ab", "time --bf16", "time"], "A and B are not comparable: precision is bf16 in A"),
    ],
)
def test_a_mistake_is_answered_in_one_line(runs: Path, arguments: list[str], complaint: str) -> None:
    shown = answered("compare", *arguments, cwd=runs.parent)
    assert (shown.code, shown.out) == (2, "")
    assert shown.complaint.startswith(f"sysbench compare: {complaint}")


@pytest.mark.slow
def test_two_specs_are_measured_in_turns_and_can_be_looked_at_again(tmp_path: Path) -> None:
    ran = answered("compare", "--ab", ARM, f"time {ARM} --layers 4", "--rounds", "2", cwd=tmp_path, COLUMNS="100")
    assert ran.code == 0, ran.err
    directory = only(tmp_path / "runs", "*-compare")
    assert sorted(path.name for path in (directory / "B").iterdir()) == [f"round-0{n}.jsonl" for n in (1, 2)]
    assert [line.split("  ")[0] for line in ran.err.splitlines()[1:3]] == [f"round {n} of 2" for n in (1, 2)]
    assert ran.err.splitlines()[-1] == f"saved  {Path('runs') / directory.name / 'comparison.json'}"
    assert "--layers  1  4" in ran.out
    again = answered("compare", "latest", cwd=tmp_path, COLUMNS="100")
    assert again.code == 0
    assert again.out.splitlines()[-10:] == ran.out.splitlines()[-10:]


@pytest.mark.slow
def test_ctrl_c_shows_the_rounds_that_are_finished(tmp_path: Path) -> None:
    with started("compare", "--ab", ARM, ARM, "--rounds", "50", cwd=tmp_path) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("round  1 of 50"):
                break
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=HANG_S)
    assert running.returncode == 130
    assert "B / A" in out
    assert "stopped after 1 of 50 rounds" in err
    again = answered("compare", "latest", cwd=tmp_path)
    assert again.code == 0
