"""Conversion of the allocator's state to the format of `torch.cuda.memory._snapshot()`.

Sources: THCPModule_memorySnapshot in torch/csrc/cuda/Module.cpp, and DeviceCachingAllocator::snapshot.
torch/cuda/memory.py describes the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from sysbench.simulate.allocator.blocks import Block
from sysbench.simulate.allocator.ledger import AllocatorEvent
from sysbench.simulate.allocator.settings import AllocatorSettings

_DEFAULT_POOL = (0, 0)


class Annotation(NamedTuple):
    """Start or end of a named phase, and the number of events before it."""

    events: int
    name: str
    stage: Literal["START", "END"]


def build_snapshot(
    blocks: Iterable[Block],
    events: Sequence[AllocatorEvent],
    annotations: Iterable[Annotation],
    settings: AllocatorSettings,
) -> dict[str, Any]:
    """Build a snapshot from an allocator's blocks, events and annotations."""
    heads = (block for block in blocks if block.previous is None or not block.previous.mapped)
    return {
        "segments": sorted((_segment(head) for head in heads), key=lambda segment: int(segment["address"])),
        "device_traces": [[_entry(event, index) for index, event in enumerate(events)]],
        "allocator_settings": settings.for_snapshot(),
        "external_annotations": [
            {"name": name, "stage": stage, "device": 0, "time_us": events_so_far}
            for events_so_far, name, stage in annotations
        ],
    }


def _segment(head: Block) -> dict[str, object]:
    chain = [head]
    while (following := chain[-1].next) is not None and following.mapped:
        chain.append(following)
    used = [block for block in chain if block.allocated]
    used_bytes = sum(block.size for block in used)
    return {
        "device": 0,
        "address": head.address,
        "total_size": sum(block.size for block in chain),
        "allocated_size": used_bytes,
        "active_size": used_bytes,
        "requested_size": sum(block.requested for block in used),
        "stream": head.stream,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": _DEFAULT_POOL,
        "is_expandable": head.virtual_segment is not None,
        "frames": head.segment_frames or [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": "active_allocated" if block.allocated else "inactive",
                "frames": block.frames or [],
            }
            for block in chain
        ],
    }


def _entry(event: AllocatorEvent, index: int) -> dict[str, object]:
    return {
        "action": event.action,
        "device_free" if event.action == "oom" else "addr": event.address,
        "size": event.size,
        "stream": event.stream,
        "time_us": index,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": _DEFAULT_POOL,
        "frames": event.frames or [],
    }
