"""`sysbench run`, as a process: to the end, interrupted, continued, and refused."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from sysbench.commands.run import directory as experiment_directory
from sysbench.commands.run import runs as experiment_runs
from sysbench.commands.run.experiment import plan
from sysbench.commands.run.experiment_file import WrittenExperiment, load
from sysbench.commands.run.spec import ExperimentOptions
from sysbench.errors import LogError, OutputError, UsageError
from sysbench.log import manifest
from sysbench.log.durations import Durations
from sysbench.log.manifest import Manifest, RunEntry
from tests.cli.running import answered, started, wait_until
from tests.processes import HANG_S

TINY = 'd-model = 32\nd-ff = 64\nlayers = 1\nheads = 2\nvocab = 50\nbatch = 1\nwarmup = 0\nmode = "forward"\n'

EXPERIMENT = f"""
title = "Of everything a little"

[[run]]
name = "short"
command = "time"
ctx = 8
steps = 2
{TINY}
[[run]]
name = "elsewhere"
command = "time"
device = "cuda:99"
{TINY}
[[run]]
name = "nowhere"
command = "time"
{TINY}
on_cpu.skip = "no card, no run"
on_mps.skip = "no card, no run"
on_cuda.skip = "there is one, but this is a test"

[[run]]
name = "long"
title = "A run that takes long"
command = "time"
ctx = 8
steps = "3,700"
{TINY}
[[run]]
name = "needs"
command = "memory"
size = "tiny"
ctx = 16
mode = "forward"
simulate = "24GiB"
figure = "over-time.svg"
"""


def written(directory: Path, text: str) -> str:
    path = directory / "mine.toml"
    path.write_text(text)
    return str(path)


def events_in(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def cells_of(log: Path) -> list[str]:
    return [event["cell"] for event in events_in(log) if event["event"] == "cell_started"]


TWO_RUNS = f"""
[[run]]
name = "first"
command = "time"
ctx = 8
steps = 2
{TINY}
[[run]]
name = "second"
command = "time"
ctx = 8
steps = 3
{TINY}
"""


def test_an_experiment_that_a_full_disk_stops_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, TWO_RUNS)
    with monkeypatch.context() as full:

        def fails(self: object, entry: RunEntry) -> None:
            raise OutputError("cannot write manifest.json: no space left on the device")

        full.setattr(experiment_directory.ExperimentDirectory, "update_entry", fails)
        stopped = answered("run", path, "--out", str(tmp_path))
    (directory,) = tmp_path.glob("*-mine")
    assert stopped.code == 1
    assert stopped.err.splitlines()[-2:] == [
        f"resume with: sysbench run --resume {directory}",
        "sysbench run: cannot write manifest.json: no space left on the device",
    ]
    resumed = answered("run", "--resume", str(directory))
    assert (resumed.code, "run 1 of 2  first: already finished" in resumed.err) == (0, True)


@pytest.mark.slow
def test_an_experiment_is_interrupted_killed_continued_and_then_complete(tmp_path: Path) -> None:
    """One scenario, because every run in it waits for torch: a failing run, an interruption, a kill, the rest."""
    path = written(tmp_path, EXPERIMENT)
    with started("run", path, "--out", str(tmp_path), "--seed", "3") as process:
        wait_until(lambda: _second_cell_is_being_measured(tmp_path), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG_S)
    (directory,) = tmp_path.glob("*-mine")
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "run 2 of 5  elsewhere failed: --device cuda:99: no such device" in err
    assert "run 3 of 5  nowhere: skipped, " in err
    assert f"saved  {directory}" in err
    assert f"resume with: sysbench run --resume {directory}" in err
    assert "A run that takes long" in out
    assert "interrupted" in out
    assert not (directory / "needs.jsonl").exists()

    content = manifest.read(directory)
    assert [run.name for run in content.runs] == ["short", "elsewhere", "nowhere", "long", "needs"]
    assert content.overrides == {"seed": "3"}
    assert all(run.options.get("seed") == "3" for run in content.runs)
    elsewhere, nowhere = content.runs[1:3]
    assert elsewhere.failure is not None
    assert "cuda:99: no such device" in elsewhere.failure
    assert (nowhere.here, nowhere.failure) == ("left out", None)

    # As if it had been killed: a log that ends in mid-line and no record, and one that had hardly been begun.
    long, short = directory / "long.jsonl", (directory / "short.jsonl").read_bytes()
    lines = [line for line in long.read_text().splitlines(keepends=True) if '"event":"run_finished"' not in line]
    long.write_text("".join(lines)[:-20])
    (directory / "long.json").unlink()
    (directory / "needs.jsonl").write_text('{"event":"run_sta')

    continued = answered("run", "--resume", str(directory), "--format", "markdown")
    assert continued.code == 1, "a run has failed again"
    assert "run 1 of 5  short: already finished" in continued.err
    assert (directory / "short.jsonl").read_bytes() == short, "what was finished is not touched"
    first_cell, second_cell, again = cells_of(long)
    assert (first_cell, second_cell) == (first_cell, again), "a finished cell is not repeated"
    assert json.loads((directory / "long.json").read_text())["status"] == "complete"
    assert json.loads((directory / "needs.json").read_text())["status"] == "complete"
    runs = {"short", "long", "needs"}
    assert {each.name for each in directory.iterdir()} == {
        "manifest.json",
        *(f"{run}.{ending}" for run in runs for ending in ("json", "jsonl")),
        "needs-over-time.svg",
    }
    entries = {run.name: run for run in manifest.read(directory).runs}
    assert entries["needs"].files == ("needs-over-time.svg",)
    assert (entries["needs"].here, entries["needs"].why) == ("simulated", "simulated for 24GiB")


def _second_cell_is_being_measured(out: Path) -> bool:
    """Of the long run; the last line of a log may be on its way."""
    texts = [log.read_text() for log in out.glob("*/long.jsonl")]
    return any(text.count('"event":"cell_started"') >= 2 and text.count('"step_measured"') > 20 for text in texts)


# --- continuing, without measuring anything


def on_this_machine(experiment: WrittenExperiment, overrides: dict[str, str], gpu_name: str | None) -> Any:
    return plan(experiment, overrides, ("cpu",)), Durations()


def directory_of(out: Path, path: str, overrides: dict[str, str]) -> Path:
    experiment = load(path)
    entries = tuple(each.entry for each in plan(experiment, overrides, ("cpu",)))
    content = Manifest(
        sysbench_version="0", experiment=path, title="t", overrides=overrides, started_at=0, runs=entries
    )
    with experiment_directory.create_directory(out, "x", content) as directory:
        return directory.path


@pytest.mark.parametrize(
    ("former", "later", "said"),
    [
        ("ctx = 8", "ctx = 9", "short was made differently: --ctx 8 there, 9 here"),
        (
            "steps = 2\n",
            "steps = 2\nbf16 = true\n",
            "short was made differently: --precision not given there",
        ),
        ('name = "short"', 'name = "brief"', "the runs of the experiment have changed (brief, short)"),
        (
            'on_cpu.skip = "no card, no run"',
            "",
            "nowhere was made differently: run left out (time) there, as written (time) here",
        ),
    ],
)
def test_a_directory_of_another_experiment_is_not_continued(tmp_path: Path, former: str, later: str, said: str) -> None:
    path = written(tmp_path, EXPERIMENT)
    directory = directory_of(tmp_path, path, {})
    written(tmp_path, EXPERIMENT.replace(former, later))
    with pytest.raises(UsageError) as refused:
        experiment_runs.resume_experiment(directory, ExperimentOptions(quiet=True), {}, on_this_machine)
    assert said in str(refused.value)


def test_what_is_no_directory_of_an_experiment_is_not_continued(tmp_path: Path) -> None:
    path = written(tmp_path, EXPERIMENT)
    directory = directory_of(tmp_path, path, {})
    with pytest.raises(UsageError, match=r"this is a directory of the experiment .*mine\.toml, not of quick"):
        experiment_runs.resume_experiment(directory, ExperimentOptions(experiment="quick"), {}, on_this_machine)
    with pytest.raises(LogError, match=r"is not an experiment directory: it has no manifest\.json"):
        experiment_runs.resume_experiment(tmp_path, ExperimentOptions(), {}, on_this_machine)
    (directory / "manifest.json").write_text('{"manifest_version": 99, "sysbench_version": "7.0"}')
    with pytest.raises(
        LogError, match=r"was written by sysbench 7\.0 with manifest version 99; this version reads up to 1"
    ):
        manifest.read(directory)
    (directory / "manifest.json").write_text('{"runs": 3}')
    with pytest.raises(LogError, match="is not a sysbench manifest"):
        manifest.read(directory)


def test_two_processes_do_not_measure_into_one_directory(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, written(tmp_path, EXPERIMENT), {})
    with (
        experiment_directory.open_directory(directory),
        pytest.raises(UsageError, match="is being written by another sysbench"),
        experiment_directory.open_directory(directory),
    ):
        pass


def test_experiments_of_one_second_have_directories_of_their_own(tmp_path: Path) -> None:
    path = written(tmp_path, EXPERIMENT)
    assert len({directory_of(tmp_path, path, {}) for _ in range(4)}) == 4


@pytest.mark.parametrize(
    ("former", "later", "said"),
    [
        ("over-time.svg", "over-time.bmp", "needs: --figure .*needs-over-time.bmp must end in .png, .svg, .pdf"),
        ("steps = 2", "steps = 2\ntables = 'sumary'", "short: --tables sumary is not a table. Did you mean summary?"),
    ],
)
def test_what_could_not_be_shown_is_refused_before_anything_is_measured(
    tmp_path: Path, former: str, later: str, said: str
) -> None:
    experiment = load(written(tmp_path, EXPERIMENT.replace(former, later)))
    planned = plan(experiment, {}, ("cpu",))
    options = ExperimentOptions(experiment="x", out=tmp_path / "runs")
    with pytest.raises(UsageError, match=said):
        experiment_runs.run_experiment(experiment, planned, options, {}, Durations())
    assert list((tmp_path / "runs").iterdir()) == []


# --- the surface


def test_without_a_name_what_ships_is_listed() -> None:
    ran = answered("run")
    assert ran.code == 0
    for name in ("quick", "systems-report", "memory", "mixed-precision"):
        assert f"\n {name} " in ran.out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["qiuck"],
            "sysbench run: qiuck is not a built-in experiment or a .toml file. Did you mean",
        ),
        (["nowhere/mine.toml"], "sysbench run: cannot read nowhere/mine.toml: no such file"),
        (["quick", "--seqq", "8"], "sysbench run: No such option: --seqq"),
        (["sizes", "--seq", "8"], "sysbench run: --seq is not an option of any run of sizes"),
        (["sizes", "--size", "smal"], "sysbench run: --size smal is not a size. Did you mean small?"),
        (
            ["--size", "small", "--plan"],
            "sysbench run: --size, --plan also needs the name of an experiment (accumulation, ",
        ),
        (["--resume", "nowhere"], "sysbench run: nowhere is not an experiment directory"),
    ],
)
def test_a_mistake_is_answered_before_a_worker_is_started(arguments: list[str], complaint: str) -> None:
    ran = answered("run", *arguments)
    assert ran.code == 2
    assert ran.complaint.startswith(complaint)


def test_the_command_line_of_an_entry_repeats_it() -> None:
    entry = RunEntry(name="x", part="", title="", command="accum", options={"experiment": "sums", "count": "8"})
    assert entry.command_line == "sysbench accum sums --count 8"
    switch = RunEntry(name="x", part="", title="", command="attention", options={"causal": "", "impl": "a:b c"})
    assert switch.command_line == "sysbench attention --causal --impl 'a:b c'"
    newer = RunEntry(name="x", part="", title="", command="unheard-of", options={"size": "tiny"})
    assert newer.command_line == "sysbench unheard-of --size tiny"
