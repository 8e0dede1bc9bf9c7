"""What becomes of processes that a test has started."""

import time
from pathlib import Path

HANG_S = 300.0
"""How long to wait for a process before it counts as hung: no machine is so slow that a test needs it."""


def has_ended(pid: int, patience_s: float = HANG_S) -> bool:
    """Whether a process is gone, or a zombie that only waits for its parent, within this time."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False
