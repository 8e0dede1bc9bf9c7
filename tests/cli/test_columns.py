"""--columns, on a finished run: no torch, and no waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.events import encode
from sysbench.specs.time import TimeSpec
from tests import fixtures_timing
from tests.cli.running import QUICK, answered, only, sysbench


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    spec = TimeSpec(size="small", ctx=512, precision="bf16", steps=40)  # type: ignore[arg-type]
    path.write_bytes(b"".join(encode(event) + b"\n" for event in fixtures_timing.events(spec)))
    return path


def test_columns_that_were_asked_for_are_shown(log: Path) -> None:
    ran = answered("time", "--from", str(log), "--columns", "step,mfu,energy", COLUMNS="100")
    assert ran.code == 0, ran.err
    assert "MFU" in ran.out
    assert "mJ/token" in ran.out
    assert "backward" not in ran.out.split("MFU:")[0].replace("train", "")


def test_a_wrong_column_is_answered_with_what_there_is_and_the_tables_are_shown_all_the_same(log: Path) -> None:
    ran = answered("time", "--from", str(log), "--columns", "+enrgy", COLUMNS="100")
    assert ran.code == 2
    assert ran.complaint.startswith(
        "sysbench time: --columns enrgy is not a column of these tables. Did you mean energy? (energy, "
    )
    assert "mean ± standard deviation" in ran.out


def test_a_wrong_column_after_a_run_loses_nothing_of_it(tmp_path: Path) -> None:
    ran = sysbench("time", *QUICK, "--columns", "stp", "--quiet", "--out", str(tmp_path))
    assert ran.code == 2
    assert "mean ± standard deviation" in ran.out
    again = answered("time", "--from", str(only(tmp_path, "*.json")), "--columns", "forward")
    assert again.code == 0, again.err
