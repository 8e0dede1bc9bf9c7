"""Exports of Nsight Systems to SQLite, as two of its versions make them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

THREAD = 0x1234_0000_0001
AUTOGRAD = 0x1234_0000_0002

_TIMES = "start INTEGER, end INTEGER"
_PLACE = "deviceId INTEGER, streamId INTEGER, correlationId INTEGER"

OLD = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_TIMES}, {_PLACE}, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, "
    "gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_TIMES}, {_PLACE}, bytes INTEGER, copyKind INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"{_TIMES}, globalTid INTEGER, correlationId INTEGER, nameId INTEGER",
    "NVTX_EVENTS": f"{_TIMES}, eventType INTEGER, text TEXT, globalTid INTEGER",
}
"""2021: texts of ranges stand in their own rows."""

NEW = {
    **OLD,
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_TIMES}, {_PLACE}, bytes INTEGER, value INTEGER",
    "NVTX_EVENTS": f"{_TIMES}, eventType INTEGER, rangeId INTEGER, text TEXT, textId INTEGER, globalTid INTEGER, "
    "domainId INTEGER",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, busLocation TEXT",
}
"""2025: texts of ranges that are registered are numbers; memory sets and GPUs have tables."""

STRINGS = (
    "ampere_sgemm_128x64_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    "cudaLaunchKernel_v7000",
    "layers.0.attention",
)


def kernels(count: int) -> Iterator[tuple[int, ...]]:
    for number in range(count):
        start = 1_000_000 + number * 900
        yield (
            start,
            start + 100 + number % 700,
            0,
            7,
            number + 1,
            1,
            1 + number % 2,
            1,
            number % 64 + 1,
            2,
            1,
            128,
            1,
            1,
        )


def calls(count: int) -> Iterator[tuple[int, ...]]:
    for number in range(count):
        start = 990_000 + number * 900
        yield start, start + 400, THREAD, number + 1, 3


def ranges(count: int, *, registered: bool) -> Iterator[tuple[Any, ...]]:
    for number in range(count):
        start, thread = 989_000 + number * 1800, AUTOGRAD if number % 3 == 2 else THREAD
        text: str | None = f"MmBackward0, seq = {number - 2}, op_id = {number}" if number % 3 == 2 else "step"
        text = f"aten::mm, seq = {number}, op_id = {number}" if number % 3 == 0 else text
        if not registered:
            yield start, start + 1500, 59, text, thread
        else:
            named = text == "step"
            yield (
                start,
                start + 1500,
                60 if named else 59,
                None,
                None if named else text,
                4 if named else None,
                thread,
                0,
            )


def write(path: Path, *, new: bool, kernel_count: int, range_count: int, call_count: int | None = None) -> None:
    """An export of one run."""
    with closing(sqlite3.connect(path)) as database:
        for table, columns in (NEW if new else OLD).items():
            database.execute(f"CREATE TABLE {table} ({columns})")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(STRINGS, 1))
        _fill(database, "CUPTI_ACTIVITY_KIND_KERNEL", 14, kernels(kernel_count))
        _fill(database, "CUPTI_ACTIVITY_KIND_RUNTIME", 5, calls(kernel_count if call_count is None else call_count))
        _fill(database, "CUPTI_ACTIVITY_KIND_MEMCPY", 7, [(500_000, 500_300, 0, 7, 999_999, 4096, 1)])
        _fill(database, "NVTX_EVENTS", 8 if new else 5, ranges(range_count, registered=new))
        if new:
            _fill(database, "CUPTI_ACTIVITY_KIND_MEMSET", 7, [(600_000, 600_050, 0, 7, 999_998, 512, 0)])
            _fill(database, "TARGET_INFO_GPU", 3, [(0, "NVIDIA H200", "0000:18:00.0")])
        database.commit()


def _fill(database: sqlite3.Connection, table: str, columns: int, rows: Any) -> None:
    database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})", rows)
