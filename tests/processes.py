"""What becomes of processes that a test has started."""

import time
from pathlib import Path


def has_ended(pid: int, patience_s: float = 5.0) -> bool:
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
