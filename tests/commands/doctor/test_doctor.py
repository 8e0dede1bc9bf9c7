"""The doctor's questions: each may fail, hang or crash, and only its own answer is unknown then."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sysbench.commands.doctor import examination, host_survey
from sysbench.commands.doctor.examination import ChildProcess, Examination, NoAnswerError
from sysbench.commands.doctor.gpu_survey import Facts, store_answer
from sysbench.commands.doctor.record import NvmlSection, ToolsSection
from tests.engine.stub_nvml import FIRST, SECOND, Driver, compile_driver
from tests.processes import has_ended

GIB = 2**30

SURVEY = "from sysbench.commands.doctor.gpu_survey import survey\nshow(**survey())"


def program(directory: Path, name: str, script: str) -> Path:
    """An executable shell script."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def answer(command: list[str], limit_s: float = 10.0) -> str:
    child = ChildProcess(command, limit_s)
    try:
        return child.answer()
    finally:
        child.close()


def refusal(command: list[str], limit_s: float = 10.0) -> str:
    with pytest.raises(NoAnswerError) as refused:
        answer(command, limit_s)
    return str(refused.value)


# --- processes that are asked


def test_what_a_child_says_is_its_answer() -> None:
    assert answer(["sh", "-c", "echo chatter >&2; echo said"]) == "said\n"


def test_a_child_that_fails_is_unknown_with_its_last_words(tmp_path: Path) -> None:
    assert refusal(["sh", "-c", "echo first >&2; echo no licence >&2; exit 3"]) == "sh exited with 3: no licence"
    assert refusal(["sh", "-c", "kill -SEGV $$"]).startswith("sh was killed by SIGSEGV")
    assert refusal([str(tmp_path / "nowhere")]) == "nowhere cannot be started: program not found"


def test_a_child_that_hangs_is_given_up_and_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    began_s = time.monotonic()
    assert refusal(["sh", "-c", f"sleep 60 & echo $! $$ > {pids}; wait"], limit_s=0.5) == "no answer within 0.5 s"
    assert time.monotonic() - began_s < 30
    for pid in map(int, pids.read_text().split()):
        assert has_ended(pid)


def test_a_child_that_leaves_its_output_to_a_daemon_has_answered_when_it_ends() -> None:
    assert answer(["sh", "-c", "echo 2024.1; sleep 60 &"], limit_s=30) == "2024.1\n"


def test_an_answer_in_no_encoding_is_an_answer() -> None:
    assert "4.2" in answer(["printf", r"\377\376 version 4.2"])


# --- questions that are answered here


def test_a_question_that_fails_leaves_its_reason_and_the_others_their_answers() -> None:
    facts: Facts = {"unknown": {}}
    assert store_answer(facts, "load", lambda: 1.5) == 1.5
    assert store_answer(facts, "quota", lambda: None) is None
    assert store_answer(facts, "shm", lambda: 1 // 0) is None
    assert facts["unknown"] == {"shm": "integer division or modulo by zero"}


# --- the machine


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


UNIFIED = {
    "proc/self/mountinfo": "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "proc/self/cgroup": "0::/job/step\n",
}
LEGACY = {
    "proc/self/mountinfo": "33 31 0:29 /docker/a /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpuacct,cpu\n",
    "proc/self/cgroup": "4:cpuacct,cpu:/docker/a\n3:memory:/docker/a\n",
}


def test_the_tightest_limit_on_processor_time_counts(tmp_path: Path) -> None:
    quotas = {"sys/fs/cgroup/job/step/cpu.max": "max 100000\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n"}
    assert host_survey.quota_cores(tree(tmp_path, {**UNIFIED, **quotas})) == 1.5


def test_a_limit_of_version_1_is_read_and_minus_one_is_none(tmp_path: Path) -> None:
    place = "sys/fs/cgroup/cpu/cpu.cfs"
    root = tree(tmp_path, {**LEGACY, f"{place}_quota_us": "400000\n", f"{place}_period_us": "100000\n"})
    assert host_survey.quota_cores(root) == 4.0
    tree(root, {f"{place}_quota_us": "-1\n"})
    assert host_survey.quota_cores(root) is None


def test_a_machine_with_nonsense_in_proc_is_surveyed_all_the_same(tmp_path: Path) -> None:
    nonsense = {
        "proc/self/mountinfo": "1 - cgroup2 x\n- cgroup\n\x00\x01\n",
        "proc/self/cgroup": "nonsense\n::::\n0::/a\n",
        "proc/1/cgroup": "\x7fELF",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "\n",
    }
    found = host_survey.survey(tree(tmp_path, nonsense), {"CUDA_VISIBLE_DEVICES": "GPU-\x1b[31m"})
    assert found.usable_cores is not None
    assert found.variables == {"CUDA_VISIBLE_DEVICES": "GPU-\x1b[31m"}
    assert found.cpu_governor is None
    assert set(found.unknown) <= {"quota_cores", "available_bytes", "limit_bytes"}


def test_a_machine_without_proc_is_surveyed_all_the_same(tmp_path: Path) -> None:
    found = host_survey.survey(tmp_path, {})
    assert (found.quota_cores, found.limit_bytes) == (None, None)
    assert found.unknown == {}


# --- tools


def asked(environment: dict[str, str]) -> ToolsSection:
    with Examination(environment) as questions:
        return questions.tools()


def test_programs_that_are_not_there_are_said_not_to_be(tmp_path: Path) -> None:
    found = asked({"PATH": str(tmp_path)})
    assert (found.nsys.path, found.nsys.problem) == (None, "nsys not found on PATH")
    assert found.c_compiler.problem == "neither gcc nor clang found on PATH"
    assert found.cxx_compiler.path is None


def test_an_nsys_that_works_has_a_version(tmp_path: Path) -> None:
    program(tmp_path, "nsys", "echo NVIDIA Nsight Systems version 2024.6.2.225-246235244400v0")
    found = asked({"PATH": f"{tmp_path}{os.pathsep}/bin"}).nsys
    assert (found.path, found.version, found.problem) == (str(tmp_path / "nsys"), "2024.6.2.225", None)


def test_an_nsys_that_fails_or_hangs_is_of_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "nsys", "echo the importer is missing >&2; exit 1")
    path = f"{tmp_path}{os.pathsep}/bin"
    assert asked({"PATH": path}).nsys.problem == "nsys exited with 1: the importer is missing"
    monkeypatch.setattr(examination, "TOOL_TIMEOUT_S", 0.3)
    program(tmp_path, "nsys", "sleep 60")
    assert asked({"PATH": path}).nsys.problem == "no answer within 0.3 s"


def test_a_compiler_that_a_variable_names_must_be_it(tmp_path: Path) -> None:
    """Triton and Inductor take what CC and CXX name, and do not look for another."""
    program(tmp_path, "gcc", "echo gcc 12.2.0")
    found = asked({"PATH": f"{tmp_path}{os.pathsep}/bin", "CC": "icx"}).c_compiler
    assert found.problem == "icx cannot be started: program not found"
    assert asked({"PATH": f"{tmp_path}{os.pathsep}/bin"}).c_compiler.version == "12.2.0"


# --- the allocator's settings


def test_a_typo_in_the_allocators_settings_names_the_nearest() -> None:
    found = asked({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segment:True"})
    assert found.allocator_problem is not None
    assert "Did you mean expandable_segments?" in found.allocator_problem


def test_settings_that_torch_takes_and_we_do_not_simulate_are_no_mistake() -> None:
    found = asked({"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"})
    assert (found.allocator, found.allocator_problem) == ("PYTORCH_ALLOC_CONF=backend:cudaMallocAsync", None)
    assert found.allocator_not_simulated is not None


# --- NVIDIA's driver


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return compile_driver(tmp_path_factory.mktemp("listing_driver"), "LISTED")


def surveyed(driver: Driver, faults: str = "") -> NvmlSection:
    return NvmlSection.model_validate(driver.run(SURVEY, faults=faults))


def test_every_gpu_is_told_with_its_limits_and_those_who_use_it(driver: Driver) -> None:
    found = surveyed(driver, f"pids {os.getpid()} 999999\nreasons 0x4\npower_limit_mw 250000\n")
    assert (found.driver, found.cuda) == ("570.86.15", "12.8")
    assert [state.uuid for state in found.gpus] == [SECOND, FIRST]
    state = found.gpus[1]
    assert (state.name, state.compute_capability) == ("NVIDIA A100-SXM4-80GB", "8.0")
    assert (state.total_bytes, state.free_bytes) == (80 * GIB, 48 * GIB)
    assert (state.sm_clock_hz, state.sm_clock_max_hz) == (1410e6, 1980e6)
    assert (state.power_w, state.power_limit_w, state.power_limit_default_w) == (312.25, 250.0, 400.0)
    assert (state.mig, state.compute_mode) == (False, "default")
    assert state.throttle_reasons == ["sw-power-cap"]
    assert state.energy_j is not None
    assert [(each.pid, each.name is None) for each in state.processes or []] == [(os.getpid(), False), (999999, True)]
    assert state.unknown == {}


def test_what_a_gpu_does_not_tell_is_unknown_and_nothing_else_is(driver: Driver) -> None:
    found = surveyed(driver, "nvmlDeviceGetTotalEnergyConsumption 3\nnvmlDeviceGetMigMode 999\n")
    for state in found.gpus:
        assert set(state.unknown) == {"energy_j", "mig"}
        assert (state.energy_j, state.mig, state.compute_mode) == (None, None, "default")


def test_a_driver_that_loses_its_gpus_between_two_calls_is_no_crash(driver: Driver) -> None:
    found = surveyed(driver, "nvmlDeviceGetHandleByIndex_v2 15 1\n")
    assert found.gpus[0].name == "NVIDIA L4"
    assert found.gpus[1].name is None
    assert "everything" in found.gpus[1].unknown


def test_a_driver_older_than_the_library_says_so(driver: Driver) -> None:
    found = surveyed(driver, "nvmlInitWithFlags 18\n")
    assert found.gpus == []
    assert found.unknown["everything"].startswith("NVML cannot be used: ")


def test_a_machine_without_a_driver_has_no_gpus_and_nothing_unknown(tmp_path: Path) -> None:
    assert surveyed(Driver(tmp_path)) == NvmlSection()


def test_a_library_that_is_none_is_no_driver(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    assert surveyed(Driver(tmp_path)).gpus == []
