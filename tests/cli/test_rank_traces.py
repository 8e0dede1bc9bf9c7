"""`sysbench profile --from DIR` on traces of several ranks, as a user has them."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from tests.cli.running import answered
from tests.trace.rank_traces import Bucket, Run

FIXTURES = Path(__file__).parents[1] / "fixtures" / "ranks"


@pytest.fixture
def run() -> Run:
    """Three ranks, of which rank 2 always computes for 40 ms longer."""
    made = Run(3)
    for _ in range(3):
        made.step([Bucket({0: 100, 1: 120, 2: 40_000}, 50, elements=(1 << 20, 1 << 20))])
    return made


def test_a_directory_of_ranks_shows_communication_collectives_and_the_late_rank() -> None:
    ran = answered("profile", f"--from={FIXTURES / 'ddp'}", COLUMNS="120")
    assert ran.code == 0, ran.err
    for title in ("communication of each rank", "collectives by kind, message size and group size"):
        assert title in ran.out
    assert "Rank 1 is late: 100% of all waiting time is spent on it" in ran.out
    assert "it is idle longer" in " ".join(ran.out.split())


def test_tables_of_ranks_are_csv_with_the_numbers_that_were_made(run: Run, tmp_path: Path) -> None:
    run.write(tmp_path)
    ran = answered("profile", f"--from={tmp_path}", "--tables=collectives", "--format=csv")
    assert ran.code == 0, ran.err
    (row,) = csv.DictReader(ran.out.splitlines())
    assert (row["collective"], row["group_size"]) == ("all_reduce", "3")
    assert float(row["transfer_s"]) == pytest.approx(50e-6)
    assert float(row["waiting_s"]) == pytest.approx((39_900 + 39_880) / 3 * 1e-6)
    assert float(row["algbw_bytes_per_s"]) == pytest.approx((4 << 20) / 50e-6)
    assert float(row["busbw_bytes_per_s"]) == pytest.approx((4 << 20) / 50e-6 * 4 / 3)


def test_the_json_of_ranks_is_shown_again_by_report(run: Run, tmp_path: Path) -> None:
    traces, saved = tmp_path / "traces", tmp_path / "saved.json"
    traces.mkdir()
    run.write(traces)
    assert answered("profile", f"--from={traces}", f"--json={saved}", "--quiet").code == 0
    assert json.loads(saved.read_text())["ranks"]["straggler"]["rank"] == 2
    ran = answered("report", str(saved), f"--output={tmp_path / 'report.md'}")
    assert ran.code == 0, ran.err
    assert "Rank 2 is late" in (tmp_path / "report.md").read_text()


def test_ranks_come_from_file_names_where_traces_do_not_contain_them(run: Run, tmp_path: Path) -> None:
    for path in run.write(tmp_path, name="host7_{rank}_x.json"):
        content = json.loads(path.read_text())
        del content["distributedInfo"]
        path.write_text(json.dumps(content))
    plain = answered("profile", f"--from={tmp_path}", COLUMNS="120")
    assert "communication of each rank" not in plain.out
    for path in [*tmp_path.iterdir()]:
        path.rename(tmp_path / path.name.replace("host7_", "rank"))
    ran = answered("profile", f"--from={tmp_path}", COLUMNS="120")
    assert ran.code == 0, ran.err
    assert "Rank 2 is late" in ran.out


def test_one_trace_of_a_run_has_communication_and_no_waiting(run: Run, tmp_path: Path) -> None:
    run.write(tmp_path)
    ran = answered("profile", f"--from={tmp_path / 'trace-1.json'}", COLUMNS="120")
    assert ran.code == 0, ran.err
    assert "communication of each rank" in ran.out
    assert "busBW" not in ran.out, "a transfer cannot be told from waiting"


def test_one_rank_twice_in_a_directory_is_refused_and_side_by_side_as_files(run: Run, tmp_path: Path) -> None:
    run.write(tmp_path)
    shutil.copy(tmp_path / "trace-1.json", tmp_path / "trace-1b.json")
    ran = answered("profile", f"--from={tmp_path}")
    assert (ran.code, ran.out) == (2, "")
    assert f"{tmp_path} has two traces of rank 1, trace-1.json and trace-1b.json: keep one per rank" in ran.complaint
    files = ",".join(map(str, sorted(tmp_path.iterdir())))
    ran = answered("profile", f"--from={files}", COLUMNS="160")
    assert ran.code == 0, ran.err
    assert "trace-1b.json" in ran.out


def test_ranks_of_runs_of_different_sizes_are_refused(run: Run, tmp_path: Path) -> None:
    run.write(tmp_path, ranks=(0, 1))
    other = Run(8)
    other.step([Bucket({}, 50)])
    other.write(tmp_path, ranks=(7,))
    ran = answered("profile", f"--from={tmp_path}")
    assert (ran.code, ran.out) == (2, "")
    assert "the traces come from different runs: trace-1.json of 3 and trace-7.json of 8 ranks" in ran.complaint


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{}", "notes.json is not a trace of torch.profiler: it has no traceEvents"),
        ("ranks: 3", "notes.json is not a trace: it is neither torch.profiler JSON nor an Nsight Systems export"),
    ],
)
def test_a_file_that_is_no_trace_among_them_is_named(run: Run, tmp_path: Path, content: str, complaint: str) -> None:
    run.write(tmp_path)
    (tmp_path / "notes.json").write_text(content)
    ran = answered("profile", f"--from={tmp_path}")
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.complaint


def test_impossible_times_are_said_and_the_rest_is_shown(run: Run, tmp_path: Path) -> None:
    for path in run.write(tmp_path):
        content = json.loads(path.read_text())
        content["traceEvents"][0]["dur"] = 4e15
        for event in content["traceEvents"]:
            if "Collective name" in event["args"]:
                event["dur"] = 4e15
        path.write_text(json.dumps(content))
    ran = answered("profile", f"--from={tmp_path}", COLUMNS="120")
    assert ran.code == 0, ran.err
    assert ran.out.count("events with impossible times were omitted") == 3


def test_a_rank_that_is_missing_is_said(run: Run, tmp_path: Path) -> None:
    run.write(tmp_path, ranks=(0, 2))
    ran = answered("profile", f"--from={tmp_path}", COLUMNS="200")
    assert ran.code == 0, ran.err
    assert "traces missing of 1 of 3 ranks (1)" in ran.out
    assert "is late" not in ran.out
