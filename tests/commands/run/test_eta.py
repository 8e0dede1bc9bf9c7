"""How long an experiment takes: from what its cells took before, and while it goes on."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from sysbench.commands.time.live import TIME, TimeLines
from sysbench.commands.time.spec import TimeSpec
from sysbench.engine import devices
from sysbench.log.durations import earlier_durations
from sysbench.log.events import CellFinished, CellStarted, DeviceInfo, Event, RunStarted, encode
from sysbench.render.dashboard import experiment_progress
from sysbench.render.dashboard.experiment_progress import PendingCell
from sysbench.render.dashboard.live import Dashboard
from tests import fixtures_timing
from tests.cli.running import answered

A100 = "NVIDIA A100-SXM4-80GB"
EXPERIMENT = """title = "two runs"
[[run]]
name = "known"
command = "time"
size = "small"
ctx = "128,256"
steps = 6
[run.on_cpu]
skip = "it takes too long"
[[run]]
name = "unknown"
command = "time"
d-model = 32
d-ff = 64
layers = 1
heads = 2
vocab = 50
ctx = 16
mode = "forward"
steps = 6
"""

PREDICTED = """title = "two runs"
[[run]]
name = "steps"
command = "time"
d-model = 32
d-ff = 64
layers = 1
heads = 2
vocab = 50
ctx = "16,32"
mode = "forward"
steps = 6
[run.on_cpu]
skip = "it takes too long"
[[run]]
name = "rounds"
command = "accum"
experiment = "sums"
"""


@pytest.fixture
def events() -> list[Event]:
    return list(fixtures_timing.events(TimeSpec(size="small", ctx="128,256", steps=6)))  # type: ignore[arg-type]


@pytest.fixture
def experiment(tmp_path: Path, events: list[Event]) -> Path:
    """An experiment, one run of which was made before."""
    (tmp_path / "runs" / "earlier").mkdir(parents=True)
    (tmp_path / "runs" / "earlier" / "known.jsonl").write_bytes(b"".join(encode(event) + b"\n" for event in events))
    (tmp_path / "runs" / "torn.jsonl").write_bytes(b'{"event":"run_started","at_s":')
    (tmp_path / "two.toml").write_text(EXPERIMENT)
    return tmp_path / "two.toml"


def spans_s(events: list[Event]) -> dict[str, float]:
    """What each cell took, computed from the events alone."""
    began = {each.cell: each.at_s for each in events if isinstance(each, CellStarted)}
    return {each.cell: each.at_s - began[each.cell] for each in events if isinstance(each, CellFinished)}


def test_what_cells_took_is_read_from_logs_of_such_a_device_alone(experiment: Path, events: list[Event]) -> None:
    found = earlier_durations(experiment.parent / "runs", {A100})
    assert found.cells_s == pytest.approx(spans_s(events))
    first = next(each.at_s for each in events if isinstance(each, CellStarted))
    assert found.startup_s("time") == pytest.approx(first - events[0].at_s)
    assert earlier_durations(experiment.parent / "runs", {"NVIDIA H200"}).cells_s == {}


def test_a_plan_for_a_gpu_that_is_not_here_is_the_one_of_cuda_with_its_time(
    experiment: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "list_devices", lambda: pytest.fail("asked what is here"))
    words = ("run", str(experiment), "--plan", f"--out={experiment.parent / 'runs'}")
    shown = answered(*words, "--for", "A100 80GB", COLUMNS="100")
    assert shown.code == 0, shown.err
    assert "planned for NVIDIA A100-SXM4-80GB" in shown.out
    assert "left out" not in shown.out
    assert shown.out.count("fits") == 3
    said = (
        "from earlier durations of the same cells, and PREDICTED steps; "
        "building models and starting workers are not included"
    )
    assert re.search(rf"about \d+ s in total, {said}", " ".join(shown.out.split()))
    content = json.loads(answered(*words, "--for", "24GiB", "--json", "-").out)
    assert [row["takes_s"] for row in content["tables"][0]["rows"]] == [None, None]  # nothing is known of its speed
    assert "--for h10 is not a known GPU" in answered(*words, "--for", "h10").complaint


def test_an_experiment_for_a_gpu_that_is_not_here_is_predicted_and_says_how_long_measuring_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "list_devices", lambda: pytest.fail("asked what is here"))
    (tmp_path / "two.toml").write_text(PREDICTED)
    done = answered("run", "two.toml", "--for", "H100 SXM", "--quiet", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "PREDICTED: measuring all of this on that GPU takes about" in " ".join(done.out.split())
    (directory,) = (tmp_path / "runs").iterdir()
    manifest = json.loads((directory / "manifest.json").read_text())
    assert [run["here"] for run in manifest["runs"]] == ["simulated", "left out"]
    assert "sysbench accum needs a device" in manifest["runs"][1]["why"]
    cells = json.loads((directory / "steps.json").read_text())["cells"]
    steps_s = [cell["prediction"]["step"]["point_s"] for cell in cells]
    again = answered("run", "--resume", str(directory), "--quiet", cwd=tmp_path)
    assert again.code == 0, again.err
    words = ("run", "two.toml", "--for", "h100", "--plan", "--json", "-")
    takes = [row["takes_s"] for row in json.loads(answered(*words, cwd=tmp_path).out)["tables"][0]["rows"]]
    assert takes == [pytest.approx((5 + 6) * sum(steps_s)), None]


def test_of_a_run_on_several_devices_the_gpu_is_predicted_and_the_others_are_unknown(tmp_path: Path) -> None:
    run = '[[run]]\nname = "devices"\ncommand = "time"\nsize = "tiny"\nctx = 32\ndevice = "cuda,cpu"\n'
    (tmp_path / "one.toml").write_text(run)
    shown = answered("run", "one.toml", "--for", "h100", "--plan", "--json", "-", cwd=tmp_path)
    assert shown.code == 0, shown.err
    (row,) = json.loads(shown.out)["tables"][0]["rows"]
    assert (row["cells"], row["takes_s"]) == (2, None)


def test_what_is_left_of_the_whole_counts_known_cells_by_what_they_took_and_others_by_the_like() -> None:
    whole = experiment_progress.initial_progress(
        {
            "a": {"a1": PendingCell("time", 10.0), "a2": PendingCell("time")},
            "b": {"b1": PendingCell("memory")},
        }
    )
    whole.start_run(1, "a")
    assert whole.remaining_s(0.0) is None
    device = DeviceInfo(name="cpu", type="cpu")
    for key, start_s, end_s in (("a1", 0.0, 4.0), ("a2", 4.0, 10.0)):
        whole.update(CellStarted(at_s=start_s, cell=key, index=0, axes={}, device=device))
        assert whole.describe(start_s).startswith("run 1 of 2")
        whole.update(CellFinished(at_s=end_s, cell=key, outcome="ok"))
    assert whole.remaining_s(10.0) == pytest.approx(5.0)
    whole.start_run(2, "b")
    whole.update(CellStarted(at_s=10.0, cell="b1", index=0, axes={}, device=device))
    assert whole.describe(12.0) == "run 2 of 2, about 3 s left in total"
    whole.drop_run("b")
    assert whole.describe(12.0) == "run 2 of 2"


def test_lines_and_dashboard_say_where_the_whole_is(events: list[Event]) -> None:
    (started,) = (each for each in events if isinstance(each, RunStarted))
    keys = [cell.key for cell in TimeSpec.model_validate(started.spec).cells()]
    waiting = {
        "before": {},
        "this": {key: PendingCell("time", 90.0) for key in keys},
        "after": {"x": PendingCell("time", 90.0)},
    }

    def at_this_one() -> experiment_progress.ExperimentProgress:
        whole = experiment_progress.initial_progress(waiting)
        whole.start_run(2, "this")
        return whole

    file = io.StringIO()
    lines = TimeLines(Console(file=file), overall=at_this_one())
    for event in events:
        lines.show(event)
    cells = [line for line in file.getvalue().splitlines() if line.startswith(("1/2", "2/2"))]
    assert [line.partition("  (")[2] for line in cells] == [
        "run 2 of 3, about 3 min left in total)",
        "run 2 of 3, about 90 s left in total)",
    ]
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=24, legacy_windows=False)
    with Dashboard(console, view=TIME, overall=at_this_one()) as dashboard:
        for event in events[:-3]:
            dashboard.show(event)
    assert "run 2 of 3, about" in screen.getvalue()
