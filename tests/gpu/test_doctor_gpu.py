"""The doctor and the counter of energy beside a real GPU: `pytest -m gpu`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.commands.doctor.record import DoctorRecord
from sysbench.simulate.gpu import Gpu
from sysbench.spec.hardware import find
from tests.bench.self_cost import discarded_dashboard, measure
from tests.cli.running import record_in, sysbench

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def found() -> DoctorRecord:
    ran = sysbench("doctor", "--json")
    assert ran.code == 0, ran.err
    record = DoctorRecord.model_validate_json(ran.out)
    if not any(device.type == "cuda" for device in record.torch.devices):
        pytest.skip("torch sees no CUDA device here")
    return record


def test_the_gpu_that_torch_sees_is_one_that_the_driver_names(found: DoctorRecord) -> None:
    (first, *_) = (device for device in found.torch.devices if device.type == "cuda")
    state = next(each for each in found.nvml.gpus if each.uuid == first.uuid)
    assert state.compute_capability == first.compute_capability
    assert state.total_bytes is not None
    assert state.total_bytes > 2**30
    assert found.torch.unknown == {}


def test_the_context_is_measured_and_counted_by_simulations_here(found: DoctorRecord) -> None:
    gpu, context_bytes = found.gpu, found.torch.context_bytes
    assert gpu is not None
    assert context_bytes is not None
    assert 50 << 20 < context_bytes < 2 << 30
    known = find(gpu.name, gpu.memory_bytes)
    if known is not None:
        assert Gpu.of(known).least_context_bytes == context_bytes


def test_what_the_doctor_promises_is_kept(found: DoctorRecord, tmp_path: Path) -> None:
    """Every precision and attention kernel that is said to work, does, in a step that takes a moment."""
    works = {each.what: each.works for each in found.prospects}
    precisions = [name for name in ("bf16", "fp16", "tf32") if works[f"--precision {name}"] == "yes"]
    kernels = [name for name in ("flash", "efficient", "cudnn") if works[f"--attention {name}"] != "no"]
    quick = ("--size", "tiny", "--ctx", "128", "--steps", "3", "--warmup", "1", "--quiet", "--device", "cuda")
    ran = sysbench("time", *quick, "--precision", ",".join(["fp32", *precisions]), "--out", str(tmp_path / "a"))
    assert ran.code == 0, ran.out + ran.err
    ran = sysbench("time", *quick, "--bf16", "--attention", ",".join(kernels), "--out", str(tmp_path / "b"))
    assert ran.code == 0, ran.out + ran.err


@pytest.mark.alone
def test_joules_of_the_measured_steps_are_mean_power_times_their_time(found: DoctorRecord, tmp_path: Path) -> None:
    if not any(each.energy_j is not None for each in found.nvml.gpus):
        pytest.skip("this GPU counts no energy")
    options = ("--size", "small", "--ctx", "512", "--bf16", "--steps", "100", "--device", "cuda", "--quiet")
    ran = sysbench("time", *options, "--columns", "+energy", "--out", str(tmp_path))
    assert ran.code == 0, ran.err
    (cell,) = record_in(tmp_path)["cells"]
    energy = cell["energy"]
    assert energy["withheld"] is None
    # NVML's own readings of power, taken at the same times, agree with the counter.
    assert energy["power_w"] == pytest.approx(cell["readings"]["power_w"], rel=0.25)
    assert energy["step_j"] * 100 == pytest.approx(energy["power_w"] * energy["window_s"])


@pytest.mark.slow
def test_history_is_one_of_the_costs_where_there_is_an_allocator_to_record(found: DoctorRecord) -> None:
    cost = measure(found.torch.devices[0], 2, discarded_dashboard, lambda done, of: None)
    assert {arm.part for arm in cost.arms} == {"dashboard", "sampler", "history"}
    assert cost.not_measured == {}
