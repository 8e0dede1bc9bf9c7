"""NVML beside a real GPU: `pytest -m gpu`. CUDA lives in child processes, as it does in a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sysbench.engine.sensors.sampler import Sampler
from sysbench.log.events import DeviceInfo
from sysbench.spec import hardware

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

GIB = 2**30
MIB = 2**20

ENUMERATE = """
import json, torch
properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
print(json.dumps([{"name": p.name, "uuid": str(p.uuid), "memory_bytes": p.total_memory} for p in properties]))
"""
HOLD = """
import sys, torch
device = f"cuda:{sys.argv[1]}"
torch.zeros(1, device=device)
torch.cuda.synchronize(device)
print("context", flush=True)
input()
held = torch.ones(2**28, dtype=torch.float32, device=device)
torch.cuda.synchronize(device)
print("held", flush=True)
input()
"""
WORK = """
import sys, time, torch
device = f"cuda:{sys.argv[1]}"
matrix = torch.randn(4096, 4096, device=device, dtype=torch.float16)
product = matrix @ matrix
torch.cuda.synchronize(device)
print("working", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    for _ in range(50):
        torch.matmul(matrix, matrix, out=product)
    torch.cuda.synchronize(device)
"""


def cuda_devices(visible: str | None = None) -> list[dict[str, Any]]:
    """What torch sees, in its order, with CUDA_VISIBLE_DEVICES set to `visible`."""
    done = subprocess.run(
        [sys.executable, "-c", ENUMERATE], env=environment(visible), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def environment(visible: str | None) -> dict[str, str]:
    return {**os.environ, **({"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {})}


@pytest.fixture(scope="module")
def devices() -> list[dict[str, Any]]:
    found = cuda_devices()
    if not found:
        pytest.skip("torch sees no CUDA device here")
    return found


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    sampler = Sampler()
    yield sampler
    sampler.close()


@contextmanager
def child(program: str, index: int, visible: str | None = None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(index)],
        env=environment(visible),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == word


def proceed(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def info(device: dict[str, Any], index: int) -> DeviceInfo:
    return DeviceInfo(type="cuda", index=index, **device)


def used_bytes(sampler: Sampler, device: DeviceInfo) -> int:
    sampler.use(device)
    used = sampler.read(time.time()).device_used_bytes
    assert used is not None, sampler.failures()
    return used


def arrangements(count: int) -> dict[str, str | None]:
    """Ways to number the devices, as values of CUDA_VISIBLE_DEVICES."""
    set_before = os.environ.get("CUDA_VISIBLE_DEVICES")
    numbers = set_before.split(",") if set_before else [str(index) for index in range(count)]
    return {"as they are": None, "reversed": ",".join(reversed(numbers)), "the last alone": numbers[-1]}


@pytest.mark.parametrize("arrangement", ["as they are", "reversed", "the last alone"])
def test_memory_grows_on_the_device_that_allocates_however_cuda_numbers_it(
    devices: list[dict[str, Any]], sampler: Sampler, arrangement: str
) -> None:
    visible = arrangements(len(devices))[arrangement]
    seen = cuda_devices(visible)
    everything = [info(device, index) for index, device in enumerate(devices)]
    for index, device in enumerate(seen):
        with child(HOLD, index, visible) as holder:
            expect(holder, "context")
            before = {other.uuid: used_bytes(sampler, other) for other in everything}
            proceed(holder)
            expect(holder, "held")
            growth = {other.uuid: used_bytes(sampler, other) - before[other.uuid] for other in everything}
        assert GIB <= growth.pop(device["uuid"]) <= GIB + 64 * MIB
        assert all(abs(grown) <= 64 * MIB for grown in growth.values())


def test_the_whole_of_the_memory_is_what_torch_sees_and_what_the_driver_keeps(
    devices: list[dict[str, Any]], sampler: Sampler
) -> None:
    for index, device in enumerate(devices):
        free, used = sampler.free_bytes(info(device, index)), used_bytes(sampler, info(device, index))
        assert free is not None
        assert 0 < free <= device["memory_bytes"]
        assert free + used == pytest.approx(device["memory_bytes"], rel=0.03)


def test_a_gpu_at_work_is_seen_at_work(devices: list[dict[str, Any]], sampler: Sampler) -> None:
    sampler.use(info(devices[0], 0))
    idle = sampler.read(time.time())
    with child(WORK, 0) as worker:
        expect(worker, "working")
        sampler.watch(worker.pid)
        readings = []
        for _ in range(25):
            readings.append(sampler.read(time.time()))
            time.sleep(sampler.interval_s)
    unsupported = {failure.source for failure in sampler.failures()}
    first, last = readings[0], readings[-1]
    if "NVML energy" not in unsupported:
        energies = [reading.energy_j for reading in (idle, *readings) if reading.energy_j is not None]
        assert energies == sorted(energies)
        mean_w = (energies[-1] - energies[1]) / (last.at_s - first.at_s)
        assert 10 < mean_w < 3000
    if "NVML power" not in unsupported:
        assert 10 < (last.power_w or 0) < 3000
    if "NVML utilisation" not in unsupported:
        assert 0.5 < (last.device_utilisation or 0) <= 1
    if "NVML SM clock" not in unsupported:
        assert 100e6 < (last.sm_clock_hz or 0) < 5e9
    if "NVML temperature" not in unsupported:
        assert 10 < (last.temperature_c or 0) < 120
    if "NVML throttle reasons" not in unsupported:
        assert last.throttle_reasons is not None
    assert (last.device_used_bytes or 0) > (idle.device_used_bytes or 0)
    assert (last.host_rss_bytes or 0) > 100 * MIB
    assert sampler.driver


def test_our_own_worker_is_not_another_process(devices: list[dict[str, Any]], sampler: Sampler) -> None:
    """In a container the driver's process ids may mean nothing: then the count stays unknown."""
    sampler.use(info(devices[0], 0))
    before = sampler.count_other_processes()
    with child(HOLD, 0) as worker:
        expect(worker, "context")
        sampler.watch(worker.pid)
        assert sampler.count_other_processes() in (None, before)


def test_the_profile_of_this_gpu_fits_what_cuda_reports(devices: list[dict[str, Any]]) -> None:
    card = hardware.find(devices[0]["name"], devices[0]["memory_bytes"])
    if card is None:
        pytest.skip(f"{devices[0]['name']} is not a known GPU")
    assert card.memory_bytes == pytest.approx(devices[0]["memory_bytes"], rel=0.02)


def test_a_reading_is_cheap_beside_its_interval(devices: list[dict[str, Any]], sampler: Sampler) -> None:
    """Shown with -s rather than asserted: how long is a matter of the machine."""
    sampler.use(info(devices[0], 0))
    sampler.read(time.time())
    began_s = time.perf_counter()
    for _ in range(200):
        sampler.read(time.time())
    print(f"a reading takes {(time.perf_counter() - began_s) / 200 * 1e6:.0f} µs")
    assert sampler.read(time.time()).device_used_bytes is not None
