"""NVML through the real pynvml, against a stand-in for the library with faults on demand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.engine.stub_nvml import FIRST, INSTANCE, SECOND, Driver, compile_driver

GIB = 2**30


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def no_driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


@pytest.fixture(scope="session")
def both_read(driver: Driver) -> dict[str, Any]:
    """Both GPUs read once, the second under CUDA's index 0."""
    program = """
    readings = {}
    for index, uuid in enumerate((SECOND, FIRST)):
        sampler.use(gpu(uuid, index))
        readings[uuid] = sampler.read(1.0).model_dump()
    show(driver=sampler.driver, readings=readings, lost=lost(sampler))
    """
    return driver.run(program, faults="reasons 0x4\n")


def test_a_gpu_is_found_by_its_uuid_whatever_its_index(both_read: dict[str, Any]) -> None:
    first, second = both_read["readings"][FIRST], both_read["readings"][SECOND]
    assert (first["sm_clock_hz"], second["sm_clock_hz"]) == (1410e6, 1200e6)
    assert (first["device_used_bytes"], second["device_used_bytes"]) == (30 * GIB, 5 * GIB)


def test_everything_the_driver_tells_is_read_in_base_units(both_read: dict[str, Any]) -> None:
    reading = both_read["readings"][FIRST]
    expected = {
        "device_used_bytes": 30 * GIB,  # without the 2 GiB that the driver keeps
        "device_utilisation": 0.97,
        "sm_clock_hz": 1410e6,
        "power_w": 312.25,
        "temperature_c": 61.0,
        "energy_j": 1.5,
        "throttle_reasons": ["sw-power-cap"],
        "other_processes": None,
    }
    assert {name: reading[name] for name in expected} == expected
    assert (both_read["driver"], both_read["lost"]) == ("570.86.15", [])


def test_a_uuid_is_understood_as_torch_writes_it(driver: Driver) -> None:
    """torch leaves the prefix out, for a whole GPU and for a MIG instance alike; devices are called GPU-… then."""
    program = """
    sampler.use(gpu(FIRST.removeprefix("GPU-")))
    whole = sampler.read(1.0)
    sampler.use(gpu(INSTANCE.removeprefix("MIG-"), 1))
    instance = sampler.read(2.0)
    sampler.use(gpu("GPU-" + INSTANCE.removeprefix("MIG-"), 1))
    called = sampler.read(3.0)
    show(whole=whole.device_used_bytes, instance=instance.device_used_bytes, called=called.device_used_bytes)
    """
    assert driver.run(program) == {"whole": 30 * GIB, "instance": 3 * GIB, "called": 3 * GIB}


def test_a_mig_instance_has_its_own_memory_and_its_boards_clock(driver: Driver) -> None:
    program = """
    sampler.use(gpu(INSTANCE))
    show(reading=sampler.read(1.0).model_dump(), lost=lost(sampler), again=sampler.read(2.0) and lost(sampler))
    """
    shown = driver.run(program)
    reading = shown["reading"]
    assert (reading["device_used_bytes"], reading["sm_clock_hz"], reading["temperature_c"]) == (3 * GIB, 1410e6, 61.0)
    # Power of the whole board is not the instance's.
    assert (reading["power_w"], reading["energy_j"], reading["device_utilisation"]) == (None, None, None)
    assert {source for source, _ in shown["lost"]} == {"NVML power", "NVML energy", "NVML utilisation"}
    assert shown["again"] == []
    assert INSTANCE.startswith("MIG-")


def test_an_instance_is_found_where_cuda_reports_the_uuid_of_its_gpu(driver: Driver) -> None:
    program = """
    def used(visible):
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
        sampler = Sampler()
        sampler.use(gpu(FIRST))
        return sampler.read(1.0).device_used_bytes, [detail for _, detail in lost(sampler) if "instances" in detail]

    control("mig 0")
    whole = used("")
    control("mig 1")
    show(whole=whole, named=used("MIG-55555555-aaaa-bbbb-cccc-000000000005"), unnamed=used(""))
    """
    shown = driver.run(program)
    assert (shown["whole"], shown["named"]) == ([30 * GIB, []], [8 * GIB, []])
    used_bytes, (reason,) = shown["unnamed"]
    assert used_bytes is None
    assert reason.startswith(f"{FIRST} is divided into MIG instances: name the one to use, CUDA_VISIBLE_DEVICES=MIG-")


def test_what_disturbs_any_rank_is_seen(driver: Driver) -> None:
    program = """
    found = {}
    for ranks in ((FIRST,), (FIRST, SECOND)):
        sampler.use(gpu(ranks[0]), [gpu(each, 1) for each in ranks[1:]])
        reading = sampler.read(1.0)
        power_w, throttling = reading.power_w, reading.throttle_reasons
        found[len(ranks)] = (power_w, throttling, sampler.count_other_processes())
    show(**{str(ranks): each for ranks, each in found.items()}, lost=lost(sampler))
    """
    shown = driver.run(program, faults=f"reasons:GPU-22222222 0x4\npids:GPU-22222222 {os.getpid()}\n")
    assert shown == {"1": [312.25, [], 0], "2": [312.25, ["sw-power-cap"], 1], "lost": []}


def test_an_unsupported_call_leaves_one_field_unknown_and_is_reported_once(driver: Driver) -> None:
    functions = {
        "nvmlDeviceGetPowerUsage": ("power_w", "NVML power"),
        "nvmlDeviceGetTotalEnergyConsumption": ("energy_j", "NVML energy"),
        "nvmlDeviceGetUtilizationRates": ("device_utilisation", "NVML utilisation"),
        "nvmlDeviceGetClockInfo": ("sm_clock_hz", "NVML SM clock"),
        "nvmlDeviceGetCurrentClocksThrottleReasons": ("throttle_reasons", "NVML throttle reasons"),
    }
    program = f"""
    results = []
    for function in {list(functions)}:
        control(function + " 3")
        sampler = Sampler()
        sampler.use(gpu(FIRST))
        readings = [sampler.read(at_s).model_dump(exclude={{"host_rss_bytes", "host_cpu_share", "other_processes"}})
                    for at_s in (1.0, 2.0, 3.0)]
        unknown = [[name for name, value in reading.items() if value is None] for reading in readings]
        results.append((unknown, lost(sampler)))
        sampler.close()
    show(results=results)
    """
    shown = driver.run(program)
    assert shown["results"] == [[[[field]] * 3, [[source, "Not Supported"]]] for field, source in functions.values()]
    assert driver.calls("nvmlDeviceGetPowerUsage") == 1 + 3 * (len(functions) - 1)


def test_an_answer_never_changes_its_meaning_in_mid_run(driver: Driver) -> None:
    """The older memory call counts the driver's own share as used: falling back on it would look like a leak."""
    program = """
    sampler.use(gpu(FIRST))
    show(used=[sampler.read(float(turn)).device_used_bytes for turn in range(4)], lost=lost(sampler))
    """
    shown = driver.run(program, faults="nvmlDeviceGetMemoryInfo_v2 3 2\n")
    assert shown["used"] == [30 * GIB, 30 * GIB, None, None]
    assert shown["lost"] == [["NVML memory", "Not Supported"]]


def test_a_gpu_that_is_lost_in_mid_run_is_reported_once_and_the_rest_goes_on(driver: Driver) -> None:
    program = """
    sampler.use(gpu(FIRST))
    sampler.watch(os.getpid())
    before = sampler.read(1.0).model_dump()
    control("nvmlDeviceGetMemoryInfo_v2 15", "nvmlDeviceGetPowerUsage 15", "nvmlDeviceGetClockInfo 15")
    after = [sampler.read(at_s).model_dump() for at_s in (2.0, 3.0)]
    failures = [failure.model_dump() for failure in sampler.failures()]
    free = sampler.free_bytes(gpu(FIRST))
    others = sampler.count_other_processes()
    control()
    sampler.use(gpu(SECOND, 1))
    other_gpu = sampler.read(4.0).device_used_bytes
    sampler.close()
    show(before=before, after=after, failures=failures, late=lost(sampler), other_gpu=other_gpu, free=free,
         others=others)
    """
    shown = driver.run(program)
    assert shown["before"]["power_w"] == 312.25
    on_device = ("device_used_bytes", "device_utilisation", "sm_clock_hz", "power_w", "energy_j", "throttle_reasons")
    for reading in shown["after"]:
        assert [reading[name] for name in on_device] == [None] * len(on_device)
        assert reading["host_rss_bytes"] > 0
        assert reading["host_available_bytes"] > 0
    assert [(failure["source"], failure["detail"]) for failure in shown["failures"]] == [("NVML", "GPU is lost")]
    assert (shown["late"], shown["free"], shown["others"]) == ([], None, None)
    assert shown["other_gpu"] == 5 * GIB


def test_a_machine_without_a_driver_is_an_ordinary_machine(no_driver: Driver, driver: Driver) -> None:
    program = """
    sampler.use(gpu(FIRST))
    reading = sampler.read(1.0)
    show(driver=sampler.driver, used=reading.device_used_bytes, available=reading.host_available_bytes,
         free=sampler.free_bytes(gpu(FIRST)), others=sampler.count_other_processes(), lost=lost(sampler),
         imported="pynvml" in sys.modules)
    """
    without_library = no_driver.run(program)
    driver_not_loaded = driver.run(program, faults="nvmlInitWithFlags 9\n")
    for shown in (without_library, driver_not_loaded):
        assert shown["available"] > 0
        assert [shown[name] for name in ("driver", "used", "free", "others")] == [None] * 4
        assert shown["lost"] == []
    assert not without_library["imported"]


def test_a_driver_that_was_updated_under_the_library_is_reported(driver: Driver) -> None:
    program = """
    first, second = sampler.driver, sampler.driver
    sampler.use(gpu(FIRST))
    reading = sampler.read(1.0)
    sampler.close()
    show(driver=[first, second], used=reading.device_used_bytes, lost=lost(sampler))
    """
    shown = driver.run(program, faults="nvmlInitWithFlags 18\n")
    assert (shown["driver"], shown["used"]) == ([None, None], None)
    assert shown["lost"] == [["NVML", "RM has detected an NVML/RM version mismatch."]]
    assert driver.calls("nvmlShutdown") == 0


def test_a_gpu_that_nvml_does_not_know_is_reported_once(driver: Driver) -> None:
    program = """
    stranger, nameless = gpu("99999999-aaaa-bbbb-cccc-000000000009"), gpu(None, 1)
    for device in (stranger, nameless) * 2:
        sampler.use(device)
        sampler.read(1.0)
        sampler.free_bytes(device)
    show(lost=lost(sampler))
    """
    assert driver.run(program)["lost"] == [
        ["NVML", "no GPU 99999999-aaaa-bbbb-cccc-000000000009: Not Found"],
        ["NVML", "cuda:1 has no UUID to find it by"],
    ]


def test_what_was_initialised_is_shut_down_once(driver: Driver) -> None:
    program = """
    for device in (FIRST, SECOND, "GPU-none"):
        sampler.use(gpu(device))
        sampler.read(1.0)
    sampler.close()
    sampler.close()
    show(used=sampler.read(2.0).device_used_bytes, driver=sampler.driver)
    """
    assert driver.run(program) == {"used": None, "driver": None}
    assert (driver.calls("nvmlInitWithFlags"), driver.calls("nvmlShutdown")) == (1, 1)


def test_a_driver_that_goes_away_can_still_be_closed(driver: Driver) -> None:
    program = """
    sampler.use(gpu(FIRST))
    sampler.close()
    show(lost=lost(sampler))
    """
    assert driver.run(program, faults="nvmlShutdown 1\n") == {"lost": []}


def test_a_run_on_the_cpu_leaves_the_driver_alone(driver: Driver) -> None:
    program = """
    cpu = DeviceInfo(name="a CPU", type="cpu")
    sampler.use(cpu)
    sampler.read(1.0)
    show(free=sampler.free_bytes(cpu), others=sampler.count_other_processes(), imported="pynvml" in sys.modules)
    """
    shown = driver.run(program)
    assert shown["free"] > 0
    assert (shown["others"], shown["imported"]) == (None, False)
    assert driver.calls("nvmlInitWithFlags") == 0


def test_throttle_reasons_are_words_and_idleness_is_none_of_them(driver: Driver) -> None:
    program = """
    sampler.use(gpu(FIRST))
    words = {}
    for bits in (0, *(1 << position for position in range(12)), 0x61):
        control(f"reasons {bits}")
        words[bits] = sampler.read(1.0).throttle_reasons
    show(words=words)
    """
    assert driver.run(program)["words"] == {
        "0": [],
        "1": [],
        "2": ["applications-clocks"],
        "4": ["sw-power-cap"],
        "8": ["hw-slowdown"],
        "16": ["sync-boost"],
        "32": ["sw-thermal"],
        "64": ["hw-thermal"],
        "128": ["hw-power-brake"],
        "256": ["display-clocks"],
        "512": ["board-limit"],
        "1024": ["reliability"],
        "2048": ["reason-0x800"],
        "97": ["sw-thermal", "hw-thermal"],
    }


COUNT = """
sampler.use(gpu(FIRST))
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
stranger = os.getppid()
nobody = 2**22 + 1  # above the largest process id that Linux gives
sampler.watch(worker.pid)
counts = {}
for name, pids in {
    "nothing": [],
    "ours": [os.getpid(), worker.pid],
    "a stranger": [worker.pid, stranger],
    "host pids": [nobody, nobody + 1],
    "hidden": [0],
    "a stranger that ended": [worker.pid, nobody],
}.items():
    control("pids " + " ".join(map(str, pids)))
    counts[name] = sampler.count_other_processes()
worker.kill()
worker.wait()
sampler.watch()
control(f"pids {worker.pid}")
counts["our worker that ended"] = sampler.count_other_processes()
show(counts=counts, lost=lost(sampler))
"""


def test_other_processes_are_counted_only_when_their_numbers_mean_something_here(driver: Driver) -> None:
    shown = driver.run(COUNT)
    assert shown["counts"] == {
        "nothing": 0,
        "ours": 0,
        "a stranger": 1,
        "host pids": None,
        "hidden": None,
        "a stranger that ended": 0,
        "our worker that ended": 0,
    }
    assert shown["lost"] == []


def test_a_process_list_that_is_refused_is_unknown_and_reported_once(driver: Driver) -> None:
    program = """
    sampler.use(gpu(FIRST))
    show(counts=[sampler.count_other_processes() for _ in range(2)], lost=lost(sampler))
    """
    shown = driver.run(program, faults="nvmlDeviceGetComputeRunningProcesses_v3 4\n")
    assert shown == {"counts": [None, None], "lost": [["NVML processes", "Insufficient Permissions"]]}


def test_reading_and_asking_what_is_free_never_list_processes(driver: Driver) -> None:
    """The list takes milliseconds under a lock of the driver: it has no place beside a measurement."""
    program = """
    sampler.use(gpu(FIRST))
    sampler.read(1.0)
    sampler.read(2.0)
    show(first=sampler.free_bytes(gpu(FIRST)), second=sampler.free_bytes(gpu(SECOND, 1)))
    """
    shown = driver.run(program)
    assert driver.calls("nvmlDeviceGetComputeRunningProcesses_v3") == 0
    assert driver.calls("nvmlDeviceGetPowerUsage") == 2
    # Free is what nobody uses and the driver does not keep.
    assert shown == {"first": 48 * GIB, "second": 18 * GIB}
