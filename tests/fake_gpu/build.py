"""Builds the libraries of the fake GPU for an installed PyTorch, with the headers that its wheels bring."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SITE_PACKAGES_VARIABLE = "SYSBENCH_TEST_CUDA_SITE_PACKAGES"
"""Names the site-packages of another environment, whose PyTorch was built with CUDA."""

SOURCES = Path(__file__).parent / "native"

_PARTS = ("device", "runtime", "driver", "blas", "cudnn", "cupti")
_CALLERS = ("c10_cuda", "torch_cuda", "torch_python", "torch_cpu", "caffe2_nvrtc")
"""Libraries of PyTorch that ask for CUDA's functions."""

_OF_CUDA = re.compile(r"(cuda|cublas|cublasLt|cudnn|cu|cupti)[A-Z]\w*")
_NOT_FAKED = re.compile(r"cuFile[A-Z]")
_NOT_SUPPORTED = {"cublas": 15, "cudnn": 3000, "cupti": 27}
"""What each library calls "not supported", by the beginning of a function's name; the runtime and driver say 801."""


class NotAvailableError(Exception):
    """Why nothing can be built here."""


@dataclass(frozen=True)
class CudaBuild:
    """An installed PyTorch that was built with CUDA, and what is needed to compile for it.

    site       site-packages
    headers    directories of headers, those of the CUDA runtime first
    runtime    libcudart, and the soname of NVRTC
    """

    site: Path
    compiler: str
    headers: tuple[Path, ...]
    runtime: Path
    nvrtc_soname: str

    @property
    def libraries(self) -> Path:
        """PyTorch's own."""
        return self.site / "torch" / "lib"

    @classmethod
    def installed(cls) -> CudaBuild:
        """Find it; raises NotAvailableError with the reason if nothing can be compiled for it here."""
        if sys.platform != "linux":
            raise NotAvailableError("the fake GPU needs Linux")
        compiler = shutil.which("g++")
        if compiler is None or shutil.which("nm") is None:
            raise NotAvailableError("no g++ to build the fake GPU")
        site = site_packages()
        if not (site / "torch" / "lib" / "libc10_cuda.so").exists():
            raise NotAvailableError("the installed PyTorch is built without CUDA")
        # Parts of the CUDA headers come with the compiler only; Triton brings a whole set.
        complete = [
            *site.glob("nvidia/*/include/crt/host_config.h"),
            *site.glob("triton/backends/nvidia/include/crt/host_config.h"),
        ]
        headers = (
            first_of(site.glob("nvidia/*/include/cuda_runtime_api.h"), "CUDA headers").parent,
            first_of(site.glob("nvidia/*/include/cudnn_backend.h"), "cuDNN headers").parent,
            first_of(complete, "complete set of CUDA headers").parents[1],
        )
        runtime = first_of(site.glob("nvidia/*/lib/libcudart.so.*"), "CUDA runtime")
        nvrtc = first_of(site.glob("nvidia/*/lib/libnvrtc.so.*"), "NVRTC")
        return cls(site, compiler, headers, runtime, nvrtc.name)

    def compile(self, *words: str | Path, optimization: str = "-O1") -> subprocess.Popen[bytes]:
        """Start the compiler."""
        headers = [f"-I{path}" for path in self.headers]
        return subprocess.Popen([self.compiler, "-std=c++20", optimization, "-fPIC", "-w", *headers, *words])

    def key(self) -> str:
        """What changes when what would be built does."""
        digest = hashlib.sha256(str(self).encode())
        for path in sorted(SOURCES.iterdir()):
            digest.update(path.read_bytes())
        digest.update(Path(__file__).read_bytes())
        digest.update((self.site / "torch" / "version.py").read_bytes())
        return digest.hexdigest()[:16]


def site_packages() -> Path:
    chosen = os.environ.get(SITE_PACKAGES_VARIABLE)
    if chosen:
        return Path(chosen)
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        raise NotAvailableError("PyTorch is not installed")
    return Path(torch.submodule_search_locations[0]).parent


def first_of(paths: Iterable[Path], what: str) -> Path:
    found = next(iter(sorted(paths)), None)
    if found is None:
        raise NotAvailableError(f"no {what} beside the installed PyTorch")
    return found


def build(cache: Path) -> Path:
    """Build everything below `cache`, unless that has been done there; return the directory of the libraries.

    Several processes may do this at once. Raises NotAvailableError with the reason if nothing can be built here.
    """
    cuda = CudaBuild.installed()
    directory = cache / cuda.key()
    directory.mkdir(parents=True, exist_ok=True)
    done = directory / "done"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of when it is closed
        if not done.exists():
            _build(cuda, directory)
            done.touch()
    return directory


def _build(cuda: CudaBuild, directory: Path) -> None:
    objects = {part: directory / f"{part}.o" for part in (*_PARTS, "missing")}
    _finish(*(cuda.compile("-c", SOURCES / f"{part}.cpp", "-o", objects[part]) for part in _PARTS))
    _write_missing(cuda, [objects[part] for part in _PARTS], directory / "missing.cpp")
    _finish(
        cuda.compile("-c", directory / "missing.cpp", "-o", objects["missing"]),
        cuda.compile(
            *("-shared", SOURCES / "nvrtc.cpp", "-o", directory / "libnvrtc.so", f"-Wl,-soname,{cuda.nvrtc_soname}")
        ),
        build_nvml(directory, "LISTED"),
    )
    library = directory / "libfakegpu.so"
    # Of that soname, every later dlopen of the driver finds this library.
    _finish(cuda.compile("-shared", *objects.values(), "-o", library, "-Wl,-soname,libcuda.so.1", "-ldl"))
    for name in ("libcuda.so", "libcuda.so.1"):  # where Triton links against the driver, see FakeGpu.environment
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(library.name)


def build_nvml(directory: Path, *defines: str) -> subprocess.Popen[bytes]:
    """Start to build the stand-in for NVIDIA's management library; raises NotAvailableError if that cannot be."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        raise NotAvailableError("needs Linux and a C compiler to build the stand-in for libnvidia-ml")
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *(f"-D{name}" for name in defines)]
    return subprocess.Popen([compiler, *options, "-o", directory / "libnvidia-ml.so.1", SOURCES / "libnvidia-ml.c"])


def _finish(*started: subprocess.Popen[bytes]) -> None:
    for process in started:
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, process.args)


def _symbols(*words: str | Path) -> set[str]:
    listed = subprocess.run(["nm", *words], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines() if line and not line.endswith(":")}


def _write_missing(cuda: CudaBuild, objects: Sequence[Path], path: Path) -> None:
    """Write a function for everything that PyTorch asks of CUDA and nobody has defined: it says "not supported"."""
    defined = _symbols("--defined-only", *objects)
    asked: set[str] = set()
    for name in _CALLERS:
        asked |= _symbols("-D", "--undefined-only", cuda.libraries / f"lib{name}.so")
    lines = ["namespace fake { void unknown(const char*); }"]
    for name in sorted(asked - defined):
        if _OF_CUDA.fullmatch(name) and not _NOT_FAKED.match(name):
            code = next((code for start, code in _NOT_SUPPORTED.items() if name.startswith(start)), 801)
            lines.append(f'extern "C" int {name}() {{ fake::unknown("{name}"); return {code}; }}')
    path.write_text("\n".join(lines) + "\n")
