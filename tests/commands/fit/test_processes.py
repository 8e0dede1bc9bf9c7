"""Tasks in processes: each strand gets its own results, in parallel, and nothing that fails is lost."""

from __future__ import annotations

import signal
import time
from pathlib import Path

# Each script runs in a Python process of its own, because a process that has run autograd cannot fork one that can.
PRELUDE = """
    import os, signal, time
    from functools import partial
    from sysbench.errors import UnavailableError
    from sysbench.commands.fit.search.processes import Processes, Task

    def square(number):
        return number**2

    def refuse(reason):
        raise UnavailableError(reason)

    def differentiate():
        import torch
        weight = torch.ones(4, requires_grad=True)
        (weight * 3).sum().backward()
        return weight.grad.sum().item()

    def die():
        if os.getpid() != STARTED:
            os.kill(os.getpid(), signal.SIGKILL)
        return "survived"

    STARTED = os.getpid()
"""


def said(script: str) -> str:
    pids = [int(each) for each in said(script, -signal.SIGKILL).split()]
    assert len(pids) == 2
    deadline_s = time.monotonic() + 30
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether the process has not ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
