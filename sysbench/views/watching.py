"""What watches a run, by its kind: a picture for terminals where there is one, lines for everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sysbench.specs.kinds import Kind
from sysbench.views import attention_live, live, memory_live, profile_live
from sysbench.views.accum_lines import AccumLines
from sysbench.views.plain import PlainProgress
from sysbench.views.progress import Progress

PICTURES: Mapping[Kind, live.Picture[Any]] = {
    "time": live.TIME,
    "memory": memory_live.MEMORY,
    "attention": attention_live.ATTENTION,
    "profile": profile_live.PROFILE,
}

LINES: Mapping[Kind, Callable[..., Progress]] = {
    "time": PlainProgress,
    "memory": memory_live.MemoryLines,
    "attention": attention_live.AttentionLines,
    "accum": AccumLines,
    "profile": profile_live.ProfileLines,
}
