"""Which allocations are workspaces of cuBLAS, in anyone's trace: their size and their lifetime tell.

Until torch 2.14, each thread and stream allocates one at its first matrix product and never releases it: one for the
thread that runs forward, and one for autograd's. From torch 2.15 on, each product allocates one and releases it at once
(pytorch#194311), unless TORCH_CUBLAS_WORKSPACE_CACHE=1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]

DEFAULT_BYTES: Final = 8_519_680
"""Size of a workspace by default (parseChosenWorkspaceSize in ATen/cuda/CublasHandlePool.cpp)."""
LARGE_BYTES: Final = 33_554_432
"""Size of a workspace on Hopper and Blackwell. Parameters and activations often have this size too."""
_LARGE_MAJORS: Final = frozenset({9, 10, 12})
_THOR: Final = 11
"""Major compute capability that PyTorch knows since 2.14."""
_CONFIGURATION: Final = re.compile(r":([0-9]{1,9}):([0-9]{1,9})")
MOST_PER_STREAM: Final = 2
"""Maximum number of workspaces that are kept for a stream: for the thread of forward, and for autograd's."""


def workspace_bytes(major: int, torch: tuple[int, int], environment: Mapping[str, str]) -> int:
    """Return the size of a workspace on a GPU of compute capability `major`.

    torch        version of PyTorch
    environment  variables that PyTorch reads: CUBLAS_WORKSPACE_CONFIG asks for another size, as :KIB:COUNT:KIB:COUNT…
    """
    asked = _CONFIGURATION.findall(environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if asked:
        return sum(int(kib) * 1024 * int(count) for kib, count in asked)
    return LARGE_BYTES if major in _LARGE_MAJORS or (major == _THOR and torch >= (2, 14)) else DEFAULT_BYTES


def are_kept_workspaces(
    is_candidate: npt.NDArray[np.bool_], stream: Column, most: int = MOST_PER_STREAM
) -> npt.NDArray[np.bool_]:
    """Return which candidates, given in order of allocation, are kept workspaces: the first ones of each stream.

    Candidates are allocations with the size of a workspace that are never released, and nothing else for certain. Where
    the threads of a stream are known, `stream` tells them apart, and `most` is 1.
    """
    found = np.zeros(len(is_candidate), np.bool_)
    for each in np.unique(stream[is_candidate]):
        found[np.flatnonzero(is_candidate & (stream == each))[:most]] = True
    return found


def are_momentary(born: Column, died: Column) -> npt.NDArray[np.bool_]:
    """Return which allocations are released by the event after their own, as a product's own workspace is."""
    return np.asarray(died == born + 1)
