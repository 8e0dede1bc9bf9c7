"""Which runs a report is made of: logs, records, directories, experiments; each run once, in its place."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from matplotlib.figure import Figure

from sysbench import cli as app
from sysbench.command import Kind, runnable
from sysbench.commands.report.assemble import assemble_document, saved_pictures
from sysbench.commands.report.sources import read_sources
from sysbench.commands.time.spec import TimeSpec
from sysbench.commands.time.tables import SUMMARY
from sysbench.errors import LogError
from sysbench.log import manifest
from sysbench.log.events import CeilingMeasured, Event, encode
from sysbench.log.manifest import Manifest, RunEntry
from sysbench.render import plots as picture_file
from sysbench.spec.cell import spec_of
from sysbench.spec.command_options import command_line
from tests import fixtures_timing
from tests.fixtures_runs import KINDS, record, stream, write_log, write_record


def names(*paths: Path) -> list[str]:
    return [run.name for run in read_sources([str(path) for path in paths]).runs]


def experiment(directory: Path, *entries: RunEntry, **fields: Any) -> Path:
    directory.mkdir(exist_ok=True)
    content = Manifest(
        sysbench_version="0.1.0", experiment="quick", started_at=0.0, runs=entries, **{"title": "Quick", **fields}
    )
    (directory / manifest.FILE_NAME).write_text(content.model_dump_json(indent=1))
    return directory


def entry(name: str, command: Kind = "time", **fields: Any) -> RunEntry:
    return RunEntry(name=name, part="", title=name.title(), command=command, **fields)


def test_a_directory_is_all_of_its_runs_by_command(tmp_path: Path) -> None:
    for number, kind in enumerate(KINDS[::-1]):
        write_record(tmp_path / f"2026-11-20T00-00-0{number}-{kind}.json", record(kind))
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "trace.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert names(tmp_path) == ["time", "profile", "memory", "attention", "accum", "calibrate", "loop", "fit"]


def test_runs_of_one_command_are_numbered_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    later = record("time").model_copy(update={"started_at": "2027-01-01T00:00:00Z"})
    paths = [write_record(tmp_path / "b.json", record("time")), write_record(tmp_path / "a.json", later)]
    found = read_sources([str(path) for path in paths[::-1]]).runs
    assert [(run.name, run.record.started_at[:4]) for run in found] == [("time 1", "2026"), ("time 2", "2027")]


def test_a_run_that_is_there_as_log_and_as_record_is_used_once(tmp_path: Path) -> None:
    log = write_log(tmp_path / "elsewhere.jsonl", stream("time"))
    saved = write_record(tmp_path / "saved.json", record("time"))
    assert names(log, saved) == names(saved, log) == names(log, log) == ["time"]


def test_of_a_run_that_was_continued_the_longer_account_is_used(tmp_path: Path) -> None:
    events = stream("time")
    (tmp_path / "early").mkdir()
    early = write_log(tmp_path / "early" / "run.jsonl", events[: len(events) // 2])
    whole = write_log(tmp_path / "run.jsonl", events)
    for paths in ((early, whole), (whole, early)):
        (run,) = read_sources([str(path) for path in paths]).runs
        assert run.record.status == "complete"


def test_a_log_that_is_torn_in_mid_line_is_reported_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write_log(tmp_path / "run.jsonl", stream("time"))
    path.write_bytes(path.read_bytes()[:-150])
    (run,) = read_sources([str(path)]).runs
    assert run.record.status == "unfinished"
    assert any(cell.outcome == "ok" for cell in run.record.cells)


def test_an_experiment_names_its_runs_and_puts_them_into_its_own_order(tmp_path: Path) -> None:
    entries = (
        entry("sums", "accum", question="What is lost?"),
        entry("sizes", here="simulated", why="there is no GPU here"),
    )
    directory = experiment(tmp_path / "quick", *entries, question="Is it fast?")
    write_record(directory / "sizes.json", record("time"))
    write_log(directory / "sums.jsonl", stream("accum"))
    found = read_sources([str(directory)])
    assert (found.title, found.question, found.missing_runs) == ("Quick", "Is it fast?", ())
    assert [(run.name, run.title, run.question, run.note) for run in found.runs] == [
        ("sums", "Sums", "What is lost?", ""),
        ("sizes", "Sizes", "", "simulated: there is no GPU here"),
    ]


def test_runs_of_an_experiment_that_are_not_there_are_named_with_the_reason(tmp_path: Path) -> None:
    entries = (
        entry("sizes", options={"size": "small"}),
        entry("gpu", here="left out", why="there is no GPU here", options={"device": "cuda"}),
        entry("broken", failure="sysbench time: --size smal is not a size", options={"size": "smal"}),
        entry("later", "accum", options={"experiment": "norm"}),
    )
    directory = experiment(tmp_path / "quick", *entries)
    write_record(directory / "sizes.json", record("time"))
    assert read_sources([str(directory)]).missing_runs == (
        "gpu: left out: there is no GPU here — sysbench time --device cuda",
        "broken: failed: sysbench time: --size smal is not a size — sysbench time --size smal",
        "later: missing — sysbench accum norm",
    )


def test_of_an_experiment_whose_runs_are_named_one_by_one_nothing_is_missing(tmp_path: Path) -> None:
    directory = experiment(tmp_path / "quick", entry("sizes"), entry("sums", "accum"), entry("later"))
    sizes = write_record(directory / "sizes.json", record("time"))
    write_record(directory / "sums.json", record("accum"))
    assert read_sources([str(sizes)]).missing_runs == ()
    assert read_sources([str(directory)]).missing_runs == ("later: missing — sysbench time",)


def test_runs_from_elsewhere_come_after_the_experiment_and_leave_it_without_its_title(tmp_path: Path) -> None:
    directory = experiment(tmp_path / "quick", entry("sums", "accum"))
    write_record(directory / "sums.json", record("accum"))
    other = write_record(tmp_path / "other.json", record("time"))
    found = read_sources([str(other), str(directory)])
    assert [run.name for run in found.runs] == ["sums", "time"]
    assert found.title == ""


def test_one_run_of_an_experiment_by_itself_keeps_its_title(tmp_path: Path) -> None:
    directory = experiment(tmp_path / "quick", entry("sums", "accum"), entry("later"))
    path = write_record(directory / "sums.json", record("accum"))
    (run,) = read_sources([str(path)]).runs
    assert (run.name, run.title) == ("sums", "Sums")


def test_pictures_that_a_run_drew_itself_are_in_the_report_as_far_as_they_are_whole(tmp_path: Path) -> None:
    files = ("runs-train.png", "torn.png", "gone.png", "trace.json", "../outside.png")
    directory = experiment(tmp_path / "quick", entry("runs", "memory", files=files))
    write_record(directory / "runs.json", record("memory"))
    figure = Figure(figsize=(3, 2))
    figure.add_subplot().plot([1, 2])
    for name in files[:-1]:
        (directory / name).write_bytes(picture_file.content(lambda: figure, "png"))
    (tmp_path / "outside.png").write_bytes((directory / "torn.png").read_bytes())
    (directory / "torn.png").write_bytes((directory / "torn.png").read_bytes()[:-200])
    (directory / "gone.png").unlink()
    (run,) = read_sources([str(directory)]).runs
    (picture,) = saved_pictures(run)
    assert (picture.name, picture.origin) == ("train", "simulated")
    assert picture.caption == "Memory over time by category: train."
    assert picture_file.content(picture.draw, "png")[:4] == b"\x89PNG"
    (section,) = assemble_document([run]).sections
    assert section.pictures[-1].name == "runs-train"


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r" contains no runs"):
        read_sources([str(tmp_path)])


def test_a_record_edited_by_hand_is_refused_with_its_file_and_field(tmp_path: Path) -> None:
    path = write_record(tmp_path / "run.json", record("time"))
    path.write_text(path.read_text().replace('"median_s": ', '"median_s": "quick", "was": ', 1))
    with pytest.raises(LogError, match=r"run\.json is not a record in sysbench's format: cells\.0\.phases\.\w+\.\w+"):
        read_sources([str(path)])


@pytest.mark.parametrize("kind", runnable())
def test_the_command_that_repeats_a_run_makes_the_same_cells(kind: Kind) -> None:
    spec = spec_of(record(kind).spec)
    words = shlex.split(command_line(spec))
    assert words[:2] == ["sysbench", kind]
    given = _parsed(app.application(words[1:]), words[1:])
    assert [cell.key for cell in type(spec)(**given).cells()] == [cell.key for cell in spec.cells()]


def test_the_command_that_repeats_a_run_of_a_model_of_ones_own_has_its_arguments_and_inputs() -> None:
    given = [
        "--model", "toy.py:Net", "--model-arg", "width=32,64", "--model-arg", "bias=True", "--input",
        "tokens=int64[B,T]<vocab", "--input", "float32[B,3]", "--device", "cpu",
    ]  # fmt: skip
    spec = TimeSpec(**_parsed(app.application(["time", *given]), ["time", *given]))
    words = shlex.split(command_line(spec))[1:]
    assert {*given} <= {*words}
    assert TimeSpec(**_parsed(app.application(words), words)) == spec


def test_a_command_line_leaves_out_what_is_usual_and_quotes_what_is_not() -> None:
    assert command_line(TimeSpec()) == "sysbench time"
    assert command_line(TimeSpec(until=0.01, device=("cpu",))) == "sysbench time --device cpu --until 0.01"
    assert fixtures_timing.record(TimeSpec()).kind == "time"


def _parsed(application: Any, words: list[str]) -> dict[str, Any]:
    """What the command line makes of these words, by field."""
    group = typer.main.get_command(application)
    command = group.commands[words[0]]  # type: ignore[attr-defined]
    parsed = command.make_context(words[0], words[1:]).params
    return {name: value for name, value in parsed.items() if value not in (None, False, ())}


def with_ceiling(started_at_s: float, flops_per_s: float, **fields: Any) -> list[Event]:
    """The events of a run on two cores, with this ceiling in place of its own."""
    log = fixtures_timing.events(TimeSpec(size="small", ctx=128), fixtures_timing.TWO_CORES)
    changed = {"matmul_flops_per_s": flops_per_s, **fields}
    moved_s = started_at_s - log[0].at_s
    return [
        event.model_copy(
            update={"at_s": event.at_s + moved_s} | (changed if isinstance(event, CeilingMeasured) else {})
        )
        for event in log
    ]


def test_a_report_compares_all_runs_on_a_device_with_one_ceiling(tmp_path: Path) -> None:
    """Of 128, 141, a disturbed 500 and 2.14 GFLOP/s: the best that was not disturbed, with its date where not own."""
    day_s = 24 * 3600.0
    ceilings = ((128e9, False), (141e9, False), (500e9, True), (2.14e9, True))
    for number, (flops_per_s, disturbed) in enumerate(ceilings):
        log = with_ceiling(1_795_182_600.0 + number * day_s, flops_per_s, disturbed=disturbed)
        (tmp_path / f"{number}-time.jsonl").write_bytes(b"".join(encode(event) + b"\n" for event in log))
    records = [run.record for run in read_sources([str(tmp_path)]).runs]
    found = [(each.matmul_flops_per_s, each.disturbed) for record in records for each in record.ceilings]
    assert found == [(141e9, False)] * 4
    for each in records:
        rates = each.cells[0].rates
        assert rates.ceiling_share == rates.flops_per_s / 141e9
    said = ["141.0 GFLOP/s in fp32 on cpu (2026-11-21)" in str(SUMMARY(record)) for record in records]
    assert said == [True, False, True, True], "the second run has measured it itself"
