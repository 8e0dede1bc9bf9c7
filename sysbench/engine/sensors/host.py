"""Properties of this machine that are available without torch; reading them is fast and raises no errors."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from sysbench.engine.sensors.memory_limits import memory_limits
from sysbench.log.events import HostInfo
from sysbench.package import DIRECTORY

COMMAND_TIMEOUT_S = 0.5
"""Time limit for git and sysctl, which answer within 5 ms unless a file system hangs."""

_CONTAINER_VARIABLES = ("KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "container")

_CONTAINER_FILES = (".dockerenv", "run/.containerenv", "run/systemd/container")


def host_info() -> HostInfo:
    """Return the properties of this machine, the Python version, and the commit of sysbench."""
    root = Path("/")
    return HostInfo(
        hostname=platform.node(),
        platform=platform.platform(),
        python=platform.python_version(),
        cpu=cpu_name(root),
        physical_cores=_physical_cores(),
        logical_cores=os.cpu_count() or 1,
        memory_bytes=_memory_bytes(root),
        container=in_container(root, os.environ),
        commit=commit_of(DIRECTORY),
    )


def cpu_name(root: Path) -> str:
    """Return the processor's model, from /proc/cpuinfo under `root`, sysctl on macOS, or Python's platform module."""
    if sys.platform == "darwin":
        stated = (_output(["sysctl", "-n", "machdep.cpu.brand_string"], dict(os.environ)) or "").strip()
    else:
        stated = _cpu_name_of_linux(root) or ""
    return stated or platform.processor() or platform.machine() or "unknown"


def in_container(root: Path, environment: Mapping[str, str]) -> bool:
    """Whether this process runs in a container, judged by the variables and files that container runtimes leave."""
    return any(map(environment.get, _CONTAINER_VARIABLES)) or any(_exists(root / file) for file in _CONTAINER_FILES)


def commit_of(package: Path) -> str | None:
    """Return the commit of the git checkout that contains `package`, with `-dirty` if tracked files have changed."""
    if not any(_exists(parent / ".git") for parent in package.resolve().parents):
        return None
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    lines = (_git(package, "status", "--porcelain=v2", "--branch", "--untracked-files=no") or "").splitlines()
    head = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    if head == "(initial)":
        return None
    return head + "-dirty" * any(not line.startswith("#") for line in lines)


def _git(directory: Path, *arguments: str) -> str | None:
    # In a git hook the variables name another repository. Without its optional lock, status writes nothing.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return _output(["git", "-C", str(directory), *arguments], {**environment, "GIT_OPTIONAL_LOCKS": "0"})


def _output(command: list[str], environment: dict[str, str]) -> str | None:
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def _cpu_name_of_linux(root: Path) -> str | None:
    """Return the model of the first core. ARM cores have numbers instead: `aarch64, implementer 0x41, part 0xd4f`."""
    core: dict[str, str] = {}
    try:
        # Line by line, because the kernel takes a while to list some hundred cores.
        with (root / "proc/cpuinfo").open(errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                core[name.strip()] = value.strip()
                if not line.strip() or core.get("model name"):
                    break
    except OSError:
        return None
    if core.get("model name"):
        return core["model name"]
    if "CPU implementer" in core and "CPU part" in core:
        return f"{platform.machine()}, implementer {core['CPU implementer']}, part {core['CPU part']}"
    return None


def _physical_cores() -> int | None:
    try:
        return psutil.cpu_count(logical=False)
    except (psutil.Error, OSError):
        return None


def _memory_bytes(root: Path) -> int:
    """Return the physical memory, or the memory limit of this process if it is lower; 0 if unknown."""
    try:
        physical_bytes = int(psutil.virtual_memory().total)
    except (psutil.Error, OSError):
        return 0
    return min([physical_bytes, *(limit.limit_bytes for limit in memory_limits(physical_bytes, root))])


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
