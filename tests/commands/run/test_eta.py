"""How long an experiment takes: from what its cells took before, and while it goes on."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from sysbench.commands.run import prediction
from sysbench.commands.time.live import TimeScreen
from sysbench.commands.time.spec import TimeSpec
from sysbench.engine import supervisor
from sysbench.engine.process import WorkerProcess
from sysbench.log.durations import earlier_durations
from sysbench.log.events import CellFinished, CellStarted, DeviceInfo, Event, RunStarted, StageEntered, encode
from sysbench.render.dashboard import experiment_progress
from sysbench.render.dashboard.cell_lines import CellLines
from sysbench.render.dashboard.experiment_progress import PendingCell
from sysbench.render.dashboard.live import Clock, Dashboard
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
    monkeypatch.setattr(supervisor, "list_devices", lambda: pytest.fail("asked what is here"))
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
    monkeypatch.setattr(supervisor, "list_devices", lambda: pytest.fail("asked what is here"))
    (tmp_path / "two.toml").write_text(PREDICTED)
    done = answered("run", "two.toml", "--for", "H100 SXM", "--quiet", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "PREDICTED: measuring all of this on that GPU takes about" in " ".join(done.out.split())
    (directory,) = (tmp_path / "runs").iterdir()
    manifest = json.loads((directory / "manifest.json").read_text())
    assert [run["here"] for run in manifest["runs"]] == ["simulated", "changed"]
    assert manifest["runs"][1]["why"] == "it needs no GPU: computed on this machine"
    assert [cell["outcome"] for cell in json.loads((directory / "rounds.json").read_text())["cells"]] == ["ok"]
    cells = json.loads((directory / "steps.json").read_text())["cells"]
    steps_s = [cell["prediction"]["step"]["point_s"] for cell in cells]
    again = answered("run", "--resume", str(directory), "--quiet", cwd=tmp_path)
    assert again.code == 0, again.err
    words = ("run", "two.toml", "--for", "h100", "--plan")
    shown = json.loads(answered(*words, "--json", "-", cwd=tmp_path).out)
    expected_s = (5 + 6) * sum(steps_s)
    assert [row["takes_s"] for row in shown["tables"][0]["rows"]] == [pytest.approx(expected_s), None]
    text = " ".join(answered(*words, COLUMNS="100", cwd=tmp_path).out.split())
    assert 0.001 < expected_s < 0.1
    assert f"PREDICTED {float(f'{1e3 * expected_s:.2g}'):g} ms" in text
    assert re.search(r"about \d+(\.\d+)? ms in total for 1 of 2 runs", text)


def test_all_predictions_of_a_plan_share_a_worker_and_what_takes_too_long_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = PREDICTED.replace('"steps"', '"later"').replace("layers = 1", "layers = 9")
    quick = PREDICTED.partition("[[run]]")[2].partition("[[run]]")[0]
    (tmp_path / "two.toml").write_text(f"{large}\n[[run]]{quick}")
    workers = []
    launched = WorkerProcess._launch
    monkeypatch.setattr(WorkerProcess, "_launch", lambda self, *words: workers.append(self) or launched(self, *words))
    words = ("run", "two.toml", "--for", "h100", "--plan", "--json", "-")
    rows = json.loads(answered(*words, cwd=tmp_path).out)["tables"][0]["rows"]
    assert [row["run"] for row in rows if row["takes_s"]] == ["later", "steps"]
    assert len(workers) == 1
    monkeypatch.setattr(prediction.predict_durations_s, "__kwdefaults__", {"budget_s": 0.0})
    shown = json.loads(answered(*words, cwd=tmp_path).out)
    assert [row["takes_s"] for row in shown["tables"][0]["rows"]] == [None, None, None]
    assert "still to be computed, because predicting them takes long: steps, later" in json.dumps(shown)


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
    lines = CellLines(Console(file=file), view=TimeScreen, overall=at_this_one())
    for event in events:
        lines.show(event)
    cells = [line for line in file.getvalue().splitlines() if line.startswith(("1/2", "2/2"))]
    assert [line.partition("  (")[2] for line in cells] == [
        "run 2 of 3, about 3 min left in total)",
        "run 2 of 3, about 90 s left in total)",
    ]
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=24, legacy_windows=False)
    time = Ticking()
    with Dashboard(console, Clock(time, time), view=TimeScreen, overall=at_this_one()) as dashboard:
        for event in events[:-3]:
            time.now_s = event.at_s
            dashboard.show(event)
    assert "run 2 of 3, about" in screen.getvalue()


class Ticking:
    """A clock that shows what it is set to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def seconds_left(text: str, before: str = "") -> list[float]:
    """The remaining times on a screen, each `40 s left` or `2 min 10 s left` after the text `before`."""
    found = re.findall(rf"{before}((?:\d+ min )?\d+ s|\d+ min|under 1 s) left", text)
    parts = [re.findall(r"(\d+) (min|s)", each) for each in found]
    return [sum(int(number) * (60 if unit == "min" else 1) for number, unit in each) for each in parts]


@pytest.mark.parametrize("expected_s", [1.0, 90.0], ids=["expected too short", "expected too long"])
def test_an_experiment_never_ends_before_the_run_that_is_shown_below(expected_s: float) -> None:
    """Whatever the cells took before: the total counts what the run expects of itself from its own steps."""
    spec = TimeSpec(size="xl", ctx="128,256,512", steps=30)
    events = list(fixtures_timing.events(spec))
    waiting = {
        "this": {cell.key: PendingCell("time", expected_s) for cell in spec.cells()},
        "after": {"x": PendingCell("time", 5.0)},
    }
    whole = experiment_progress.initial_progress(waiting)
    whole.start_run(1, "this")
    time, compared = Ticking(), 0
    for number, event in enumerate(events):
        time.now_s = event.at_s
        if number % 7:
            whole.update(event)
            continue
        screen = io.StringIO()
        console = Console(file=screen, width=120, height=40, force_terminal=True, color_system=None)
        with Dashboard(
            console, Clock(time, time), view=TimeScreen, earlier=events[:number], overall=whole
        ) as dashboard:
            dashboard.show(event)
        top, title, *_ = [line for line in screen.getvalue().splitlines() if " of " in line]
        total, of_run = seconds_left(top, "about "), seconds_left(title)
        if of_run:
            compared += 1
            assert total, f"{top} above {title}"
            assert total[0] >= of_run[0], f"{top} above {title}"
    assert compared > 5


def test_a_cell_that_compiles_or_takes_longer_than_expected_has_no_remaining_time() -> None:
    device = DeviceInfo(name="cpu", type="cpu")
    whole = experiment_progress.initial_progress(
        {"a": {"eager": PendingCell("time"), "compiled": PendingCell("time"), "known": PendingCell("time", 120.0)}}
    )
    whole.start_run(1, "a")
    whole.update(CellStarted(at_s=0.0, cell="eager", index=0, axes={}, device=device))
    whole.update(CellFinished(at_s=4.0, cell="eager", outcome="ok"))
    assert whole.describe(4.0) == "run 1 of 1, about 2 min left in total"
    whole.update(CellStarted(at_s=4.0, cell="compiled", index=1, axes={}, device=device))
    whole.update(StageEntered(at_s=4.5, cell="compiled", stage="compiling"))
    assert {whole.describe(at_s) for at_s in (5.0, 60.0, 120.0)} == {"run 1 of 1, compiling"}
    whole.update(StageEntered(at_s=121.0, cell="compiled", stage="measuring"))
    assert whole.describe(121.0) == "run 1 of 1"
    assert whole.describe(121.0, run_s=123.0) == "run 1 of 1, about 2 min left in total"
    whole.update(CellFinished(at_s=124.0, cell="compiled", outcome="ok"))
    whole.update(CellStarted(at_s=124.0, cell="known", index=2, axes={}, device=device))
    whole.update(StageEntered(at_s=125.0, cell="known", stage="compiling"))
    assert whole.describe(184.0) == "run 1 of 1, about 60 s left in total", "an earlier run says how long it compiles"
