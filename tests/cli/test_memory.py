"""`sysbench memory` as a user meets it."""

from __future__ import annotations

import json
import pickle
import shlex
from pathlib import Path

import pytest
import torch

from sysbench import units
from sysbench.commands.fit.spec import FitSpec
from sysbench.commands.memory.spec import MemoryOptions, MemorySpec
from sysbench.commands.time.spec import TimeSpec
from sysbench.log.events import encode
from sysbench.snapshot.categories import from_snapshot
from sysbench.snapshot.snapshot import read
from sysbench.spec.command_options import parse_options, validated
from tests import fixtures_timing
from tests.cli.running import MINUTE, Ran, answered, only, ran_once, record_in, sysbench

CELL = (*MINUTE, "--ctx", "16", "--mode", "train")
SIMULATED = (*CELL, "--simulate", "a100-80gb")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with everything that one simulated cell can leave."""
    files = ("--snapshot=s.pickle", "--figure=f.svg", "--page=p.html")
    ran, out = ran_once(tmp_path_factory, "memory-simulated", "memory", *SIMULATED, *files)
    assert ran.code == 0, ran.err
    (out / "shown.txt").write_text(ran.out)
    return out


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """What was said of two cells that were measured on the CPU, and the directory with what they left."""
    words = (*CELL, "--device=cpu", "--mode=inference,train", "--snapshot=s.pickle")
    ran, out = ran_once(tmp_path_factory, "memory-on-the-cpu", "memory", *words)
    assert ran.code == 0, ran.err
    return ran, out


# --- simulated


def test_what_was_simulated_says_so_in_log_record_and_every_table(simulated: Path) -> None:
    runs = simulated / "runs"
    (cell,) = record_in(runs)["cells"]
    assert cell["source"] == "simulated"
    said = [json.loads(line) for line in only(runs, "*.jsonl").read_text().splitlines()]
    assert {event["source"] for event in said if "source" in event} == {"simulated"}
    shown = answered("memory", f"--from={only(runs, '*.json')}", "--tables=summary,phases,categories,largest,modules")
    titles = [line for line in shown.out.splitlines() if "simulated" in line]
    assert "peak memory, simulated" in shown.out
    assert len(titles) >= 10  # the title and the heading of columns of each of five tables


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_a_named_one_is_simulated_and_the_host_is_measured_only_on_demand(tmp_path: Path) -> None:
    words = [word for word in (*CELL, "--mode=forward") if not word.startswith("--device")]
    ran = answered("memory", *words, "--snapshot=s.pickle", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert ran.err.splitlines()[0].startswith("no GPU here: simulating NVIDIA H100 80GB")
    assert "simulated for NVIDIA H100 80GB" in ran.out
    record = record_in(tmp_path / "runs")
    assert (record["spec"]["simulate"], [cell["source"] for cell in record["cells"]]) == (["h100"], ["simulated"])
    assert (tmp_path / "s.pickle").is_file()
    ran = answered("memory", *words, "--device=cpu", "--json=-", f"--out={tmp_path / 'measured'}")
    assert "simulat" not in ran.err
    assert [cell["source"] for cell in json.loads(ran.out)["cells"]] == ["measured"]


def test_the_record_adds_up_to_the_byte(simulated: Path) -> None:
    (cell,) = record_in(simulated / "runs")["cells"]
    assert sum(cell["by_category"].values()) == cell["peak_allocated_bytes"]
    for phase in cell["peaks_by_phase"].values():
        assert sum(phase["by_category"].values()) == phase["allocated_peak_bytes"]
    everything = next(module for module in cell["modules"] if not module["path"])
    assert everything["total_bytes"] == cell["peak_allocated_bytes"]
    assert sum(module["own_bytes"] for module in cell["modules"]) == cell["peak_allocated_bytes"]
    assert cell["residual_bytes"] == 1 * 16 * 32 * 4


def test_a_simulated_run_leaves_snapshot_picture_and_page(simulated: Path) -> None:
    content = pickle.loads((simulated / "s.pickle").read_bytes())  # noqa: S301  our own file
    assert content["sysbench"]["source"] == "simulated"
    assert "<svg" in (simulated / "f.svg").read_text()
    assert "SIMULATED" in (simulated / "p.html").read_text()


def test_a_snapshot_is_read_back_with_the_peak_of_the_record(simulated: Path) -> None:
    ran = answered("memory", f"--from={simulated / 's.pickle'}")
    assert ran.code == 0, ran.err
    assert "largest allocations at the peak, simulated" in ran.out
    assert "transformer.py" in ran.out
    assert "inferred" not in ran.out


def test_a_saved_run_is_shown_as_it_was_without_torch(simulated: Path) -> None:
    for pattern in ("*.json", "*.jsonl"):
        ran = sysbench("memory", f"--from={only(simulated / 'runs', pattern)}")
        assert ran.out == (simulated / "shown.txt").read_text()


def test_a_cell_that_does_not_fit_is_a_measurement_that_names_the_phase(tmp_path: Path) -> None:
    ran = answered(
        "memory", *CELL, "--simulate=1GiB", "--batch=1", "--vocab=200000,50", f"--out={tmp_path}", "--d-model=1024"
    )
    small = record_in(tmp_path)["cells"]
    assert ran.code == 0, ran.err
    by_outcome = {cell["outcome"]: cell for cell in small}
    assert set(by_outcome) == {"oom", "ok"}
    assert not by_outcome["oom"]["verdict"]["fits"]
    assert by_outcome["oom"]["verdict"]["margin_bytes"] < 0
    assert by_outcome["oom"]["verdict"]["failed_phase"] in ("build", "backward", "optimizer")
    assert (
        by_outcome["oom"]["verdict"]["failed_phase"] in by_outcome["oom"]["detail"]
        or "built" in by_outcome["oom"]["detail"]
    )


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """A search with two kinds of attention, one of which does not exist in fp32."""
    words = (*MINUTE, "--ctx=256", "--mode=forward", "--simulate=1GiB", "--find=batch", "--attention=flash,naive")
    return ran_once(tmp_path_factory, "memory-searched", "memory", *words, "--out=.")


def test_ranks_have_the_buffers_of_nccl_beside_the_allocator_and_a_file_each(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    words = (*CELL, "--simulate=1GiB", "--ranks=1,2", "--strategy=fsdp2,ddp", "--snapshot=s.pickle")
    ran, out = ran_once(tmp_path_factory, "memory-of-ranks", "memory", *words)
    assert ran.code == 0, ran.err
    assert "NCCL's buffers" in ran.out
    assert {path.name for path in out.glob("s*.pickle")} == {
        "s.pickle", "s-ranks1.pickle", "s-ranks2-fsdp2.pickle", "s-ranks2-ddp.pickle",
    }  # fmt: skip
    one, *ranks = record_in(out / "runs")["cells"]
    assert "ranks" not in one["axes"]
    assert "nccl_bytes" not in one["gpu"]
    for cell in ranks:
        assert cell["gpu"]["nccl_bytes"] == 342 * 2**20
        assert cell["context_bytes"] == cell["gpu"]["context_bytes"] + 342 * 2**20
        assert cell["by_category"]["communication"] > 0


def test_the_fewest_ranks_are_found(tmp_path_factory: pytest.TempPathFactory) -> None:
    words = ("--size=medium", "--layers=12", "--ctx=16", "--mode=train", "--simulate=4GiB", "--find=ranks")
    ran, out = ran_once(tmp_path_factory, "memory-of-fewest-ranks", "memory", *words)
    assert ran.code == 0, ran.err
    found = record_in(out / "runs")["cells"][0]["found"]
    assert f"The fewest ranks that fit are {found['value']}" in ran.out
    assert found["tried"] == [2**power for power in range(len(found["tried"]))]
    assert found["value"] == found["tried"][-1] == 2 * found["beyond"] > 1


def test_find_gives_the_largest_that_fits_and_the_next_that_does_not(searched: tuple[Ran, Path]) -> None:
    ran, out = searched
    _, cell = record_in(out)["cells"]
    found = cell["found"]
    assert found["beyond"] == found["value"] + 1
    assert f"largest batch that fits: {found['value']}" in ran.err


def test_what_does_not_fit_alone_ends_with_what_is_missing_and_what_helps(tmp_path: Path) -> None:
    ran = answered("memory", *CELL, "--simulate=600MiB", "--vocab=2000000", "--out=.", cwd=tmp_path, COLUMNS="300")
    assert ran.code == 0
    missing = units.size(-record_in(tmp_path)["cells"][0]["verdict"]["margin_bytes"])
    says, command = (line.strip() for line in ran.out.splitlines()[-2:])
    assert says.startswith(f"does not fit on 600MiB, by {missing}, ")
    command = command.removeprefix("→ ")
    (given,) = parse_options("fit", shlex.split(command)[2:], FitSpec)
    (cell,) = validated(FitSpec, given).cells()
    assert (cell.batch, cell.ctx, cell.on, getattr(cell.shape, "vocab", 0)) == (1, 16, ("600MiB",), 2_000_000)


def test_several_cells_end_with_the_causes_of_the_largest_that_fits_and_the_next_step(tmp_path: Path) -> None:
    words = ("memory", *CELL[:-2], "--ctx=16,64,16384", "--mode=train", "--simulate=1GiB", "--snapshot=s.pickle")
    ran = answered(*words, "--out=.", cwd=tmp_path, COLUMNS="300")
    assert ran.code == 0, ran.err
    _, largest, failing = record_in(tmp_path)["cells"]
    assert (largest["verdict"]["fits"], failing["verdict"]["fits"]) == (True, False)
    assert "peak breakdown of ctx 64, simulated" in ran.out
    assert "largest allocations at the peak of ctx 64, simulated" in ran.out
    says, command = (line.strip() for line in ran.out.splitlines()[-2:])
    assert says == f"ctx 64 fits, ctx 16384 lacks {units.size(-failing['verdict']['margin_bytes'])}"
    (given,) = parse_options("fit", shlex.split(command.removeprefix("→ "))[2:], FitSpec)
    assert [(cell.ctx, cell.on) for cell in validated(FitSpec, given).cells()] == [(16384, ("1GiB",))]
    (saved,) = (line for line in ran.err.splitlines() if line.startswith("saved"))
    assert (
        "s.pickle (to open it: pytorch.org/memory_viz, or sysbench memory --from s.pickle), 3 more beside it" in saved
    )
    assert (tmp_path / "s.pickle").read_bytes() == (tmp_path / "s-ctx64.pickle").read_bytes()


def test_a_step_that_fits_ends_with_the_search_for_the_largest_batch(simulated: Path) -> None:
    command = (simulated / "shown.txt").read_text().splitlines()[-1].strip().removeprefix("→ ")
    given, _ = parse_options("memory", shlex.split(command)[2:], MemorySpec, MemoryOptions)
    (cell,) = validated(MemorySpec, given).cells()
    assert (cell.find, cell.simulate, cell.ctx, cell.mode) == ("batch", "a100-80gb", 16, "train")


def test_the_gate_exits_with_3_and_names_what_does_not_fit(tmp_path: Path) -> None:
    unnamed = answered("memory", *CELL, "--require-fit", cwd=tmp_path)
    assert unnamed.code == 2
    assert "--require-fit needs a GPU, and none is here" in unnamed.err
    words = ("memory", *CELL, "--simulate=600MiB,24GiB", "--vocab=2000000", "--require-fit")
    ran = answered(*words, "--quiet", "--out=.", cwd=tmp_path)
    small, large = record_in(tmp_path)["cells"]
    assert (ran.code, large["verdict"]["fits"]) == (3, True)
    assert f"does not fit on 600MiB, by {units.size(-small['verdict']['margin_bytes'])}, " in ran.complaint
    shown = answered("memory", f"--from={only(tmp_path, '*.json')}", "--require-fit")
    assert (shown.code, shown.complaint) == (3, ran.complaint)
    assert answered("memory", *CELL, "--simulate=24GiB", "--require-fit", cwd=tmp_path).code == 0


def test_attention_that_does_not_exist_is_invalid_and_the_others_count(searched: tuple[Ran, Path]) -> None:
    ran, out = searched
    assert ran.code == 1
    assert [cell["outcome"] for cell in record_in(out)["cells"]] == ["invalid", "ok"]
    assert "takes 16-bit inputs" in ran.out


# --- measured


def test_on_the_cpu_tensors_are_counted_beside_the_resident_memory_of_the_worker(counted: tuple[Ran, Path]) -> None:
    ran, out = counted
    cells = record_in(out / "runs")["cells"]
    assert [cell["source"] for cell in cells] == ["measured"] * 2
    for cell in cells:
        assert sum(cell["by_category"].values()) == cell["peak_allocated_bytes"]
        assert cell["host_rss_peak_bytes"] > cell["peak_allocated_bytes"]
        assert cell["peak_reserved_bytes"] is None
    peaks = [cell["peak_allocated_bytes"] for cell in cells]
    assert peaks == sorted(set(peaks))
    assert "simulated" not in ran.out


def test_several_cells_number_their_files_by_what_sets_them_apart(counted: tuple[Ran, Path]) -> None:
    assert sorted(path.name for path in counted[1].glob("*.pickle")) == [
        "s-inference.pickle", "s-train.pickle", "s.pickle",
    ]  # fmt: skip


def test_what_the_cpu_counts_is_what_the_simulation_says_without_workspaces(
    counted: tuple[Ran, Path], simulated: Path
) -> None:
    """Tensors of 512-byte blocks: only the optimizer's counters are host memory on a GPU."""
    (_, real), (model,) = record_in(counted[1] / "runs")["cells"], record_in(simulated / "runs")["cells"]
    for category in ("parameters", "gradients"):
        assert (
            real["peaks_by_phase"]["optimizer"]["by_category"][category]
            == (model["peaks_by_phase"]["optimizer"]["by_category"][category])
        )


# --- resume, interruption


def test_a_log_of_time_is_not_resumed_and_not_shown_as_memory(tmp_path: Path) -> None:
    log = tmp_path / "timed.jsonl"
    log.write_bytes(b"".join(encode(event) + b"\n" for event in fixtures_timing.events(TimeSpec())))
    for option in ("--resume", "--from"):
        ran = answered("memory", f"{option}={log}")
        assert ran.code == 2
        assert "is a record of `sysbench time`" in ran.complaint


# --- mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--simulate=a100-80bg",), "Did you mean a100-80gb?"),
        (("--find=batch",), "--find needs --simulate GPU"),
        (("--simulate=1GiB", "--find=ranks", "--ranks=2"), "drop one of them"),
        (("--simulate=1GiB", "--find=ranks", "--strategy=ddp"), "every rank holds the whole model"),
        (
            ("--simulate=1GiB", "--ranks=5", "--strategy=tp"),
            "--ranks 5, which does not divide them. Nearest valid number",
        ),
        (("--simulate=1GiB", "--ranks=12", "--strategy=hsdp"), "or a multiple of 8. Nearest: 16"),
        (("--find=layers", "--simulate=24GiB"), "--find layers is not allowed"),
        (("--simulate=1GiB", "--find=batch", "--batch=4,8"), "not from 4,8. Give one: --batch 4"),
        (("--simulate=1GiB", "--find=ctx", "--ctx=64-256*2"), "not from 64,128,256. Give one: --ctx 64"),
        (("--simulate=24GiB", "--execution=compiled-graphs"), "keeps tensors in the pool of CUDA graphs"),
        (("--simulate=24GiB", "--device=cuda"), "--device names the device to measure on"),
        (("--mode=backward",), "--mode backward is not a mode"),
        (("--simulate=24GiB", "--ctx=8", "--snapshot=nowhere/x.pickle"), "there is no directory"),
        (("--simulate=24GiB", "--ctx=8", "--figure=x.gif"), "must end in .png, .svg, .pdf"),
        (("--tables=nonsense",), "--tables nonsense is not a table"),
        (("--from=nowhere.pickle",), "cannot read nowhere.pickle"),
        (("--from=nowhere.pickle", "--ctx=8"), "--from shows a finished run; --ctx would have no effect"),
        (("--from=nowhere.json", "--figure=x.png"), "--figure needs all allocations"),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_nothing(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    ran = answered("memory", *words, cwd=tmp_path)
    assert ran.code in (1, 2)
    assert said in ran.complaint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"hello", "is not a pickle"),
        (b'{"a": 1}', "looks like JSON"),
        (b"\x80\x04cos\nsystem\n(X\x04\x00\x00\x00trueetR.", "snapshot"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc"}] * 50]}, protocol=4)[:60], "snapshot"),
    ],
)
def test_a_file_that_is_no_snapshot_gets_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file.pickle"
    path.write_bytes(content)
    ran = answered("memory", f"--from={path}")
    assert ran.code == 2
    assert "file.pickle" in ran.complaint
    assert said.split()[0] in ran.complaint or "truncated" in ran.complaint or "refuse" in ran.complaint


def test_a_snapshot_of_the_cpu_holds_its_tensors_and_claims_no_allocator(counted: tuple[Ran, Path]) -> None:
    path = counted[1] / "s-train.pickle"
    _, cell = record_in(counted[1] / "runs")["cells"]
    content = read(path)
    timeline = from_snapshot(content)
    assert (content.source, timeline.reserved_bytes, timeline.time_us) == ("measured", None, None)
    assert timeline.peak.allocated_bytes == cell["peak_allocated_bytes"]
    shown = answered("memory", f"--from={path}")
    assert shown.code == 0, shown.err
    assert "reserved" not in shown.out
    assert "simulated" not in shown.out


def test_what_cannot_run_here_is_pointed_to_the_simulation(tmp_path: Path) -> None:
    ran = answered("memory", "--size=2.7b", "--ctx=128", "--batch=4000", "--device=cpu", f"--out={tmp_path}")
    assert ran.code == 1
    assert "use --simulate GPU (a100-80gb, or 24GiB) to compute what does not fit here" in " ".join(ran.out.split())


def test_of_a_gpu_that_is_only_a_size_no_step_time_is_predicted_and_what_can_be_had_is_named() -> None:
    ran = answered("time", "--simulate=24GiB")
    assert ran.code == 2
    assert "sysbench memory --simulate 24GiB shows whether a step fits" in ran.complaint
