"""Building the driver around the installed PyTorch, and speaking with it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fake_gpu.build import NotAvailableError, first_of, site_packages
from tests.simulate.allocator_calls import Call

SOURCES = Path(__file__).parent


@dataclass(frozen=True)
class CompiledRun:
    """What PyTorch's allocator did.

    addresses  of each `a` call, None for out of memory
    counters   after each call: current and peak of allocated, requested and reserved bytes, of segments and
               allocations; alloc retries, ooms
    snapshot   at the end, in the format of `torch.cuda.memory._snapshot()`
    """

    addresses: list[int | None]
    counters: list[tuple[int, ...]]
    snapshot: dict[str, Any]


def build(directory: Path) -> CompiledAllocator:
    """Compile the driver into `directory`; raises NotAvailableError with the reason if that is not possible here."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise NotAvailableError("no g++")
    site = site_packages()
    libraries = site / "torch" / "lib"
    if not (libraries / "libc10_cuda.so").exists():
        raise NotAvailableError("the installed PyTorch is built without CUDA")
    runtime = first_of(site.glob("nvidia/*/lib/libcudart.so.*"), "CUDA runtime")
    headers = first_of(site.glob("nvidia/*/include/cuda_runtime_api.h"), "CUDA headers").parent
    # Parts of the CUDA headers come with the compiler only; Triton brings a whole set.
    host_config = [
        *site.glob("nvidia/*/include/crt/host_config.h"),
        *site.glob("triton/backends/nvidia/include/crt/host_config.h"),
    ]
    more_headers = first_of(host_config, "complete set of CUDA headers").parents[1]
    driver = directory / "driver"
    subprocess.run(
        [
            *(compiler, "-std=c++20", "-O1", "-w", "-rdynamic", "-o", driver, SOURCES / "driver.cpp"),
            *(f"-I{path}" for path in (site / "torch" / "include", headers, more_headers)),
            *(f"-L{libraries}", "-lc10_cuda", "-lc10", runtime),
            *(f"-Wl,-rpath,{path}" for path in (libraries, runtime.parent)),
        ],
        check=True,
    )
    nvml = directory / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", nvml, SOURCES / "nvml.cpp", f"-Wl,-soname,{nvml.name}"], check=True
    )
    version = next(site.glob("torch-*.dist-info")).name.removeprefix("torch-")
    return CompiledAllocator(driver, ".".join(version.split(".")[:2]))


@dataclass(frozen=True)
class CompiledAllocator:
    """The driver, ready to run; every run is a process of its own, so that settings and state are fresh."""

    driver: Path
    torch: str
    """Minor version of PyTorch."""

    def run(self, calls: Sequence[Call], settings: str, capacity_bytes: int) -> CompiledRun:
        """Make the calls on a device of `capacity_bytes` under these `PYTORCH_CUDA_ALLOC_CONF` settings."""
        ran = subprocess.run(
            [self.driver, str(capacity_bytes)],
            input="".join(" ".join(map(str, call)) + "\n" for call in calls),
            env={"PYTORCH_CUDA_ALLOC_CONF": settings, "LD_LIBRARY_PATH": str(self.driver.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode != 0:
            raise RuntimeError(f"the compiled allocator failed ({ran.returncode}): {ran.stderr[-2000:]}")
        return _read([line.split() for line in ran.stdout.splitlines()])


def _read(lines: list[list[str]]) -> CompiledRun:
    kinds: dict[str, list[list[str]]] = {}
    segments: list[dict[str, Any]] = []
    for kind, *words in lines:
        kinds.setdefault(kind, []).append(words)
        if kind == "g":
            segments.append(_segment(words))
        elif kind == "b":
            segments[-1]["blocks"].append(_block(segments[-1], words))
    return CompiledRun(
        addresses=[int(words[0]) if kind == "a" else None for kind, *words in lines if kind in ("a", "o")],
        counters=[tuple(map(int, words)) for words in kinds.get("s", [])],
        snapshot={
            "segments": segments,
            "device_traces": [[_entry(words, index) for index, words in enumerate(kinds.get("t", []))]],
            "allocator_settings": _settings(" ".join(kinds["c"][0]), kinds["d"][0]),
            "external_annotations": [],
        },
    )


def _segment(words: list[str]) -> dict[str, Any]:
    address, total, allocated, active, requested, stream, is_large, is_expandable = map(int, words)
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "allocated_size": allocated,
        "active_size": active,
        "requested_size": requested,
        "stream": stream,
        "segment_type": "large" if is_large else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": bool(is_expandable),
        "frames": [],
        "blocks": [],
    }


def _block(segment: dict[str, Any], words: list[str]) -> dict[str, Any]:
    size, requested, allocated = map(int, words)
    return {
        "address": segment["address"] + sum(block["size"] for block in segment["blocks"]),
        "size": size,
        "requested_size": requested,
        "state": "active_allocated" if allocated else "inactive",
        "frames": [],
    }


def _entry(words: list[str], index: int) -> dict[str, Any]:
    action, address, size, stream = words
    return {
        "action": action,
        "device_free" if action == "oom" else "addr": int(address),
        "size": int(size),
        "stream": int(stream),
        "time_us": index,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": (0, 0),
        "frames": [],
    }


def _settings(text: str, words: list[str]) -> dict[str, Any]:
    max_split, threshold, is_expandable, *divisions = words
    return {
        "PYTORCH_CUDA_ALLOC_CONF": text,
        "max_split_size": int(max_split),
        "garbage_collection_threshold": float(threshold),
        "expandable_segments": is_expandable == "1",
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "roundup_power2_divisions": {str(2**interval): int(number) for interval, number in enumerate(divisions)},
    }
