"""Reads a large file of Kineto's JSON in several processes, one part each.

Boundaries between events are only certain when read from the beginning. Each part therefore begins where an event seems
to begin, and all parts are accepted if each ends exactly where the next one begins. If one does not, or if a process
fails, the file is read sequentially.

`python -m …kineto_parts FILE BEGIN [END]` writes the content of a part to standard output: a `Part`, followed by its
rows, one stretch at a time.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import IO, Final

import msgspec

from sysbench.trace.packed import Stretch
from sysbench.trace.readers.kineto_columns import Columns, Found
from sysbench.trace.readers.kineto_pieces import Blocks, Pieces, boundary
from sysbench.trace.readers.reading import Progress, in_silence, process, processors, tell, told

PART_BYTES: Final = 64 * 1024**2
"""Smallest part that is worth a separate process."""
OWN_HEAD_BYTES: Final = 32 * 1024**2
"""Bytes that the first process reads while the others start."""
MOST_PARTS: Final = 4
"""Largest number of processes: each needs 80 MB of memory in addition to its results."""


_THIS: Final = "sysbench.trace.readers.kineto_parts"


class Part(msgspec.Struct):
    """The result of one process."""

    found: Found
    whole: bool
    """Whether the part ends at the end of an event."""
    remarks: list[str]


def read(path: Path, file: IO[bytes], begin: int, progress: Progress = in_silence) -> tuple[Columns, list[str]] | None:
    """Read the events from a byte on; None if the file is too small for parts, or if the parts do not match."""
    cuts = _cuts(file, begin, os.fstat(file.fileno()).st_size)
    try:
        return _read(path, file, begin, cuts, progress) if cuts else None
    except (OSError, EOFError, msgspec.MsgspecError):
        # A process failed, or could not be started. If the file is at fault, sequential reading will report it.
        return None


def _read(
    path: Path, file: IO[bytes], begin: int, cuts: list[tuple[int, int]], progress: Progress
) -> tuple[Columns, list[str]] | None:
    columns = Columns()
    with ExitStack() as stack:
        ends = [*([str(end)] for end, _ in cuts[1:]), []]
        running = [
            stack.enter_context(process(_THIS, str(path.absolute()), str(first), *end))
            for (_, first), end in zip(cuts, ends, strict=True)
        ]
        own = Pieces(Blocks(file, begin, cuts[0][0]), columns, taken_bytes=begin, progress=progress)
        if not own.to_the_cut():
            return None
        for number, started in enumerate(running, 1):
            messages = told(started)
            part = msgspec.msgpack.decode(next(messages, b""), type=Part)
            rows = (msgspec.msgpack.decode(message, type=tuple[str, Stretch]) for message in messages)
            if not (part.whole or number == len(running)) or not columns.join(part.found, rows):
                return None
            remarks = part.remarks
    return columns, remarks


def _cuts(file: IO[bytes], begin: int, end: int) -> list[tuple[int, int]]:
    """Return the boundaries of the parts: where one ends, and where the next one begins."""
    parts = min(processors(), MOST_PARTS, (end - begin) // PART_BYTES)
    shared = begin + (OWN_HEAD_BYTES if parts > 1 else 0)
    found = [boundary(file, shared + (end - shared) * number // parts) for number in range(1, parts)]
    cuts = [cut for cut in found if cut is not None]
    return cuts if all(one[1] < other[0] for one, other in pairwise(cuts)) else []


def _main(path: str, begin: str, end: str | None = None) -> None:
    gc.disable()
    columns = Columns()
    with Path(path).open("rb") as file:
        pieces = Pieces(Blocks(file, int(begin), int(end) if end else None), columns, taken_bytes=int(begin))
        if end:
            whole = pieces.to_the_cut()
        else:
            whole = False
            pieces.to_the_end()
    tell(msgspec.msgpack.encode(Part(columns.found(), whole, pieces.remarks)))
    for rows in columns.rows():
        tell(msgspec.msgpack.encode(rows))


if __name__ == "__main__":
    _main(*sys.argv[1:])
