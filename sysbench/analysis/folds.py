"""From log to record, for every kind of run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sysbench.analysis import accum_fold, attention_fold, memory_fold, profile_fold, timing
from sysbench.events import Event
from sysbench.records import AccumRecord, AttentionRecord, MemoryRecord, ProfileRecord, RunRecord, TimeRecord
from sysbench.specs.kinds import Kind

FOLDS: dict[Kind, Callable[[Iterable[Event]], RunRecord[Any]]] = {
    "time": timing.fold,
    "memory": memory_fold.fold,
    "profile": profile_fold.fold,
    "attention": attention_fold.fold,
    "accum": accum_fold.fold,
}

RECORDS: dict[Kind, type[RunRecord[Any]]] = {
    "time": TimeRecord,
    "memory": MemoryRecord,
    "profile": ProfileRecord,
    "attention": AttentionRecord,
    "accum": AccumRecord,
}
