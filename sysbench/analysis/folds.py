"""From log to record, for every kind of run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sysbench.analysis import memory_fold, profile_fold, timing
from sysbench.events import Event
from sysbench.records import MemoryRecord, ProfileRecord, RunRecord, TimeRecord
from sysbench.specs.kinds import Kind

FOLDS: dict[Kind, Callable[[Iterable[Event]], RunRecord[Any]]] = {
    "time": timing.fold,
    "memory": memory_fold.fold,
    "profile": profile_fold.fold,
}

RECORDS: dict[Kind, type[RunRecord[Any]]] = {"time": TimeRecord, "memory": MemoryRecord, "profile": ProfileRecord}
