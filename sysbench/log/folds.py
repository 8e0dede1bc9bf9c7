"""From log to record, for every kind of run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sysbench.commands.accum import fold as accum_fold
from sysbench.commands.attention import fold as attention_fold
from sysbench.commands.memory import fold as memory_fold
from sysbench.commands.profile import fold as profile_fold
from sysbench.commands.time import fold as timing
from sysbench.log.events import Event
from sysbench.log.records import AccumRecord, AttentionRecord, MemoryRecord, ProfileRecord, RunRecord, TimeRecord
from sysbench.spec.kinds import Kind

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
