"""Workspaces of cuBLAS and cuBLASLt, as each version of PyTorch allocates them.

Sources: aten/src/ATen/cuda/CublasHandlePool.cpp (parseChosenWorkspaceSize, getCUDABlasLtWorkspace,
getCurrentCUDABlasHandleWithWorkspace) and native/cuda/Blas.cpp of PyTorch 2.11 to 2.15. The allocations of each version
were observed on a stand-in for the device (tests/fake_gpu). Later versions are assumed to behave like 2.15.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

KIB = 1024

_DEFAULT_BYTES = 2 * 4096 * KIB + 8 * 16 * KIB
_LARGE_BYTES = 8 * 4096 * KIB
_LT_KIB = 1024
_NEWEST_KNOWN = (2, 15)
_CONFIGURATION = re.compile(r":([0-9]+):([0-9]+)")


@dataclass(frozen=True)
class Workspaces:
    """Sizes of workspaces, and how long they live.

    product_bytes  for a product by cuBLAS
    lt_bytes       for a product by cuBLASLt; None if cuBLASLt uses the workspace of cuBLAS
    are_kept       whether each thread keeps those of its first product for ever; otherwise each product has its own
    """

    product_bytes: int
    lt_bytes: int | None
    are_kept: bool

    @classmethod
    def of(
        cls, major: int, torch: tuple[int, int] | None = None, environment: Mapping[str, str] | None = None
    ) -> Workspaces:
        """Return the workspaces on a GPU of compute capability `major`.

        torch        version of PyTorch; by default, of the installed one
        environment  variables that PyTorch reads; by default, of this process
        """
        torch = torch or installed_torch()
        environment = os.environ if environment is None else environment
        product_bytes = _product_bytes(major, torch, environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
        is_kept = torch < (2, 15) or environment.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"
        shared = environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0" if torch < (2, 12) else "1") == "1"
        lt_kib = environment.get("CUBLASLT_WORKSPACE_SIZE", "")
        lt_bytes = (int(lt_kib) if lt_kib.isdecimal() else _LT_KIB) * KIB
        return cls(product_bytes, None if is_kept and shared else lt_bytes, is_kept)


def followed_torch() -> str:
    """Return the version of PyTorch that simulations follow: the installed one, or the newest known one."""
    return ".".join(map(str, min(installed_torch(), _NEWEST_KNOWN)))


@cache
def installed_torch() -> tuple[int, int]:
    """Return (major, minor) of the installed PyTorch, without importing it."""
    major, minor = version("torch").split(".")[:2]
    return int(major), int(minor)


def _product_bytes(major: int, torch: tuple[int, int], configuration: str) -> int:
    """Return the size that `configuration` asks for, as :KIB:COUNT:KIB:COUNT…, or the default of the GPU."""
    asked = _CONFIGURATION.findall(configuration)
    if asked:
        return sum(int(kib) * KIB * int(count) for kib, count in asked)
    # Versions before 2.14 do not know Thor (11).
    is_large = major in (9, 10, 12) or (major == 11 and torch >= (2, 14))
    return _LARGE_BYTES if is_large else _DEFAULT_BYTES
