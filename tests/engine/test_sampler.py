from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sysbench.engine.sensors import sampler as sampler_room
from sysbench.engine.sensors.memory_limits import memory_limits
from sysbench.engine.sensors.sampler import Sampler
from sysbench.engine.sensors.worker_tree import WorkerTree
from sysbench.log.events import DeviceInfo

CPU = DeviceInfo(name="a CPU", type="cpu")
MPS = DeviceInfo(name="Apple M2", type="mps")
GIB = 2**30


@pytest.fixture
def sampler() -> Sampler:
    return Sampler(clock=lambda: 42.0)


def test_a_reading_says_what_the_host_does_and_nothing_of_a_gpu_it_does_not_use(sampler: Sampler) -> None:
    sampler.use(CPU)
    reading = sampler.read(17.0)
    assert reading.at_s == 17.0
    assert reading.host_available_bytes is not None
    on_device = ("device_used_bytes", "device_utilisation", "sm_clock_hz", "power_w", "temperature_c", "energy_j")
    assert [getattr(reading, name) for name in on_device] == [None] * len(on_device)
    assert (reading.throttle_reasons, reading.other_processes) == (None, None)
    assert sampler.failures() == []


def test_without_a_worker_its_memory_is_unknown_and_not_zero(sampler: Sampler) -> None:
    sampler.watch()
    assert sampler.read(1.0).host_rss_bytes is None


def test_a_worker_is_followed_until_it_is_gone(sampler: Sampler) -> None:
    program = [sys.executable, "-c", "print('ready', flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        sampler.watch(worker.pid)
        assert (sampler.read(1.0).host_rss_bytes or 0) > 1_000_000
        worker.kill()
        worker.wait()
        assert sampler.read(2.0).host_rss_bytes is None
        sampler.watch(worker.pid)
        assert sampler.read(3.0).host_rss_bytes is None
    assert sampler.failures() == []


def test_the_load_of_others_is_known_after_a_first_look_and_unknown_again_with_a_new_worker(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_room, "LISTING_S", 0.0)
    monkeypatch.setattr(sampler_room, "LISTING_SHARE", 1e9)
    assert sampler.read(1.0).host_cpu_share is None
    time.sleep(0.1)
    share = sampler.read(2.0).host_cpu_share
    assert share is not None
    assert 0 <= share <= 1
    sampler.watch()
    time.sleep(0.1)
    assert sampler.read(3.0).host_cpu_share is None
    time.sleep(0.1)
    assert sampler.read(4.0).host_cpu_share is not None


def test_who_belongs_to_the_worker_is_looked_up_rarely(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = 0
    list_members = WorkerTree.list_members

    def counted(tree: WorkerTree) -> None:
        nonlocal listed
        listed += 1
        list_members(tree)

    monkeypatch.setattr(WorkerTree, "list_members", counted)
    began_s = time.monotonic()
    for at_s in range(100):
        sampler.read(float(at_s))
    assert 1 <= listed <= 1 + (time.monotonic() - began_s) / sampler_room.LISTING_S


def test_an_expensive_listing_is_done_more_rarely_still(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[float] = []
    monkeypatch.setattr(WorkerTree, "list_members", lambda tree: (listed.append(time.monotonic()), time.sleep(0.02)))
    monkeypatch.setattr(sampler_room, "LISTING_S", 0.0)
    monkeypatch.setattr(sampler_room, "LISTING_SHARE", 0.1)
    while len(listed) < 3:
        sampler.read(0.0)
    # The fixture's own tree was made before; each of these took 20 ms, a tenth of what lies between them.
    assert listed[1] - listed[0] >= 0.2
    assert listed[2] - listed[1] >= 0.2


def test_free_memory_of_a_cpu_is_what_the_host_has_available(sampler: Sampler) -> None:
    available = psutil.virtual_memory().available
    for device in (CPU, MPS):
        free = sampler.free_bytes(device)
        assert free is not None
        assert free <= available + GIB


def test_a_containers_limit_bounds_what_is_available(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (group / "memory.max").write_text(str(GIB // 8))
    (group / "memory.current").write_text(str(GIB // 16))
    (group / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    monkeypatch.setattr(sampler_room, "memory_limits", lambda physical: memory_limits(physical, tmp_path))
    assert sampler.free_bytes(CPU) == GIB // 16
    assert sampler.read(1.0).host_available_bytes == GIB // 16
    (group / "memory.current").write_text(str(GIB // 32))
    assert sampler.free_bytes(CPU) == GIB // 8 - GIB // 32


def test_a_closed_sampler_stays_closed(sampler: Sampler) -> None:
    sampler.close()
    sampler.close()
    assert sampler.driver is None
    assert sampler.failures() == []
