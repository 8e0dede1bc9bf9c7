"""The memory timeline as a single self-contained HTML page, which needs no network, server or other files.

The page contains all allocations as compressed data, which its script (assets/memory_page) draws. Names from the
snapshot are part of the compressed data and are inserted only as text. All other text is escaped.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Final

import numpy as np

from sysbench.commands.memory.figures import COLOURS, DARK_PHASES, STACKING
from sysbench.frames import owner
from sysbench.render import pages
from sysbench.snapshot import CATEGORIES
from sysbench.snapshot.layout import Column, Stacks
from sysbench.snapshot.timeline import Timeline
from sysbench.trace.stack_lines import frame_location

GROUPS_SHOWN: Final = 40
_ASSETS: Final = "memory_page"


def write(path: Path, timeline: Timeline, title: str) -> None:
    pages.write(path, render(timeline, title))


def render(timeline: Timeline, title: str) -> str:
    data = base64.b64encode(zlib.compress(_pack(timeline), 6)).decode("ascii")
    return pages.render(_ASSETS, title=title, timeline=timeline, data=data)


# --- the data


def _pack(timeline: Timeline) -> bytes:
    """Pack the page's data: the length of a JSON header, the header, and the columns that the header locates."""
    allocations = timeline.allocations
    order = _creation_order(timeline)
    columns: dict[str, Column] = {
        "size": allocations.size_bytes[order].astype("<f8"),
        "requested": allocations.requested_bytes[order].astype("<f8"),
        "address": allocations.address[order].astype("<f8"),
        "born": allocations.born[order].astype("<u4"),
        "died": allocations.died[order].astype("<u4"),
        "module": allocations.module[order].astype("<i4"),
        "stack": allocations.stack[order].astype("<i4"),
        "freed": allocations.freed_stack[order].astype("<i4"),
        "category": allocations.category[order].astype("<u1"),
        "stackStart": timeline.stacks.start.astype("<u4"),
        "stackFrame": timeline.stacks.frame.astype("<u4"),
    }
    if timeline.reserved_bytes is not None:
        columns["reserved"] = timeline.reserved_bytes.astype("<f8")
    # Timestamps of a simulation only order events; shown as times, they would look measured.
    if timeline.time_us is not None and timeline.source == "measured":
        columns["time"] = (timeline.time_us - timeline.time_us[0]).astype("<f8")
    layout: dict[str, tuple[str, int, int]] = {}
    parts: list[bytes] = []
    for name, column in columns.items():
        layout[name] = (column.dtype.str[1:], sum(map(len, parts)), len(column))
        parts.append(_aligned(column.tobytes(), b"\0"))
    header = json.dumps({**_header(timeline), "arrays": layout}).encode("ascii")
    padded_header = _aligned(bytes(4) + header, b" ")[4:]
    return b"".join([len(padded_header).to_bytes(4, "little"), padded_header, *parts])


def _aligned(content: bytes, padding: bytes) -> bytes:
    """Pad to a multiple of eight bytes, where typed arrays must begin."""
    return content.ljust(-(-len(content) // 8) * 8, padding)


def _header(timeline: Timeline) -> dict[str, object]:
    strings, frames = _frame_table(timeline.stacks)
    device = timeline.device_name if timeline.source == "measured" else None
    creation_number = np.argsort(_creation_order(timeline))
    groups = []
    for group in timeline.groups(timeline.peak.state)[:GROUPS_SHOWN]:
        ends = dict.fromkeys(".".join(module) for module in (*group.modules[:1], *group.modules[-1:]))
        parts = filter(None, [frame_location(timeline.stacks.of(group.stack)), " … ".join(ends)])
        groups.append(
            {
                "count": group.count,
                "size": group.size_bytes,
                "category": CATEGORIES.index(group.category),
                "place": " · ".join(parts),
                "first": int(creation_number[group.first]),
            }
        )
    return {
        "states": timeline.states,
        "device": device,
        "categories": [{"name": name, "colour": COLOURS[name]} for name in CATEGORIES],
        "stacking": list(STACKING),
        "phases": [[phase.name, phase.first, phase.end, phase.name in DARK_PHASES] for phase in timeline.phases],
        "failures": [[failure.state, failure.requested_bytes] for failure in timeline.failures],
        "modules": [".".join(module) for module in timeline.modules],
        "strings": strings,
        "frames": frames,
        "groups": groups,
    }


def _creation_order(timeline: Timeline) -> Column:
    return np.argsort(timeline.allocations.born, kind="stable")


def _frame_table(stacks: Stacks) -> tuple[list[str], list[list[int]]]:
    """Return the distinct strings, and each frame as (filename, line, name, whether it is a library's).

    Filename and name are indices into the strings.
    """
    strings: dict[str, int] = {}
    frames = [
        [
            strings.setdefault(frame.filename, len(strings)),
            frame.line,
            strings.setdefault(frame.name, len(strings)),
            int(_is_library(frame.filename)),
        ]
        for frame in stacks.frames
    ]
    return list(strings), frames


def _is_library(filename: str) -> bool:
    is_python = filename.endswith(".py") or filename.startswith("<")
    return not is_python or owner(filename).is_library
