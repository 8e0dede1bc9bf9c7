"""What will work on a machine, why not, and what would help."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from sysbench.commands.doctor import screen as doctor_screen
from sysbench.commands.doctor.advice import advice
from sysbench.commands.doctor.capabilities import prospects, supports_capability
from sysbench.commands.doctor.record import (
    DoctorRecord,
    GpuProcess,
    Machine,
    NvmlSection,
    Prospect,
    Tool,
    TorchSection,
)
from tests import doctor_machines as machines
from tests.golden.compare import assert_golden, plain_environment

__all__ = ["plain_environment"]


def outlook(facts: Machine) -> dict[str, Prospect]:
    found = prospects(facts)
    assert len({each.what for each in found}) == len(found)
    return {each.what: each for each in found}


def works(facts: Machine) -> dict[str, str]:
    return {what: each.works for what, each in outlook(facts).items()}


def replace(facts: Machine, **sections: Any) -> Machine:
    return facts.model_copy(update=sections)


def with_torch(facts: Machine, **changes: Any) -> Machine:
    return replace(facts, torch=facts.torch.model_copy(update=changes))


def with_host(facts: Machine, **changes: Any) -> Machine:
    return replace(facts, host=facts.host.model_copy(update=changes))


def with_gpu(facts: Machine, **changes: Any) -> Machine:
    (state,) = facts.nvml.gpus
    return replace(facts, nvml=facts.nvml.model_copy(update={"gpus": [state.model_copy(update=changes)]}))


def with_tools(facts: Machine, **changes: Any) -> Machine:
    return replace(facts, tools=facts.tools.model_copy(update=changes))


def test_on_a_sound_gpu_machine_only_what_is_not_installed_does_not_work() -> None:
    found = works(machines.SOUND)
    assert {what for what, each in found.items() if each == "no"} == {"attention --impl flash-attn"}
    partly = {what for what, each in found.items() if each == "partly"}
    assert partly == {"--attention flash", "--attention cudnn", "time --ranks"}  # of one GPU
    assert advice(machines.SOUND) == []


def test_whatever_does_not_work_says_why() -> None:
    for facts in (machines.SOUND, machines.CPU_ALONE, machines.POOR, NOTHING):
        for each in prospects(facts):
            assert each.reason, each.what
            assert "None" not in each.reason + (each.remedy or ""), each


def test_without_a_gpu_everything_measures_on_the_cpu() -> None:
    found = works(machines.CPU_ALONE)
    assert all(found[command] == "yes" for command in ("time, attention, accum", "memory", "profile"))
    assert found["--precision bf16"] == "yes"
    for what in ("--device cuda", "--precision fp16", "--precision tf32", "profile --with nsys", "--columns +energy"):
        assert found[what] == "no", what


NOTHING = machines.CPU_ALONE.model_copy(
    update={"torch": TorchSection(unknown={"everything": "torch cannot be imported: ImportError: libcudart.so.13"})}
)


def test_without_a_torch_nothing_measures_and_simulations_know_their_settings() -> None:
    assert NOTHING.device is None
    found = outlook(NOTHING)
    assert found["whatever measures"].works == "no"
    assert "libcudart.so.13" in found["whatever measures"].reason


@pytest.mark.parametrize(
    ("facts", "reason", "remedy"),
    [
        (
            replace(machines.SOUND, torch=machines.CPU_TORCH),
            "NVIDIA H100 80GB HBM3 is present, but this torch (2.13.0+cpu) is built without CUDA",
            "install a CUDA build",
        ),
        (
            with_host(with_torch(machines.SOUND, devices=[machines.CPU]), variables={"CUDA_VISIBLE_DEVICES": "-1"}),
            "CUDA_VISIBLE_DEVICES='-1' hides all GPUs",
            "unset it",
        ),
        (
            replace(
                with_torch(machines.SOUND, devices=[machines.CPU]),
                nvml=machines.NVML.model_copy(update={"driver": "535.1", "cuda": "12.2"}),
            ),
            "driver 535.1 supports CUDA 12.2, and this torch needs 13.0",
            "update the driver",
        ),
        (
            with_torch(machines.SOUND, devices=[machines.CPU], cuda_problem="RuntimeError: CUDA unknown error"),
            "RuntimeError: CUDA unknown error",
            "nvidia-smi",
        ),
        (
            with_torch(machines.SOUND, devices=[machines.gpu("Tesla V100-SXM2-16GB", "7.0"), machines.CPU]),
            "Tesla V100-SXM2-16GB has compute capability 7.0, but this torch only has kernels for sm_75, sm_80",
            "install a build of torch for this GPU",
        ),
        (
            with_gpu(machines.SOUND, compute_mode="prohibited"),
            "the GPU's compute mode is prohibited",
            "nvidia-smi -c DEFAULT",
        ),
        (
            with_gpu(
                machines.SOUND,
                compute_mode="exclusive-process",
                processes=[GpuProcess(pid=1, used_bytes=None, name=None)],
            ),
            "the GPU is in use and accepts only one process",
            "wait",
        ),
        (
            with_tools(
                machines.SOUND,
                allocator="PYTORCH_CUDA_ALLOC_CONF=expandable_segment:True",
                allocator_problem="expandable_segment is not an allocator option. Did you mean expandable_segments?",
            ),
            "torch will refuse PYTORCH_CUDA_ALLOC_CONF=expandable_segment:True: expandable_segment is not",
            "correct or unset it",
        ),
    ],
)
def test_why_cuda_cannot_be_used_is_told_apart(facts: Machine, reason: str, remedy: str) -> None:
    found = outlook(facts)["--device cuda"]
    assert found.works == "no"
    assert found.reason.startswith(reason)
    assert (found.remedy or "").startswith(remedy)


def test_a_gpu_that_runs_nothing_stops_what_would_run_on_it() -> None:
    facts = with_gpu(machines.SOUND, compute_mode="prohibited")
    assert outlook(facts)["whatever measures"].works == "no"
    assert "--device cpu" in (outlook(facts)["whatever measures"].remedy or "")


@pytest.mark.parametrize(
    ("archs", "capability", "expected"),
    [
        (["sm_80"], "8.0", True),
        (["sm_80"], "8.9", True),  # the same major version, a later minor one
        (["sm_86"], "8.0", False),
        (["sm_80"], "9.0", False),
        (["sm_80", "compute_80"], "9.0", True),  # translated when it is loaded
        (["sm_90a"], "9.0", True),
        (["sm_90a"], "9.1", False),
        (["sm_100"], "10.0", True),
        (["sm_120"], "12.1", True),
        (["gfx90a", "sm_", ""], "9.0", False),
    ],
)
def test_which_gpus_a_build_has_kernels_for(archs: list[str], capability: str, expected: bool) -> None:
    assert supports_capability(archs, capability) is expected


def test_an_older_gpu_has_what_it_has_tensor_cores_for() -> None:
    turing = with_torch(machines.SOUND, devices=[machines.gpu("NVIDIA T4", "7.5"), machines.CPU])
    found = outlook(turing)
    assert (found["--precision fp16"].works, found["--precision bf16"].works) == ("yes", "partly")
    assert "no tensor cores" in found["--precision bf16"].reason
    pascal = with_torch(machines.SOUND, archs=["sm_61"], devices=[machines.gpu("Tesla P40", "6.1"), machines.CPU])
    assert outlook(pascal)["--compile"].works == "no"
    assert "7.0" in outlook(pascal)["--compile"].reason


def test_compiling_needs_all_of_its_tools() -> None:
    def refused(facts: Machine) -> str:
        found = outlook(facts)["--compile"]
        assert found.works == "no"
        assert outlook(facts)["--attention flex"].works == ("no" if facts.gpu else "partly")
        return found.reason

    none = Tool(path=None, version=None, problem="neither gcc nor clang found on PATH")
    assert "Triton, which generates GPU kernels, is not installed" in refused(with_torch(machines.SOUND, triton=None))
    assert "neither gcc nor clang" in refused(with_tools(machines.SOUND, c_compiler=none))
    assert works(with_tools(machines.CPU_ALONE, c_compiler=none))["--compile"] == "yes"  # there it takes g++
    assert "Python.h" in refused(with_tools(machines.CPU_ALONE, python_headers=None))
    off = with_host(machines.SOUND, variables={"TORCHDYNAMO_DISABLE": "1"})
    assert refused(off).startswith("TORCHDYNAMO_DISABLE=1")


def test_kernels_that_torch_did_not_tell_of_are_unknown_and_not_missing() -> None:
    facts = with_torch(
        machines.SOUND, attention_kernels={}, unknown={"attention_kernels": "OutOfMemoryError: CUDA out of memory"}
    )
    assert outlook(facts)["--attention flash"].works == "unknown"
    assert "out of memory" in outlook(facts)["--attention flash"].reason


def test_energy_needs_the_counter_of_the_very_gpu_that_torch_uses() -> None:
    assert works(machines.SOUND)["--columns +energy"] == "yes"
    assert works(with_gpu(machines.SOUND, energy_j=None))["--columns +energy"] == "no"
    assert works(with_gpu(machines.SOUND, uuid="GPU-another"))["--columns +energy"] == "no"
    without_nvml = outlook(replace(machines.SOUND, nvml=NvmlSection()))["--columns +energy"]
    assert (without_nvml.works, "libnvidia-ml.so.1" in without_nvml.reason) == ("no", True)
    # torch leaves the prefix out.
    bare = machines.gpu().model_copy(update={"uuid": machines.UUID.removeprefix("GPU-")})
    assert works(with_torch(machines.SOUND, devices=[bare, machines.CPU]))["--columns +energy"] == "yes"


def test_what_spoils_measurements_is_said_with_its_remedy() -> None:
    found = advice(machines.POOR)
    said = " | ".join(each.message for each in found)
    for word in ("CUDA_LAUNCH_BLOCKING", "in use by others", "hw-thermal", "350 W", "12.0 GiB", "load average 6.2"):
        assert word in said, word
    for word in ("64 threads", "powersave", "in every process"):
        assert word in said, word


# --- the screen


def screen(facts: Machine, width: int, encoding: str = "utf-8") -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=out, width=width, color_system=None)
    parts = [
        doctor_screen.section("machine", facts.host, ("bench",)),
        doctor_screen.section("NVIDIA's driver", facts.nvml),
        doctor_screen.section("tools", facts.tools),
        doctor_screen.section("torch", facts.torch),
        doctor_screen.prospects(prospects(facts)),
        doctor_screen.advice(advice(facts)),
    ]
    for part in parts:
        console.print(part)
    out.seek(0)
    return out.read()


def test_a_machine_on_which_much_is_amiss() -> None:
    shown = screen(machines.POOR, 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert_golden("doctor_poor_80", shown)


def test_a_machine_without_a_gpu() -> None:
    assert_golden("doctor_cpu_80", screen(machines.CPU_ALONE, 80))


def test_names_from_outside_are_shown_and_not_obeyed() -> None:
    shown = screen(machines.POOR, 120)
    assert "[bold]python[/]" in shown
    assert "\x1b" not in shown


def test_a_terminal_without_utf_8_gets_plain_characters() -> None:
    screen(machines.POOR, 80, "ascii").encode("ascii")


def test_the_record_survives_its_json() -> None:
    facts = machines.POOR
    record = DoctorRecord(**dict(facts), at="2026-11-20T14:03:11Z", prospects=prospects(facts), advice=advice(facts))
    assert DoctorRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize(
    ("gpus", "backends", "cores", "works", "reason"),
    [
        (0, ["gloo"], 2, "yes", "gloo, over 2 cores"),
        (0, ["gloo"], 1, "partly", "gloo, over 1 core"),
        (0, [], 2, "no", "this torch has no gloo"),
        (1, ["gloo", "nccl 2.28.9"], 8, "partly", "needs a device for each rank, but from cuda:0 on there is 1"),
        (2, ["gloo", "nccl 2.28.9"], 8, "yes", "NCCL 2.28.9, over 2 GPUs"),
        (2, ["gloo"], 8, "partly", "this torch has no nccl"),
    ],
)
def test_ranks_need_a_way_to_communicate_and_a_gpu_each(
    gpus: int, backends: list[str], cores: int, works: str, reason: str
) -> None:
    facts = machines.SOUND if gpus else machines.CPU_ALONE
    devices = [*[machines.gpu()] * gpus, machines.CPU]
    facts = replace(
        facts,
        torch=facts.torch.model_copy(update={"devices": devices, "backends": backends}),
        host=facts.host.model_copy(update={"usable_cores": cores}),
    )
    (found,) = (each for each in prospects(facts) if each.what == "time --ranks")
    assert found.works == works
    assert reason in found.reason
