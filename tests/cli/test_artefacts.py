"""Traces, snapshots and what `--from FILE --json` wrote of them go into `compare` and `report` like runs."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import sysbench
from sysbench.commands.profile import profiles
from tests.cli.running import answered as command_line

FIXTURES = Path(__file__).parents[1] / "fixtures" / "runs"


def trace(path: Path, durations_us: dict[str, list[float]]) -> Path:
    """A Kineto trace of kernels that follow each other, in two steps of equal length."""
    events: list[dict[str, object]] = []
    place_us = 0.0
    for step in range(2):
        begin_us = place_us
        for name, durations in durations_us.items():
            for duration in durations:
                events.append(
                    {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": place_us, "dur": duration}
                )
                place_us += duration + 1
        events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{step}",
                "pid": 1,
                "tid": 1,
                "ts": begin_us,
                "dur": place_us - begin_us,
            }
        )
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, Path]:
    """B multiplies in half the time, has no reduction any more, and copies instead."""
    a = trace(tmp_path / "a.json", {"sm80_xmma_gemm_f32f32": [100, 100], "reduce_kernel<512>": [30]})
    b = trace(tmp_path / "b.json", {"sm80_xmma_gemm_f32f32": [50, 50], "Memcpy DtoD (Device -> Device)": [8]})
    return a, b


def compared(*arguments: str | Path) -> dict[str, list[dict[str, object]]]:
    found = command_line("compare", *map(str, arguments), "--json", "-")
    assert found.code == 0, found.err
    return {table["name"]: table["rows"] for table in json.loads(found.out)["tables"]}


def test_two_traces_differ_by_class_and_by_kernel_per_step(traces: tuple[Path, Path]) -> None:
    found = compared(*traces)
    classes = {row["class"]: (row["a_s"], row["b_s"], row["difference_s"]) for row in found["classes"]}
    assert classes["matmul"] == pytest.approx((200e-6, 100e-6, -100e-6))
    assert classes["reduction"] == pytest.approx((30e-6, 0, -30e-6))
    assert classes["all"] == pytest.approx((230e-6, 108e-6, -122e-6))
    kernels = [row["kernel"] for row in found["kernels"]]
    assert kernels[0] == "sm80_xmma_gemm_f32f32", "what differs most comes first"
    ratio = next(row["ratio"] for row in found["classes"] if row["class"] == "matmul")
    assert ratio == pytest.approx(0.5)
    calls = {row["class"]: (row["a_calls"], row["b_calls"]) for row in found["classes"]}
    assert calls == {"matmul": (2, 2), "reduction": (1, 0), "copy": (0, 1), "all": (3, 3)}
    assert [row["a_calls"] for row in found["kernels"] if row["kernel"] == kernels[0]] == [2]
    shown = command_line("compare", *map(str, traces)).out
    assert "one sample per side, so there are no intervals" in shown


def test_quiet_is_one_line_for_traces_and_snapshots(
    traces: tuple[Path, Path], snapshots: tuple[Path, Path], tmp_path: Path
) -> None:
    saved = tmp_path / "saved.json"
    shown = command_line("compare", *map(str, traces), "-q", "--json", str(saved)).out
    ratio = "Kernels take 0.47× as long per step in B as in A"
    assert shown == f"{ratio} (230.0 µs in A, 108.0 µs in B); one sample per side.\n"
    assert {table["name"] for table in json.loads(saved.read_text())["tables"]} == {"classes", "kernels"}
    shown = command_line("compare", *map(str, snapshots), "-q").out
    assert shown.startswith("Memory (measured in A, simulated in B): the peak is 416.07× as large in B as in A")
    assert len(shown.splitlines()) == 1
    assert len(command_line("compare", *map(str, traces), "-q", "--tables", "classes").out.splitlines()) > 1


def test_traces_of_a_cpu_have_operators(traces: tuple[Path, Path]) -> None:
    cpu = str(FIXTURES / "trace-cpu.json.gz")
    shown = command_line("compare", cpu, cpu).out
    assert "time by class of operator" in shown
    assert "time by operator" in shown
    assert "kernel" not in shown
    assert "Operators take 1.000× as long" in command_line("compare", cpu, cpu, "-q").out
    assert "operator" not in command_line("compare", *map(str, traces)).out
    assert "time by kernel or operator" in command_line("compare", cpu, str(traces[0])).out


@pytest.mark.parametrize("name", ["written.json", "written"])
def test_what_from_json_wrote_of_a_trace_stands_for_the_trace(
    traces: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    a, b = traces
    written = tmp_path / name
    assert command_line("profile", "--from", str(a), "--json", str(written)).code == 0
    assert compared(written, b) == compared(a, b)


@pytest.fixture
def snapshots(tmp_path: Path) -> tuple[Path, Path]:
    found = []
    for name in ("snapshot-cpu-train", "snapshot-simulated"):
        path = tmp_path / f"{name}.pickle"
        path.write_bytes(gzip.decompress((FIXTURES / f"{name}.pickle.gz").read_bytes()))
        found.append(path)
    return found[0], found[1]


def test_two_snapshots_differ_by_category_and_the_sums_are_their_peaks(snapshots: tuple[Path, Path]) -> None:
    rows = {row["category"]: row for row in compared(*snapshots)["categories"]}
    peaks = [sysbench.read_snapshot(path).timeline.peak.allocated_bytes for path in snapshots]
    assert [rows["all"]["a_bytes"], rows["all"]["b_bytes"]] == peaks
    parameters = rows["parameters"]
    for side, path in zip("ab", snapshots, strict=True):
        own = {row["category"]: row["size_bytes"] for row in sysbench.read_snapshot(path).rows("categories")}
        assert parameters[f"{side}_bytes"] == own["parameters"]


def test_of_two_snapshots_every_allocation_counts_and_lines_sum_to_the_peaks(snapshots: tuple[Path, Path]) -> None:
    rows = compared(*snapshots)["largest"]
    peaks = [sysbench.read_snapshot(path).timeline.peak.allocated_bytes for path in snapshots]
    total = next(row for row in rows if row["category"] == "all")
    assert [total["a_bytes"], total["b_bytes"]] == peaks


def test_a_simulated_snapshot_is_marked_in_every_format(snapshots: tuple[Path, Path]) -> None:
    a, b = map(str, snapshots)
    for form in ("terminal", "markdown", "latex"):
        shown = command_line("compare", a, b, "--format", form).out
        assert f"B {Path(b).name} (simulated)" in shown, form
    assert "simulated B (MiB)" in command_line("compare", a, b, "--format", "markdown").out
    for rows in compared(a, b).values():
        assert {(row["a_source"], row["b_source"]) for row in rows} == {("measured", "simulated")}
    lines = command_line("compare", a, b, "--format", "csv").out.splitlines()
    assert all("measured,simulated" in line for line in lines[1:])
    assert "simulated" not in command_line("compare", a, a, "--json", "-").out


@pytest.mark.parametrize(
    ("record", "kind"),
    [("time-a100", "time"), ("memory-a100", "memory"), ("profile-train", "profile"), ("attention-a100", "attention")],
)
def test_a_record_without_an_ending_is_read_by_every_command(record: str, kind: str, tmp_path: Path) -> None:
    named, unnamed = tmp_path / "r.json", tmp_path / "saved"
    assert command_line(kind, "--from", str(FIXTURES / f"{record}.jsonl"), "--json", str(named)).code == 0
    unnamed.write_bytes(named.read_bytes())
    assert command_line(kind, "--from", str(unnamed)).out == command_line(kind, "--from", str(named)).out
    assert command_line("report", str(unnamed)).code == 0
    assert "the same" in command_line("compare", str(unnamed), str(unnamed)).err
    assert command_line("history", str(unnamed)).code == 0


def test_a_report_has_a_section_for_each(
    traces: tuple[Path, Path], snapshots: tuple[Path, Path], tmp_path: Path
) -> None:
    run, out = FIXTURES / "accum-sums.jsonl", tmp_path / "report.md"
    found = command_line("report", str(run), str(traces[0]), str(snapshots[0]), "-o", str(out))
    assert found.code == 0, found.err
    text = out.read_text()
    assert "## Trace a.json" in text
    assert "## Snapshot snapshot-cpu-train.pickle" in text
    assert "sm80_xmma_gemm_f32f32" in text.replace("\\", "")


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (("trace", "snapshot"), "is a trace and"),
        (("trace", "run"), "compare it with another trace, not with a run"),
        (("run", "snapshot"), "compare it with another snapshot, not with a run"),
        (("trace", "trace", "--gate", "3%"), "--gate applies to runs; a trace is a single sample and has no verdict"),
        (("trace", "trace", "--export", "bmf"), "--export applies to runs"),
        (("trace", "trace", "--tables", "clases"), "Did you mean classes?"),
        (("trace", "damaged"), "is not in sysbench's format: summaries"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    pair: tuple[str, ...], said: str, traces: tuple[Path, Path], snapshots: tuple[Path, Path], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text(
        '{\n "schema_version": 1,\n "kind": "traces",\n "sysbench_version": "0.1.0",\n "summaries": [3]\n}'
    )
    meant = {"trace": traces[0], "snapshot": snapshots[0], "run": FIXTURES / "time-a100.jsonl", "damaged": damaged}
    found = command_line("compare", *(str(meant.get(each, each)) for each in pair))
    assert found.code == 2
    assert said in found.err
    assert len(found.err.splitlines()) == 1


def test_without_steps_nothing_is_per_step_and_a_pattern_names_them(tmp_path: Path) -> None:
    path = trace(tmp_path / "a.json", {"sm80_xmma_gemm_f32f32": [100, 100], "reduce_kernel<512>": [30]})
    path.write_text(path.read_text().replace("ProfilerStep#", "round-"))
    without = command_line("profile", "--from", str(path))
    assert without.code == 0, without.err
    assert "no steps marked (--step-pattern): the whole trace counts as one" in without.out
    assert not re.search("per step|full step|of a step", without.out)
    told = command_line("profile", "--from", str(path), "--step-pattern", r"round-\d+")
    assert "2 steps profiled" in told.out
    assert "per step" in told.out
    assert "round" not in told.out
    wrong = command_line("profile", "--from", str(path), "--step-pattern", "round-[")
    assert (wrong.code, "--step-pattern round-[ is not a regular expression" in wrong.err) == (2, True)


def test_a_pattern_of_steps_that_matches_nothing_or_never_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "TIME_LIMIT_S", 0.5)
    path = trace(tmp_path / "a.json", {"sm80_xmma_gemm_f32f32": [100, 100], "reduce_kernel<512>": [30]})
    path.write_text(path.read_text().replace("ProfilerStep#", f"{'a' * 40}-"))
    none = command_line("profile", "--from", str(path), "--step-pattern", r"round-\d+")
    assert (none.code, r"--step-pattern round-\d+ matches no range of a.json" in none.err) == (2, True)
    endless = command_line("profile", "--from", str(path), "--step-pattern", "(a+)+$")
    assert (endless.code, "--step-pattern (a+)+$ takes longer than" in endless.err) == (2, True)
