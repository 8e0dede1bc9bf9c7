"""Lines on stderr, as a terminal shows them."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios


def shown_on_a_terminal(line: str, columns: int) -> list[str]:
    """What is written for this line to a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    program = f"from sysbench.stderr import print_line; print_line({line!r})"
    try:
        subprocess.run([sys.executable, "-c", program], stderr=theirs, check=True, timeout=300)
        return os.read(ours, 10_000).decode().splitlines()
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_terminal_breaks_lines_between_words_and_never_within_a_path_or_a_command() -> None:
    path = "runs/2026-11-27T01-50-19-time.json"
    assert shown_on_a_terminal(f"saved  {path}, out.pickle (of ctx 512)", 50) == [
        f"saved  {path},",
        "  out.pickle (of ctx 512)",
    ]
    assert shown_on_a_terminal(f"saved  {path}", 20) == ["saved", f"  {path}"]
    command = f"resume with: sysbench time --resume {path}l"
    assert shown_on_a_terminal(command, 40) == [command]
