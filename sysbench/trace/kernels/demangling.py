"""Demangling of C++ names (Itanium C++ ABI) by LLVM's demangler, in a process of its own.

Names come from files, and a mangled name of 300 characters can stand for one of gigabytes: the demangler then ends its
process. `python -m sysbench.trace.kernels.demangling` reads one name per line, and answers with one line each.
"""

from __future__ import annotations

import atexit
import re
import sys
from contextlib import ExitStack, suppress
from functools import lru_cache
from typing import IO, Final

from sysbench.trace.readers.reading import start_module

_MANGLED: Final = re.compile(r"(_Z[\w.$]{1,3998}?)(\.kd)?", re.ASCII)
"""A mangled name; AMD appends `.kd` to the names of kernel descriptors."""
_MAX_LENGTH: Final = 4000
"""Maximum length of an answer in characters."""
_MAX_BYTES: Final = 2**30
"""Maximum memory of the process, where the system has such a limit."""
_MAX_FAILURES: Final = 3
"""Number of times that the process may end before all further names stay mangled."""
_MODULE: Final = "sysbench.trace.kernels.demangling"


@lru_cache(maxsize=65_536)
def demangled(name: str) -> str:
    """Return the C++ name that a mangled name stands for; names that are not mangled, or cannot be read, unchanged."""
    mangled = _MANGLED.fullmatch(name)
    return (_PROCESS.answer(mangled[1]) if mangled else "") or name


class _Process:
    """The process that demangles. It is started for the first name."""

    def __init__(self) -> None:
        self._pipes: tuple[IO[bytes], IO[bytes]] | None = None
        self._stack = ExitStack()
        self._failures = 0
        atexit.register(self._stack.close)

    def answer(self, name: str) -> str:
        """Return the demangled name; empty if that is impossible."""
        if self._failures >= _MAX_FAILURES:
            return ""
        line = b""
        with suppress(OSError):
            stdin, stdout = self._pipes = self._pipes or self._start()
            stdin.write(name.encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            self._failures += 1
            self._pipes = None
            with suppress(OSError):
                self._stack.close()
        return line.decode("utf-8", "replace").strip()

    def _start(self) -> tuple[IO[bytes], IO[bytes]]:
        child = self._stack.enter_context(start_module(_MODULE))
        assert child.stdin is not None
        assert child.stdout is not None
        return child.stdin, child.stdout


_PROCESS: Final = _Process()


def _main() -> None:
    import pycxxfilt

    with suppress(ImportError, ValueError, OSError):  # not every system has the limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    for line in sys.stdin:
        found = None
        with suppress(ValueError):
            found = pycxxfilt.itanium_demangle(line.strip())
        sys.stdout.write(f"{(found or '')[:_MAX_LENGTH]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
