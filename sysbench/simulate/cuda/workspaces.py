"""Workspaces of cuBLAS and cuBLASLt, as each version of PyTorch allocates them.

Sources: aten/src/ATen/cuda/CublasHandlePool.cpp (parseChosenWorkspaceSize, getCUDABlasLtWorkspace,
getCurrentCUDABlasHandleWithWorkspace) and native/cuda/Blas.cpp of PyTorch 2.11 to 2.15. The allocations of each version
were observed on a stand-in for the device (tests/fake_gpu). Later versions are assumed to behave like 2.15.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sysbench.simulate.followed import installed_torch
from sysbench.trace.workspaces import workspace_bytes

KIB = 1024

_LT_KIB = 1024


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
        """Return the workspaces on a GPU of compute capability `major`."""
        torch = torch or installed_torch()
        environment = os.environ if environment is None else environment
        product_bytes = workspace_bytes(major, torch, environment)
        is_kept = torch < (2, 15) or environment.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"
        shared = environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0" if torch < (2, 12) else "1") == "1"
        lt_kib = environment.get("CUBLASLT_WORKSPACE_SIZE", "")
        lt_bytes = (int(lt_kib) if lt_kib.isdecimal() else _LT_KIB) * KIB
        return cls(product_bytes, None if is_kept and shared else lt_bytes, is_kept)
