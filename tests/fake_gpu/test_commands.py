"""What commands do on a GPU, from the device that is found to the worker that is killed."""

from __future__ import annotations

import json
import signal
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.running import only, record_in, started, wait_until
from tests.fake_gpu.fake import FakeGpu, Ran
from tests.processes import HANG_S

LAYERS, STEPS, WARMUP = 2, 4, 1
MODEL = ("--d-model=64", "--d-ff=128", f"--layers={LAYERS}", "--heads=2", "--vocab=100", "--batch=2", "--ctx=32")
TIMED = (*MODEL, f"--steps={STEPS}", f"--warmup={WARMUP}", "--json=-")


def cells_of(ran: Ran, code: int = 0) -> list[dict[str, Any]]:
    assert ran.code == code, ran.err
    return list(json.loads(ran.out)["cells"])


def codes(cell: Mapping[str, Any]) -> set[str]:
    return {caution["code"] for caution in cell["cautions"]}


def test_doctor_names_every_gpu_and_its_memory(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    ran = fake_gpu.answered("doctor", "--json", "found.json", cwd=tmp_path, devices=2, memory_mib=24576)
    assert ran.code == 0, ran.err
    found = json.loads((tmp_path / "found.json").read_text())["torch"]
    gpus = [each for each in found["devices"] if each["type"] == "cuda"]
    assert [(each["index"], each["memory_bytes"], each["compute_capability"]) for each in gpus] == [
        (0, 24576 << 20, "9.0"),
        (1, 24576 << 20, "9.0"),
    ]
    assert found["attention_kernels"] == {
        "flash": ["bf16", "fp16"],
        "efficient": ["fp32", "bf16", "fp16"],
        "cudnn": ["bf16", "fp16"],
    }


# --- times


def test_copies_between_gpu_and_host_are_calibrated_each_way(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    own = {"XDG_CONFIG_HOME": str(tmp_path)}  # another test may have calibrated other rates
    words = ("calibrate", "link", "--budget=1", "--out=found.toml")
    ran = fake_gpu.answered(*words, cwd=tmp_path, **own)
    assert ran.code == 0, ran.err
    rates = tomllib.loads((tmp_path / "found.toml").read_text())["rates"]
    assert {name for name, rate in rates.items() if rate["basis"] == "calibrated"} == {
        "device_to_host", "host_to_device", "update"
    }  # fmt: skip
    (cell,) = record_in(tmp_path / "runs")["cells"]
    assert "256 MiB host to device" in {case["case"] for case in cell["cases"]}


def test_products_in_fp8_are_calibrated_where_a_gpu_has_them(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    for capability, has_it in {"9.0": True, "8.0": False}.items():
        words = ("calibrate", "matmul", "--budget=0.5", f"--out={capability}.toml")
        ran = fake_gpu.answered(*words, cwd=tmp_path, capability=capability)
        assert ran.code == 0, ran.err
        found = tomllib.loads((tmp_path / f"{capability}.toml").read_text())
        assert ("matmul_fp8" in found["rates"]) == has_it


def test_device_times_are_those_of_the_kernels_and_a_device_that_waits_is_said(
    fake_gpu: FakeGpu, tmp_path: Path
) -> None:
    slow_us = 200
    (fast,) = cells_of(fake_gpu.answered("time", *TIMED, "--mode=forward", cwd=tmp_path, kernel_us=0))
    (slow,) = cells_of(fake_gpu.answered("time", *TIMED, "--mode=forward", cwd=tmp_path, kernel_us=slow_us))
    assert "launch-bound" in codes(fast)
    assert "launch-bound" not in codes(slow)
    # What else a forward pass launches, test_launches.py compares.
    products = 9 * LAYERS + 1
    device_s, wall_s = (slow["phases"]["forward"][clock]["samples_s"] for clock in ("device", "wall"))
    for on_device_s, on_host_s in zip(device_s, wall_s, strict=True):
        assert products * slow_us * 1e-6 < on_device_s < on_host_s


def test_a_profile_has_every_kernel_with_its_module_class_and_time(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    ran = fake_gpu.answered("profile", *MODEL, "--mode=train", "--json=-", cwd=tmp_path)
    (cell,) = cells_of(ran)
    summary = cell["summary"]
    spent = {name: summary["spent"][name] for name in ("phase", "module", "kernel", "total_ns", "calls")}
    rows = list(zip(*spent.values(), strict=True))
    forward = summary["phases"].index("forward")
    products = [
        (summary["modules"][module], calls, total_ns)
        for phase, module, kernel, total_ns, calls in rows
        if phase == forward and summary["names"][kernel]["kernel_class"] == "matmul"
    ]
    assert sum(calls for _, calls, _ in products) == (9 * LAYERS + 1) * summary["steps"]
    assert {"lm_head", "layers.0.attention.q", "layers.1.feed_forward.w2"} <= {module for module, _, _ in products}
    assert all(total_ns > 0 for _, _, total_ns in products)


# --- memory


def test_the_snapshot_of_a_run_has_the_peak_of_its_record(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    words = ("memory", *MODEL, "--mode=train", "--snapshot=taken.pickle", "--json=-")
    (cell,) = cells_of(fake_gpu.answered(*words, cwd=tmp_path))
    shown = fake_gpu.answered("memory", "--from=taken.pickle", "--json=-", cwd=tmp_path)
    tables = {table["name"]: table["rows"] for table in json.loads(shown.out)["tables"]}
    assert sum(row["size_bytes"] for row in tables["categories"]) == cell["peak_allocated_bytes"]
    assert all("torch/_native" not in row["line"] for row in tables["largest"])


def test_a_cell_that_runs_out_of_memory_says_so_and_the_next_one_runs(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    words = ("time", "--size=small,tiny", "--ctx=64", "--batch=1", "--steps=2", "--warmup=1", "--force", "--json=-")
    out_of_memory, fitting = cells_of(fake_gpu.answered(*words, cwd=tmp_path, memory_mib=1200))
    assert out_of_memory["outcome"] == "oom"
    assert "GPU 0 has a total capacity of 1.17 GiB" in out_of_memory["detail"]
    assert fitting["outcome"] == "ok"
    # Nothing of the first cell is left: 1.1 GiB of it would not leave room for these.
    assert fitting["memory"]["allocated_peak_bytes"] < 400 << 20


# --- the step


def test_sdpa_takes_the_kernel_that_is_recorded(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    attention = ("--attention=sdpa,math", "--precision=bf16,fp32", "--mode=forward")
    ran = fake_gpu.answered("time", *TIMED, *attention, cwd=tmp_path)
    assert {
        (cell["axes"]["attention"], cell["axes"]["precision"]): cell["attention_kernel"] for cell in cells_of(ran)
    } == {
        ("sdpa", "bf16"): "aten::_scaled_dot_product_cudnn_attention",  # which PyTorch prefers on Hopper
        ("sdpa", "fp32"): "aten::_scaled_dot_product_efficient_attention",
        ("math", "bf16"): "aten::bmm",
        ("math", "fp32"): "aten::bmm",
    }
    for kernel in ("fmha_cutlassF_f32", "cudnn_plan"):
        assert ran.report.count(kernel) >= LAYERS * (STEPS + WARMUP)


def test_attention_that_the_gpu_refuses_is_an_invalid_cell_with_the_reason(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    ran = fake_gpu.answered("time", *TIMED, "--attention=flash", "--precision=fp32,bf16", cwd=tmp_path)
    refused, measured = cells_of(ran, code=1)
    assert (refused["outcome"], measured["outcome"]) == ("invalid", "ok")
    assert "flash" in refused["detail"].lower()


def test_autocast_of_the_real_dispatcher_is_the_one_that_is_documented(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    (cell,) = cells_of(fake_gpu.answered("accum", "autocast", "--size=tiny", "--json=-", cwd=tmp_path))
    assert cell["dtypes"]
    assert [each for each in cell["dtypes"] if each["here"] != each["on_cuda"]] == []


def test_an_optimizer_launches_the_kernels_of_its_kind_and_fp16_has_a_gradient_scaler(
    fake_gpu: FakeGpu, tmp_path: Path
) -> None:
    """The real dispatcher: one kernel of fused AdamW for all parameters; a loop launches more than any list."""
    launched = {}
    for optimizer in ("for-loop", "foreach", "fused"):
        words = (*TIMED, f"--optimizer={optimizer}", "--precision=fp16")
        ran = fake_gpu.answered("time", *words, cwd=tmp_path)
        (cell,) = cells_of(ran)
        assert cell["outcome"] == "ok"
        assert ran.report.count("amp_update_scale") == STEPS + WARMUP
        launched[optimizer] = ran.report.count("FusedAdam"), ran.report.launches.total()
    steps = STEPS + WARMUP
    assert launched["fused"][0] % steps == 0
    assert [launched[name][0] for name in ("for-loop", "foreach")] == [0, 0]
    assert launched["fused"][0] > 0
    assert launched["for-loop"][1] > launched["foreach"][1] > launched["fused"][1]


# --- several GPUs, and NVIDIA's management library


def test_cells_of_two_gpus_run_on_their_own(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    ran = fake_gpu.answered("time", *TIMED, "--mode=forward", "--device=cuda:0,cuda:1", cwd=tmp_path, devices=2)
    assert [cell["device"]["index"] for cell in cells_of(ran)] == [0, 1]
    products = (9 * LAYERS + 1) * (STEPS + WARMUP)
    # Besides, products are timed alone, for the matmul ceiling.
    launched = [ran.report.count("cublas", device=device) for device in (0, 1)]
    assert launched[0] == launched[1] > products


# --- what ends early


@pytest.mark.slow
def test_ctrl_c_and_a_killed_worker_cost_what_was_running_and_resume_does_the_rest(
    fake_gpu: FakeGpu, tmp_path: Path
) -> None:
    words = ("time", *MODEL[:-1], "--ctx=16,24,32", "--steps=400", "--warmup=1", f"--out={tmp_path}")
    surroundings = fake_gpu.environment(kernel_us=20)
    with started(*words, **surroundings) as running:
        wait_until(lambda: "cell_started" in events(tmp_path), running)
        (worker,) = workers(running.pid)
        worker.kill()
        wait_until(lambda: events(tmp_path).count("cell_finished") == 1, running)
        wait_until(lambda: events(tmp_path).count("cell_started") == 2, running)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=HANG_S)
    assert running.returncode == 130
    record = record_in(tmp_path)
    assert record["status"] == "interrupted"
    assert record["cells"][0]["outcome"] == "crashed"
    log = only(tmp_path, "*.jsonl")
    ran = fake_gpu.answered("time", f"--resume={log}", kernel_us=0)
    assert ran.code == 0, ran.err
    assert [cell["outcome"] for cell in record_in(tmp_path)["cells"]] == ["ok"] * 3


def events(directory: Path) -> list[str]:
    lines = [line for log in directory.glob("*.jsonl") for line in log.read_text().splitlines()]
    return [json.loads(line)["event"] for line in lines if line.endswith("}")]


def workers(parent: int) -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process(parent).children(recursive=True)
        if "sysbench.worker" in " ".join(process.cmdline())
    ]
