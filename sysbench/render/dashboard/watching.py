"""What watches a run, by its kind: a picture for terminals where there is one, lines for everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sysbench.commands.accum.live import AccumLines
from sysbench.commands.attention import live as attention_live
from sysbench.commands.memory import live as memory_live
from sysbench.commands.profile import live as profile_live
from sysbench.render.dashboard import live
from sysbench.render.dashboard.plain import PlainProgress
from sysbench.render.dashboard.progress import Progress
from sysbench.spec.kinds import Kind

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
