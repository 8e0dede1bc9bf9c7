"""The best ceiling of a device that any run has seen, and what must not become one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sysbench.commands.time.fold import fold
from sysbench.commands.time.spec import TimeSpec
from sysbench.commands.time.tables import SUMMARY
from sysbench.engine.sensors import ceilings
from sysbench.log.events import CeilingMeasured, DeviceInfo
from tests import fixtures_timing as runs
from tests.engine.fakes import CPU, ScriptedLauncher, carry_out, of_kind, spec_of

HERE = DeviceInfo(name="Made-up CPU", type="cpu")


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def measured(gflops_per_s: float, **fields: Any) -> CeilingMeasured:
    return CeilingMeasured(
        **{
            "at_s": 1_800_000_000.0,
            "device": "cpu",
            "precision": "fp32",
            "matmul_flops_per_s": round(gflops_per_s * 1e9),
            "matmul_size": 2048,
            **fields,
        }
    )


def used(ceiling: CeilingMeasured, device: DeviceInfo = HERE, torch: str = "2.15.0", threads: int = 2) -> float:
    return ceilings.best(ceiling, device, torch, threads).matmul_flops_per_s / 1e9


def test_the_best_that_was_seen_counts_whatever_is_measured_later() -> None:
    assert [used(measured(each)) for each in (128, 2.14, 141, 119)] == [128, 128, 141, 141]
    again = ceilings.best(measured(119, at_s=1_900_000_000.0), HERE, "2.15.0", 2)
    assert (again.seen_at_s, again.flops_per_s_now, again.at_s) == (1_800_000_000.0, 119e9, 1_900_000_000.0)


def test_a_disturbed_ceiling_is_neither_used_nor_kept() -> None:
    alone = ceilings.best(measured(2.14, disturbed=True), HERE, "2.15.0", 2)
    assert (alone.matmul_flops_per_s, alone.disturbed) == (2.14e9, True)
    assert used(measured(1.5)) == 1.5, "2.14 was not kept"
    later = ceilings.best(measured(200, disturbed=True), HERE, "2.15.0", 2)
    assert (later.matmul_flops_per_s, later.disturbed) == (1.5e9, False)


def test_each_device_torch_precision_and_number_of_threads_has_its_own() -> None:
    used(measured(100))
    assert used(measured(50), torch="2.16.0") == 50
    assert used(measured(50), threads=4) == 50
    assert used(measured(50), device=HERE.model_copy(update={"name": "Another CPU"})) == 50
    assert used(measured(50, precision="bf16")) == 50
    assert used(measured(50, threads=1)) == 50
    assert used(measured(50, threads=2), threads=8) == 100, "two threads, chosen or torch's own"


def test_a_file_that_cannot_be_read_or_written_stops_nothing(tmp_path: Path) -> None:
    used(measured(100))
    ceilings.file().write_text("[{")
    assert used(measured(50)) == 50
    assert used(measured(40)) == 50, "it was replaced"
    ceilings.file().unlink()
    ceilings.file().mkdir()
    assert used(measured(30)) == 30


def test_a_run_takes_the_best_and_its_log_has_all_of_it(tmp_path: Path) -> None:
    used(measured(2000), torch="2.13.0", threads=1)  # the scripted worker measures 1 TFLOP/s with this torch
    events = carry_out(spec_of([16]), tmp_path, ScriptedLauncher(devices=[CPU]))
    (ceiling,) = of_kind(events, CeilingMeasured)
    assert (ceiling.matmul_flops_per_s, ceiling.flops_per_s_now) == (2e12, 1e12)
    (cell,) = (record := fold(events)).cells
    assert cell.rates is not None
    assert cell.rates.ceiling_flops_per_s == 2e12
    assert [each.seen_at for each in record.ceilings] == ["2027-01-15T08:00:00Z"]


def test_no_rate_is_compared_with_a_disturbed_ceiling_and_the_table_says_why() -> None:
    log = [
        event.model_copy(update={"disturbed": True}) if isinstance(event, CeilingMeasured) else event
        for event in runs.events(TimeSpec(size="small", ctx=128), runs.TWO_CORES)
    ]
    record = fold(log)
    rates = record.cells[0].rates
    assert rates is not None
    assert (rates.ceiling_flops_per_s, rates.ceiling_share) == (None, None)
    assert "other processes disturbed a large matrix product, so it is no ceiling" in str(SUMMARY(record))
