"""Memory on a real GPU: the simulation held against it, and what a measured run leaves."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from sysbench.snapshot.categories import from_snapshot
from sysbench.snapshot.snapshot import read
from tests.cli.running import record_in, sysbench
from tests.gpu.memory_accuracy import Pair, jobs, pairs, print_table, quantile

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    configurations = pairs(tmp_path_factory.mktemp("accuracy"), jobs(), at_once=4)
    print_table(configurations)
    return configurations


@pytest.mark.slow
def test_the_simulation_is_held_against_forty_configurations(found: list[Pair]) -> None:
    assert sum(pair.both_known for pair in found) >= 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peak", "median", "p95"), [("peak_allocated_bytes", 0.01, 0.03), ("peak_reserved_bytes", 0.02, 0.05)]
)
def test_simulated_peaks_are_near_measured_ones(found: list[Pair], peak: str, median: float, p95: float) -> None:
    errors = [pair.error(peak) for pair in found if pair.both_known]
    assert statistics.median(errors) <= median
    assert quantile(errors, 0.95) <= p95


@pytest.mark.slow
def test_nothing_is_said_to_fit_that_does_not(found: list[Pair]) -> None:
    assert not [pair.name for pair in found if pair.promised_too_much]


def test_a_measured_snapshot_holds_the_peak_and_names_categories(tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    words = ("--size=small", "--ctx=128", "--mode=train", "--device=cuda", f"--snapshot={path}", f"--out={tmp_path}")
    ran = sysbench("memory", *words)
    assert ran.code == 0, ran.err
    (cell,) = record_in(tmp_path)["cells"]
    timeline = from_snapshot(read(path))
    assert timeline.source == "measured"
    assert not timeline.inferred
    # A trace has sizes as asked for; blocks that were not split are larger by less than a MiB each.
    assert timeline.peak.allocated_bytes <= cell["peak_allocated_bytes"] <= 1.05 * timeline.peak.allocated_bytes
    assert timeline.categories_at(timeline.peak.state)["parameters"] == pytest.approx(
        4 * cell["model"]["parameters"], rel=0.01
    )
    assert {phase.name for phase in timeline.phases} == {"zero_grad", "forward", "loss", "backward", "optimizer"}


@pytest.mark.alone
def test_a_cell_that_runs_out_of_memory_leaves_its_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    words = ("--size=10b", "--ctx=1024", "--batch=64", "--mode=train", "--device=cuda", "--force")
    ran = sysbench("memory", *words, f"--snapshot={path}", f"--out={tmp_path}")
    (cell,) = record_in(tmp_path)["cells"]
    assert (ran.code, cell["outcome"]) == (0, "oom"), ran.err
    assert cell["verdict"]["failed_phase"] in ("build", "forward", "loss", "backward", "optimizer")
    assert from_snapshot(read(path)).peak.allocated_bytes > 0


@pytest.mark.alone
def test_the_next_cell_after_an_oom_has_the_peak_of_a_clean_run(tmp_path: Path) -> None:
    shared = ("--size=small", "--mode=forward", "--device=cuda", "--force")
    both = sysbench("memory", *shared, "--ctx=65536,128", f"--out={tmp_path / 'both'}")
    alone = sysbench("memory", *shared, "--ctx=128", f"--out={tmp_path / 'alone'}")
    assert alone.code == 0, both.err + alone.err
    first, second = record_in(tmp_path / "both")["cells"]
    (clean,) = record_in(tmp_path / "alone")["cells"]
    assert first["outcome"] == "oom"
    assert second["peak_allocated_bytes"] == clean["peak_allocated_bytes"]
