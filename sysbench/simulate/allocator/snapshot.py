"""Conversion of the allocator's state to and from the format of `torch.cuda.memory._snapshot()`.

Sources: THCPModule_memorySnapshot of torch/csrc/cuda/Module.cpp and DeviceCachingAllocator::snapshot;
torch/cuda/memory.py describes the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from sysbench.simulate.allocator.blocks import Block, BlockPool, VirtualSegment
from sysbench.simulate.allocator.ledger import AllocatorEvent
from sysbench.simulate.allocator.settings import AllocatorSettings

_DEFAULT_POOL = (0, 0)


class Annotation(NamedTuple):
    """The start or end of a named phase, and the number of events before it."""

    events: int
    name: str
    stage: Literal["START", "END"]


def build_snapshot(
    blocks: Iterable[Block],
    events: Sequence[AllocatorEvent],
    annotations: Iterable[Annotation],
    settings: AllocatorSettings,
) -> dict[str, Any]:
    """Build the whole snapshot, of dict, list, tuple, str, int, float and bool only, except for the caller's frames.

    blocks  all free and used blocks, in any order
    """
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


def _segment(head: Block) -> dict[str, Any]:
    """A segment, or one contiguous mapped range of an expandable segment, given its first block."""
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


def _entry(event: AllocatorEvent, index: int) -> dict[str, Any]:
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


class RestoredSegment(NamedTuple):
    """A restored segment: its blocks by address, linked; the last block of an expandable one is unmapped."""

    is_expandable: bool
    blocks: list[Block]


def restore_segments(
    segments: Iterable[Mapping[str, Any]],
    pools: Mapping[str, BlockPool],
    settings: AllocatorSettings,
    capacity_bytes: int,
) -> list[RestoredSegment]:
    """Restore the blocks of a snapshot's segments, linked but not yet in their pools (`pools` by `segment_type`).

    Mapped ranges of one stream and size class count as one expandable segment that begins at the lowest of them,
    because a snapshot does not contain the real beginning. Raises ValueError for blocks that do not fill their segment,
    ranges that are not aligned to pages, and segments of private pools.
    """
    restored: list[RestoredSegment] = []
    mapped_ranges: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for segment in sorted(segments, key=lambda segment: int(segment["address"])):
        if segment.get("is_expandable", False):
            mapped_ranges.setdefault((segment["segment_type"], int(segment["stream"])), []).append(segment)
        else:
            restored.append(RestoredSegment(False, _chain(_blocks(segment, pools[segment["segment_type"]], None))))
    for (size_class, _), ranges in mapped_ranges.items():
        page_bytes = settings.page_bytes(pools[size_class].is_small)
        virtual = VirtualSegment.for_device(int(ranges[0]["address"]), capacity_bytes, page_bytes)
        restored.append(RestoredSegment(True, _chain(_expandable_blocks(ranges, pools[size_class], virtual))))
    return restored


def _expandable_blocks(ranges: list[Mapping[str, Any]], pool: BlockPool, virtual: VirtualSegment) -> list[Block]:
    """Blocks of all mapped ranges, with unmapped ones between and after them."""
    blocks: list[Block] = []
    end = virtual.address
    for mapped_range in [*ranges, None]:
        start = int(mapped_range["address"]) if mapped_range is not None else virtual.address + virtual.size
        if (start - virtual.address) % virtual.page_bytes:
            raise ValueError(f"the mapped range at {start:#x} does not lie on whole pages")
        if start > end:
            unmapped = Block(pool, int(ranges[0]["stream"]), end, start - end, virtual)
            unmapped.mapped = False
            blocks.append(unmapped)
        if mapped_range is not None:
            blocks.extend(_blocks(mapped_range, pool, virtual))
            end = start + int(mapped_range["total_size"])
    return blocks


def _blocks(segment: Mapping[str, Any], pool: BlockPool, virtual: VirtualSegment | None) -> list[Block]:
    if tuple(segment.get("segment_pool_id", _DEFAULT_POOL)) != _DEFAULT_POOL:
        raise ValueError("segments of private memory pools (CUDA graphs, MemPool) are not simulated")
    blocks = []
    address = int(segment["address"])
    for entry in segment["blocks"]:
        block = Block(pool, int(segment["stream"]), address, int(entry["size"]), virtual)
        block.requested = int(entry.get("requested_size", block.size))
        block.allocated = entry["state"] != "inactive"
        block.frames = entry.get("frames") or None
        blocks.append(block)
        address += block.size
    if address != int(segment["address"]) + int(segment["total_size"]) or not blocks:
        raise ValueError(f"the blocks of the segment at {segment['address']:#x} do not fill it")
    blocks[0].segment_frames = segment.get("frames") or None
    return blocks


def _chain(blocks: list[Block]) -> list[Block]:
    for before, after in pairwise(blocks):
        before.next, after.previous = after, before
    return blocks
