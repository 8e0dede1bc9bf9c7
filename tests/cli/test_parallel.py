"""Cells that are carried out side by side: by processes of this machine, by Ray, by SLURM."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from sysbench.log.events import CellStarted, decode, encode
from tests.cli.running import MINUTE, answered, only, ran_once, record_in, started, wait_until
from tests.processes import HANG_S

SIMULATED = ("memory", *MINUTE, "--ctx=16,32", "--mode=forward", "--simulate=24GiB")
MORE = ("--ctx=16-48+16",)

pytestmark = pytest.mark.slow


def needs(package: str) -> Any:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is an optional package")


@pytest.fixture(scope="module")
def one_after_the_other(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ran, out = ran_once(tmp_path_factory, "memory-one-after-the-other", *SIMULATED)
    assert ran.code == 0, ran.err
    return record_in(out / "runs")


def three_after_each_other(factory: pytest.TempPathFactory) -> Path:
    ran, out = ran_once(factory, "memory-three-after-each-other", *SIMULATED, *MORE)
    assert ran.code == 0, ran.err
    return out / "runs"


def assert_carried_out_alike(record: dict[str, Any], other: dict[str, Any], names: Iterable[str]) -> None:
    host = record["environment"]["host"]["hostname"]
    assert {cell["host"] for cell in record["cells"]} == {host}
    assert (record["status"], record["spec"]) == ("complete", other["spec"])
    for here, there in zip(record["cells"], other["cells"], strict=True):
        for name in names:
            assert here[name] == there[name], name


@needs("submitit")
def test_the_record_is_that_of_cells_that_follow_each_other_and_names_the_machine(
    one_after_the_other: dict[str, Any], tmp_path: Path
) -> None:
    ran = answered(*SIMULATED, "--on=slurm:local", f"--out={tmp_path}")
    assert ran.code == 0, ran.err
    assert_carried_out_alike(record_in(tmp_path), one_after_the_other, one_after_the_other["cells"][0])


@needs("ray")
def test_what_a_worker_of_ray_was_doing_when_it_was_killed_is_done_again(
    one_after_the_other: dict[str, Any], tmp_path: Path
) -> None:
    with started(*SIMULATED, "--on=ray", f"--out={tmp_path}") as running:
        wait_until(lambda: bool(carrying_out("ray::run_shard", running.pid)), running)
        carrying_out("ray::run_shard", running.pid)[0].kill()
        _, said = running.communicate(timeout=HANG_S)
    assert running.returncode == 0, said
    results = ("key", "outcome", "peak_allocated_bytes", "peak_reserved_bytes", "by_category", "verdict")
    assert_carried_out_alike(record_in(tmp_path), one_after_the_other, results)


def test_a_process_that_is_killed_loses_its_cell_and_no_other(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with started(*SIMULATED, *MORE, "--parallel=2", f"--out={tmp_path}") as running:
        seen: dict[str, psutil.Process] = {}

        def third_has_started() -> bool:
            for process in carrying_out("sysbench.engine.parallel", running.pid):
                # A process that forks is there twice for a moment, with one command line.
                with suppress(psutil.Error):
                    seen.setdefault(" ".join(process.cmdline()), process)
            return len(seen) == 3

        # The third starts when one of the first two has ended; the other one may be about to end.
        wait_until(lambda: third_has_started() and bool(finished(tmp_path)), running)
        before = finished(tmp_path)
        list(seen.values())[-1].kill()
        running.communicate(timeout=HANG_S)
    assert running.returncode == 1
    assert set(before) <= set(finished(tmp_path))
    record = record_in(tmp_path)
    assert sorted(cell["outcome"] for cell in record["cells"]) == ["crashed", "ok", "ok"]
    crashed = {cell["key"] for cell in record["cells"] if cell["outcome"] == "crashed"}
    other = record_in(three_after_each_other(tmp_path_factory))
    for each in (record, other):
        each["cells"] = [cell for cell in each["cells"] if cell["key"] not in crashed]
    assert_carried_out_alike(record, other, other["cells"][0])
    ran = answered("memory", f"--resume={only(tmp_path, '*.jsonl')}", f"--out={tmp_path}")
    assert ran.code == 0, ran.err
    assert [cell["outcome"] for cell in record_in(tmp_path)["cells"]] == ["ok"] * 3


def test_ctrl_c_ends_every_process_and_keeps_what_was_finished(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = only(three_after_each_other(tmp_path_factory), "*.jsonl").read_text().splitlines(keepends=True)
    second = [number for number, line in enumerate(lines) if '"event":"cell_started"' in line][1]
    log = tmp_path / "begun.jsonl"
    log.write_text("".join(lines[:second]))  # as if the run had ended after the first cell
    (before,) = finished(tmp_path)
    with started("memory", f"--resume={log}", "--parallel=2") as running:
        wait_until(lambda: len(carrying_out("sysbench.worker", running.pid)) == 2, running)
        there = carrying_out("sysbench", running.pid)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=HANG_S)
    assert running.returncode == 130
    record = record_in(tmp_path)
    assert record["status"] == "interrupted"
    assert [cell["key"] for cell in record["cells"] if cell["outcome"] == "ok"] == [before]
    _, alive = psutil.wait_procs(there, timeout=HANG_S)
    assert not alive


@needs("ray")
def test_a_ray_cluster_without_gpus_measures_on_processors_unless_a_gpu_was_asked_for(tmp_path: Path) -> None:
    ran = answered("time", *MINUTE, "--ctx=16", "--steps=4", "--on=ray", f"--out={tmp_path / 'runs'}")
    assert ran.code == 0, ran.err
    (cell,) = record_in(tmp_path / "runs")["cells"]
    assert cell["device"]["type"] == "cpu"
    ran = answered("time", *MINUTE, "--ctx=16", "--device=cuda", "--on=ray", f"--out={tmp_path / 'refused'}")
    assert ran.code == 2
    assert "--device cuda: a cell needs 1 GPU, but no machine of the Ray cluster has more than 0." in ran.err


def programs_of_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, **says: str) -> None:
    """Put programs that only say something before those of SLURM; what starts with `error` is their failure."""
    folder.mkdir()
    for name in ("srun", "sbatch", "sacct", "scancel"):
        lines = says.get(name, "").split("\n")
        printed = "printf '%s\\n' " + " ".join(f"'{line}'" for line in lines)
        failing = " >&2; exit 1" if lines[0].startswith("error") else ""
        (folder / name).write_text(f"#!/bin/sh\n{printed}{failing}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@needs("submitit")
def test_what_slurm_refuses_is_refused_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs_of_slurm(tmp_path / "bin", monkeypatch, sbatch="error: invalid partition specified: gpus")
    ran = answered(*SIMULATED, "--on=slurm", "--on-arg=slurm_partition=gpus", f"--out={tmp_path / 'runs'}")
    assert ran.code == 2
    assert "--on slurm: " in ran.err.splitlines()[-1]
    assert "invalid partition specified: gpus" in ran.err.splitlines()[-1]


@needs("submitit")
def test_a_job_that_slurm_ends_at_its_limit_is_a_cell_that_took_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = "JobID|State|NodeList\n12_0|TIMEOUT|node1\n12_1|TIMEOUT|node1"
    programs_of_slurm(tmp_path / "bin", monkeypatch, sbatch="Submitted batch job 12", sacct=ended)
    ran = answered(*SIMULATED, "--on=slurm", "--on-arg=timeout_min=5", f"--out={tmp_path / 'runs'}", COLUMNS="")
    assert ran.code == 1
    assert {cell["outcome"] for cell in record_in(tmp_path / "runs")["cells"]} == {"timeout"}
    assert "SLURM ended job 12_0 at its time limit: --on-arg timeout_min=120 sets a longer one" in ran.out
    assert "--time=5" in "".join(path.read_text() for path in tmp_path.glob("runs/slurm/*.sh"))


def test_cells_of_unlike_gpus_are_told_apart_in_every_table(tmp_path: Path) -> None:
    ran = answered("time", *MINUTE, "--ctx=16,32", "--steps=6", "--mode=forward", "--device=cpu", f"--out={tmp_path}")
    assert ran.code == 0, ran.err
    log = only(tmp_path, "*.jsonl")
    gpus = iter(("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"))
    lines = []
    for line in log.read_bytes().splitlines():
        event = decode(line)
        if isinstance(event, CellStarted):
            gpu = event.device.model_copy(update={"name": next(gpus)})
            line = encode(event.model_copy(update={"host": f"node{event.index}", "device": gpu}))
        lines.append(line + b"\n")
    log.write_bytes(b"".join(lines))
    shown = answered("time", f"--from={log}").out
    rows = [line for line in shown.splitlines() if "A100-SXM4" in line or "H100 80GB" in line]
    assert "hardware" in shown
    assert len(rows) >= 2
    assert "grows" not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--parallel=2",), "--parallel 2 is for simulated cells (--simulate GPU)"),
        (
            ("--parallel=2", "--on=ray"),
            "--parallel applies to this machine; --on ray decides itself how many cells run at a time",
        ),
        (
            ("--on=rya",),
            "--on rya is not a place to run cells. Did you mean ray? (ray, slurm, slurm:local, ray://HOST:PORT)",
        ),
        (("--on-arg=a=1",), "add --on WHERE"),
        (("--on=slurm:local", "--on-arg=timeout_min"), "--on-arg timeout_min is not NAME=VALUE"),
        pytest.param(("--on=slurm",), 'Could not detect "srun"', marks=needs("submitit")),
        pytest.param(("--on=slurm:local", "--on-arg=gpus=x"), "--on slurm:local: ", marks=needs("submitit")),
        pytest.param(("--on=ray://127.0.0.1:9",), "--on ray://127.0.0.1:9: no Ray cluster answers", marks=needs("ray")),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_leaves_no_log(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    ran = answered("time", *MINUTE, "--ctx=16", "--device=cpu", *words, f"--out={tmp_path}")
    assert ran.code == 2
    assert said in ran.err.splitlines()[-1]
    assert not list(tmp_path.glob("*.jsonl"))


def finished(directory: Path) -> list[str]:
    lines = [line for log in directory.glob("*.jsonl") for line in log.read_text().splitlines()]
    return [event["cell"] for event in map(json.loads, lines) if event["event"] == "cell_finished"]


def carrying_out(name: str, parent: int) -> list[psutil.Process]:
    """The processes below one that have this in their command line."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        try:
            if name in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found
