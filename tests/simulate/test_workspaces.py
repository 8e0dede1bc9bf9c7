"""Workspaces of cuBLAS, version by version; what is expected was seen with each version on the fake GPU."""

from __future__ import annotations

import pytest
import torch

from sysbench.errors import UnavailableError
from sysbench.simulate.cuda.autocast import CUDA_RULES
from sysbench.simulate.gpu import Gpu, Workspaces, refuse_fp8
from sysbench.simulate.platform import Platform
from sysbench.simulate.recorder import Recorder
from sysbench.simulate.tensors import DEVICE, SimulatedDevice
from sysbench.spec.hardware import by_name

MIB = 2**20
SMALL, LARGE = 8_519_680, 32 * MIB
CACHE = {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}


@pytest.mark.parametrize(
    ("version", "major", "environment", "expected"),
    [
        ((2, 11), 8, {}, Workspaces(SMALL, MIB, True)),
        ((2, 11), 9, {}, Workspaces(LARGE, MIB, True)),
        ((2, 11), 9, {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}, Workspaces(LARGE, None, True)),
        ((2, 12), 12, {}, Workspaces(LARGE, None, True)),
        ((2, 13), 11, {}, Workspaces(SMALL, None, True)),
        ((2, 14), 11, {}, Workspaces(LARGE, None, True)),
        ((2, 15), 9, {}, Workspaces(LARGE, MIB, False)),
        ((2, 15), 7, {}, Workspaces(SMALL, MIB, False)),
        ((2, 15), 9, CACHE, Workspaces(LARGE, None, True)),
        ((2, 15), 9, {"CUBLASLT_WORKSPACE_SIZE": "2048"}, Workspaces(LARGE, 2 * MIB, False)),
        ((2, 15), 9, {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}, Workspaces(SMALL, MIB, False)),
        ((2, 14), 9, {"CUBLAS_WORKSPACE_CONFIG": ":1024:3"}, Workspaces(3 * MIB, None, True)),
        ((2, 15), 9, {"CUBLAS_WORKSPACE_CONFIG": "large"}, Workspaces(LARGE, MIB, False)),
        ((3, 0), 9, {}, Workspaces(LARGE, MIB, False)),
    ],
)
def test_sizes_and_lifetimes(
    version: tuple[int, int], major: int, environment: dict[str, str], expected: Workspaces
) -> None:
    assert Workspaces.of(major, version, environment) == expected


def _requests(workspaces: Workspaces) -> list[int]:
    """What two products and an addition of a bias request, without their results; negative: freed."""
    recorder = Recorder(Platform({}, CUDA_RULES, {}, workspaces), SimulatedDevice, None)
    with recorder.device:
        matrix, bias = torch.empty(16, 16, device=DEVICE), torch.empty(16, device=DEVICE)
        first = recorder.count
        results = [matrix @ matrix, torch.addmm(bias, matrix, matrix), matrix @ matrix]
        recorder.device.stop()
    recording = recorder.recording()
    numbered = [(event, recording.allocations[max(event, ~event)].size_bytes) for event in recording.events]
    own = results[0].numel() * 4
    return [size if event >= 0 else -size for event, size in numbered if max(event, ~event) >= first and size != own]


def test_each_product_has_its_workspace_or_a_thread_keeps_one() -> None:
    assert _requests(Workspaces(LARGE, MIB, False)) == [LARGE, -LARGE, MIB, -MIB, LARGE, -LARGE]
    assert _requests(Workspaces(LARGE, MIB, True)) == [LARGE, MIB]
    assert _requests(Workspaces(LARGE, None, True)) == [LARGE]
    assert _requests(Workspaces(0, MIB, False)) == [MIB, -MIB]


def test_amd_gpus_have_the_workspaces_of_hipblas() -> None:
    """CublasHandlePool.cpp, USE_ROCM: 128 MiB for gfx94x and gfx95x, else 32; hipBLASLt has 76 MiB of its own."""
    sizes = {slug: Gpu.of(by_name(slug)).workspaces for slug in ("mi210", "mi300x", "mi355x")}
    assert [each.product_bytes // MIB for each in sizes.values()] == [32, 128, 128]
    assert {each.lt_bytes for each in sizes.values()} == {76 * MIB}
    assert Gpu.of(by_name("a100-80gb")).workspaces != sizes["mi210"]


def test_fp8_is_refused_on_amd_gpus_as_not_modelled() -> None:
    with pytest.raises(UnavailableError, match="not modelled on AMD GPUs"):
        refuse_fp8("fp8", Gpu.of(by_name("mi300x")))
