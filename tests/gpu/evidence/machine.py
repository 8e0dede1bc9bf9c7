"""What GPU, what driver and which versions: asked in processes of their own, so that nothing here imports torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sysbench import __version__
from sysbench.spec import hardware
from tests.gpu.evidence.work import ROOT

ASK = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": None}
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    found["cudnn"] = torch.backends.cudnn.version()
    found["gpu"] = {"name": p.name, "memory_bytes": p.total_memory, "compute_capability": f"{p.major}.{p.minor}",
                    "multiprocessors": p.multi_processor_count, "devices": torch.cuda.device_count()}
print(json.dumps(found))
"""


@cache
def torch_facts() -> dict[str, Any]:
    """What torch says; raises CalledProcessError where it cannot be imported."""
    ran = subprocess.run([sys.executable, "-c", ASK], check=True, capture_output=True, text=True, timeout=180)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def facts() -> dict[str, Any]:
    """Everything that a number from here has to be read with."""
    return {
        **torch_facts(),
        "driver": _driver(),
        "triton": _version("triton"),
        "numpy": _version("numpy"),
        "python": platform.python_version(),
        "cpu_cores": os.cpu_count(),
        "sysbench": __version__,
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def find_card() -> hardware.Hardware | None:
    """The known GPU that this one is, or None."""
    gpu = torch_facts()["gpu"]
    return gpu and hardware.find(gpu["name"], gpu["memory_bytes"])


def simulated_as() -> str:
    """What `--simulate` calls this GPU, or one with its memory."""
    card = find_card()
    return card.slug if card else f"{torch_facts()['gpu']['memory_bytes'] // 2**20}MiB"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None:
        return None
    words = [nvidia_smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = ran.stdout.split()
    return lines[0] if ran.returncode == 0 and lines else None


def _commit() -> str | None:
    words = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() or None
