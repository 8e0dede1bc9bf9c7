from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from sysbench import load
from sysbench.commands.profile.spec import ProfileSpec
from sysbench.snapshot.categories import from_snapshot
from sysbench.snapshot.snapshot import read
from tests.cli.running import MINUTE, Ran, answered, only, ran_once

RANKS = ("--ranks", "1,2", "--strategy", "ddp,fsdp2,tp")
STEPS = ("--ctx", "16", "--steps", "6", "--warmup", "1", "--device", "cpu", "--mode", "forward-backward")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    return ran_once(tmp_path_factory, "ranks", "time", *MINUTE, *STEPS, *RANKS, "--json", "record.json", COLUMNS="200")


def test_two_ranks_are_measured_with_every_strategy_and_every_rank_is_in_the_record(ran: tuple[Ran, Path]) -> None:
    assert ran[0].code == 0, ran[0].err
    cells = json.loads((ran[1] / "record.json").read_text())["cells"]
    assert [(cell["axes"].get("ranks"), cell["axes"].get("strategy")) for cell in cells] == [
        (None, None),
        (2, "ddp"),
        (2, "fsdp2"),
        (2, "tp"),
    ]
    assert all(cell["outcome"] == "ok" for cell in cells)
    assert "ranks" not in cells[0]
    for cell in cells[1:]:
        assert [each["rank"] for each in cell["ranks"]] == [0, 1]
        of_ranks = [each["phases"]["step"]["wall"]["samples_s"] for each in cell["ranks"]]
        assert cell["phases"]["step"]["wall"]["samples_s"] == [max(step) for step in zip(*of_ranks, strict=True)]
        for each in cell["ranks"]:
            assert list(each["phases"]) == ["zero_grad", "forward", "loss", "backward", "step"]
            assert each["host_rss_peak_bytes"] > 2**26


def test_data_parallel_ranks_have_their_own_batches_and_the_throughput_is_that_of_all(ran: tuple[Ran, Path]) -> None:
    alone, ddp, fsdp2, tp = load(ran[1] / "record.json").cells
    for cell, batches in ((alone, 1), (ddp, 2), (fsdp2, 2), (tp, 1)):
        assert cell.rates.tokens_per_s == pytest.approx(batches * 16 / cell.phases["step"].wall.mean_s)
    losses = [[each.loss for each in cell.ranks] for cell in (ddp, fsdp2, tp)]
    assert losses[0][0] == alone.loss
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[0][0] != losses[0][1]
    assert losses[2] == pytest.approx([alone.loss] * 2, rel=1e-5)


def test_the_tables_show_the_slowest_rank_the_median_rank_and_every_rank(ran: tuple[Ran, Path]) -> None:
    summary, ranks, *_ = ran[0].out.split("\n\n")[1:]
    for title in ("median rank", "slowest rank", "rank spread", "throughput"):
        assert title in summary
    rows = [line.split()[:3] for line in ranks.splitlines() if line.split()[:1] == ["2"]]
    assert rows == [["2", strategy, rank] for strategy in ("ddp", "fsdp2", "tp") for rank in "01"]


def test_a_record_of_ranks_is_shown_again_and_compared_by_its_slowest_ranks(ran: tuple[Ran, Path]) -> None:
    record = str(ran[1] / "record.json")
    shown = answered("time", "--from", record, "--tables", "ranks", COLUMNS="200")
    assert shown.code == 0, shown.err
    assert sum(line.split()[:2] == ["2", "fsdp2"] for line in shown.out.splitlines()) == 2
    compared = answered("compare", record, record)
    assert compared.code == 0, compared.err


def test_a_finished_run_of_ranks_is_continued_without_measuring(ran: tuple[Ran, Path]) -> None:
    (log,) = (ran[1] / "runs").glob("*.jsonl")
    again = answered("time", *MINUTE, *STEPS, *RANKS, "--resume", str(log), cwd=ran[1])
    assert again.code == 0, again.err
    assert "fsdp2" in again.out


def test_the_code_of_the_page_about_ranks_runs(
    ran: tuple[Ran, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ranks.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(ran[1])
    exec(compile(block, "docs/ranks.md", "exec"), {})
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        [strategy, rank] for strategy in ("ddp", "fsdp2", "tp") for rank in "01"
    ]


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """The memory of two ranks, of which rank 1 keeps a million numbers more."""
    code = """
import torch
import torch.distributed as dist
from torch import nn

class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)

    def forward(self, ids):
        self.kept = torch.zeros(dist.get_rank() * 1_000_000)
        return self.head(self.embedding(ids))
"""
    model = tmp_path_factory.mktemp("model") / "uneven.py"
    model.write_text(code)
    words = (f"--model={model}:Uneven", "--ctx=16", "--batch=1", "--ranks=2", "--strategy=ddp", "--device=cpu")
    files = ("--json=record.json", "--snapshot=s.pickle", "--page=p.html")
    mode = "--mode=forward-backward"
    return ran_once(tmp_path_factory, "memory-of-real-ranks", "memory", *words, mode, *files, COLUMNS="200")


def test_the_memory_of_every_rank_is_measured_and_the_cell_is_that_of_the_fullest(remembered: tuple[Ran, Path]) -> None:
    assert remembered[0].code == 0, remembered[0].err
    (cell,) = load(remembered[1] / "record.json").cells
    first, second = cell.ranks
    assert cell.fullest_rank == second
    assert cell.peak_allocated_bytes == second.peak_allocated_bytes > first.peak_allocated_bytes + 3_999_000
    parameters = 50 * 32 + 32 * 50 + 50
    for rank in cell.ranks:
        assert sum(rank.by_category.values()) == rank.peak_allocated_bytes
        backward = rank.peaks_by_phase["backward"].by_category
        for category in ("parameters", "gradients", "communication"):  # DDP's buckets are as large as the gradients
            assert backward[category] == pytest.approx(4 * parameters, abs=2048)
        assert rank.host_rss_peak_bytes > 2**26


def test_the_snapshot_of_every_rank_of_memory_is_kept_and_is_that_of_its_record(remembered: tuple[Ran, Path]) -> None:
    (cell,) = load(remembered[1] / "record.json").cells
    for rank, name in zip(cell.ranks, ("s.pickle", "s-rank1.pickle"), strict=True):
        assert from_snapshot(read(remembered[1] / name)).peak.allocated_bytes == rank.peak_allocated_bytes
    assert re.search(r"saved  .*s\.pickle .*p\.html", remembered[0].err)
    assert "rank 1 of 2" in (remembered[1] / "p.html").read_text()


def test_a_record_of_the_memory_of_ranks_is_shown_compared_and_reported(
    remembered: tuple[Ran, Path], tmp_path: Path
) -> None:
    record = str(remembered[1] / "record.json")
    shown = answered("memory", "--from", record, COLUMNS="200")
    for text in (remembered[0].out, shown.out):
        table = text.partition("peak memory of each rank")[2].partition("\n\n")[0]
        assert re.findall(r"Uneven +(\d) .* (forward|backward) ", table) == [("0", "backward"), ("1", "forward")]
    assert "the peak did not change" in answered("compare", record, record).out
    assert answered("report", record, "--output", str(tmp_path / "report.md")).code == 0
    assert "peak memory of each rank" in (tmp_path / "report.md").read_text()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """Two ranks of DDP, of which the first step makes the buckets that the later ones use."""
    words = (*MINUTE, "--ctx", "16", "--steps", "0", "--warmup", "2", "--device", "cpu", "--mode", "forward-backward")
    files = ("--trace", "trace.json.gz", "--json", "record.json")
    return ran_once(tmp_path_factory, "profiled-ranks", "profile", *words, "--ranks", "2", *files, COLUMNS="120")


def test_a_profile_of_ddp_has_the_all_reduces_of_all_gradients_and_the_times_of_both_ranks(
    profiled: tuple[Ran, Path],
) -> None:
    assert profiled[0].code == 0, profiled[0].err
    (cell,) = load(profiled[1] / "record.json").cells
    parameters = 2 * 50 * 32 + 4 * 32**2 + 3 * 32 * 64 + 3 * 32
    reduced = [each for each in cell.ranks.collectives if each.kind == "all_reduce"]
    assert sum(each.bytes * each.calls for each in reduced) == 4 * parameters
    assert all(each.matched == each.calls and each.group_size == 2 for each in reduced)
    assert [row.rank for row in cell.ranks.breakdown] == [0, 1]
    assert all(row.compute_ns > 0 and row.communication_ns > 0 for row in cell.ranks.breakdown)
    assert [check.found == check.expected for check in cell.summary.checks] == [True, True]
    assert "embedding" in cell.summary.modules
    assert not any("DistributedDataParallel" in module for module in cell.summary.modules)


def test_bandwidths_of_collectives_are_compared_with_an_all_reduce_in_the_same_run(profiled: tuple[Ran, Path]) -> None:
    record = json.loads((profiled[1] / "record.json").read_text())
    (cell,) = record["cells"]
    assert cell["link"]["message_bytes"] >= 2**20
    assert "ceiling: an all-reduce of" in profiled[0].out
    cell["link"]["bus_bytes_per_s"] = 4e9
    for each in cell["ranks"]["collectives"]:
        each.update(bytes=2**20, transfer_ns=each["matched"] * 2**20)  # 1 GB/s
    (profiled[1] / "known.json").write_text(json.dumps(record))
    shown = answered("profile", "--from", str(profiled[1] / "known.json"), "--tables=collectives", "--format=csv")
    rows = [row for row in csv.DictReader(shown.out.splitlines()) if row["collective"] == "all_reduce"]
    assert [float(row["ceiling_share"]) for row in rows] == pytest.approx([0.25] * len(rows))


def test_a_profiled_step_of_ranks_is_that_of_the_slowest_rank_and_so_is_the_step_timed_first(
    profiled: tuple[Ran, Path],
) -> None:
    (cell,) = load(profiled[1] / "record.json").cells
    walls_s = []
    for line in only(profiled[1] / "runs", "*.jsonl").read_text().splitlines():
        event = json.loads(line)
        said = event.get("said", event)
        if said["event"] == "step_measured" and not said["warmup"]:
            walls_s.append(said["step"]["wall_s"])
    assert len(walls_s) == 2
    assert cell.profiled_s == [max(walls_s)]
    (timed,) = (each.reference_time_cell for each in ProfileSpec(ranks=(2,), strategy=("tp",)).cells())
    assert timed is not None
    assert (timed.workers, timed.strategy, timed.sync) == (2, "tp", "step")


def test_the_traces_that_a_profile_of_ranks_keeps_show_the_same_ranks(
    profiled: tuple[Ran, Path], tmp_path: Path
) -> None:
    for name in ("trace.json.gz", "trace-rank1.json.gz"):
        assert re.search(rf"^saved .*/{re.escape(name)}$", profiled[0].err, re.MULTILINE)
        shutil.copy(profiled[1] / name, tmp_path)
    names = "communication,collectives"
    again = answered("profile", f"--from={tmp_path}", "--tables", names, "--json", "-", COLUMNS="120")
    assert again.code == 0, again.err
    record = json.loads((profiled[1] / "record.json").read_text())
    assert json.loads(again.out)["ranks"] == record["cells"][0]["ranks"]


def test_a_record_of_profiled_ranks_and_its_report_show_all_ranks(profiled: tuple[Ran, Path], tmp_path: Path) -> None:
    titles = ("communication of each rank", "collectives by kind, message size and group size")
    record = str(profiled[1] / "record.json")
    shown = answered("profile", "--from", record, COLUMNS="120")
    assert shown.code == 0, shown.err
    assert answered("report", record, "--output", str(tmp_path / "report.md")).code == 0
    report = (tmp_path / "report.md").read_text()
    for title in titles:
        assert title in profiled[0].out
        assert title in shown.out
        assert title in report.lower()
    assert "kernels, modules and phases: rank 0; steps: slowest rank" in shown.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("time", "--ranks", "0"), "0 is out of range: it must be 1 to 65536. Nearest: 1"),
        (("time", "--strategy", "fsdp2"), "--strategy fsdp2 distributes a model over ranks. Add --ranks 2"),
        (("time", "--ranks", "1", "--strategy", "tp"), "--strategy tp distributes a model over ranks. Add --ranks 2"),
        (("time", "--ranks", "2", "--strategy", "fsdp"), "fsdp is not a strategy"),
        (("time", "--ranks", "5", "--strategy", "tp"), "splits the 12 heads of small over --ranks 5"),
        (
            ("time", "--ranks", "6", "--heads", "8", "--strategy", "tp"),
            "which does not divide them. Nearest valid number: 4",
        ),
        (("time", "--ranks", "2", "--strategy", "hsdp"), "--ranks 2 cannot form replicas of equal size"),
        (("time", "--ranks", "16", "--simulate", "h100"), "name the network between nodes: --interconnect ib-400"),
        (("time", "--interconnect", "ib-400"), "--interconnect needs --simulate GPU"),
        (("time", "--ranks", "16", "--simulate", "h100", "--interconnect", "ib"), "--interconnect ib is not allowed"),
        (("profile", "--ranks", "2", "--with", "nsys"), "--ranks 2: --with nsys records one process only; use"),
        (("profile", "--ranks", "2", "--simulate", "h100"), "several ranks are profiled, not predicted; sysbench time"),
    ],
)
def test_ranks_that_cannot_be_are_refused_in_one_line(tmp_path: Path, words: tuple[str, ...], complaint: str) -> None:
    refused = answered(*words, cwd=tmp_path)
    assert refused.code == 2
    assert complaint in refused.complaint
    assert list(tmp_path.iterdir()) == []


def test_predicted_ranks_are_compared_with_the_fewest_and_a_network_is_marked(tmp_path: Path) -> None:
    words = (
        "--d-ff=64",
        "--layers=1",
        "--vocab=50",
        "--ctx=16",
        "--simulate=h100",
        "--strategy=tp,ddp",
        "--ranks=1,2,16",
    )
    ran = answered("time", *words, "--heads=16", "--d-model=64", "--interconnect=ib-400", cwd=tmp_path, COLUMNS="200")
    assert ran.code == 0, ran.err
    assert "tp, strong scaling" in ran.out
    assert "ddp, weak scaling" in ran.out
    assert "ib-400" in ran.out
    assert "take turns" not in ran.out
    (unknown,) = (answered("time", *MINUTE, "--ctx=16", "--simulate=a10", "--ranks=2", cwd=tmp_path, COLUMNS="200"),)
    assert "collectives between GPUs like NVIDIA A10 were not measured" in unknown.out


def test_a_compiled_step_of_several_ranks_is_predicted(tmp_path: Path) -> None:
    shape = ("--d-model=64", "--d-ff=128", "--heads=2", "--layers=2", "--vocab=512", "--ctx=64", "--mode=train")
    words = ("--ranks=2", "--strategy=ddp", "--execution=eager,compiled", "--simulate=h100", "--json=-")
    eager, compiled = json.loads(answered("time", *shape, *words, cwd=tmp_path).out)["cells"]
    assert (eager["outcome"], compiled["outcome"]) == ("ok", "ok")
    step_s = [cell["prediction"]["step"]["point_s"] for cell in (eager, compiled)]
    assert step_s[1] < step_s[0]


def test_of_the_processes_that_torchrun_starts_only_the_first_answers_what_is_not_about_ranks(tmp_path: Path) -> None:
    for environment in ({"RANK": "1", "WORLD_SIZE": "2"}, {"SLURM_PROCID": "3"}):
        for words in (("time", "--ctx=16"), ("doctor",), ("time", "--simulate=h100", "--ranks=2")):
            aside = answered(*words, cwd=tmp_path, **environment)
            assert (aside.code, aside.out, aside.err) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
