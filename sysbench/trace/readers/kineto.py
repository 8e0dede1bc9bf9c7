"""Reads traces of torch.profiler: Kineto's JSON, plain or gzipped, of any size.

The file is read in pieces, of which only columns are kept; several processes read a large file. The format is Chrome's
trace events ("Trace Event Format", the Chromium project) as libkineto writes it (output_json.cpp).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import IO, Any, Final

from sysbench.errors import LogError
from sysbench.garbage import collection_paused
from sysbench.trace.packed import Recording
from sysbench.trace.readers import kineto_parts
from sysbench.trace.readers.kineto_columns import Columns
from sysbench.trace.readers.kineto_pieces import GZIP, LONE_SURROGATE, Blocks, Pieces
from sysbench.trace.readers.reading import Progress, in_silence

_HEADER_BYTES: Final = 16 * 1024**2
"""The header is smaller than this; a file without events in its first bytes is not a trace."""
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE: Final = re.compile(rb"\s*\[(?=\s*(\{|\]|$))")
"""Chrome's other form: a plain list of events."""


def is_kineto(beginning: bytes) -> bool:
    """Whether the first bytes of a file may be JSON, plain or gzipped."""
    return beginning[:2] == GZIP or beginning.lstrip()[:1] in (b"{", b"[")


def read(path: Path, progress: Progress = in_silence) -> Recording:
    """Read a file; raises LogError if it is not a trace, or an empty one."""
    try:
        with path.open("rb") as file, collection_paused():
            return _read(path, file, progress)
    except FileNotFoundError:
        raise LogError(f"cannot read {path}: no such file") from None
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror or error}") from error


def _read(path: Path, file: IO[bytes], progress: Progress) -> Recording:
    blocks = Blocks(file)
    before, buffer = _header(path, blocks)
    position = file.tell()
    in_parts = None if blocks.is_packed else kineto_parts.read(path, file, len(before), progress)
    if in_parts is not None:
        columns, remarks = in_parts
    else:
        columns = Columns()
        file.seek(position)
        pieces = Pieces(blocks, columns, buffer, len(before), progress)
        pieces.to_the_end()
        remarks = pieces.remarks
    if columns.is_empty:
        why = f": {'; '.join(remarks)}" if remarks else ""
        raise LogError(f"{path} holds no events that last{why}")
    header, defects = _decoded_header(before)
    return columns.recording(path.name, header, [*defects, *remarks])


def _header(path: Path, blocks: Blocks) -> tuple[bytes, bytes]:
    """Return the bytes before the first event, and the bytes after it that have been read already."""
    buffer = b""
    while len(buffer) < _HEADER_BYTES and (block := blocks.next()):
        buffer += block
        begin = _BARE.match(buffer) or _EVENTS.search(buffer)
        if begin is not None:
            return buffer[: begin.end()], buffer[begin.end() :]
    if not buffer.strip():
        raise LogError(f"{path} is empty")
    raise LogError(f"{path} is not a trace of torch.profiler: it has no traceEvents")


def _decoded_header(text: bytes) -> tuple[dict[str, Any], list[str]]:
    """Return what stands before the events, and a remark if it is damaged."""
    if _BARE.match(text):
        return {}, []
    # Reversible, so that bytes can be counted.
    escaped = text.decode("utf-8", "surrogateescape") + "]}"
    try:
        header = json.loads(LONE_SURROGATE.sub("\ufffd", escaped), strict=False)
        return header if isinstance(header, dict) else {}, []
    except json.JSONDecodeError as error:
        if error.pos >= len(escaped):  # valid, but the events are not at the top level
            return {}, []
        at_byte = len(escaped[: error.pos].encode("utf-8", "surrogateescape"))
        return {}, [f"damaged at byte {at_byte:,}, before the events: devices and rank are not known"]
    except (ValueError, RecursionError):
        return {}, []
