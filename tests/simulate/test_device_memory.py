"""A simulated GPU hands out whole pages, as long as there are any."""

from __future__ import annotations

import pytest

from sysbench.simulate.allocator.device_memory import GRANULARITY_BYTES as PAGE
from sysbench.simulate.allocator.device_memory import DeviceMemory


@pytest.mark.parametrize("ascending", [False, True])
def test_memory_is_taken_and_given_back_in_whole_pages(ascending: bool) -> None:
    memory = DeviceMemory(4 * PAGE, ascending=ascending)
    assert memory.free_bytes == 4 * PAGE
    first, second = memory.allocate(1), memory.allocate(PAGE + 1)
    assert first is not None
    assert second == (first + PAGE if ascending else first - 2 * PAGE)
    assert memory.free_bytes == PAGE
    assert memory.allocate(PAGE + 1) is None
    assert memory.free_bytes == PAGE
    assert memory.allocate(PAGE) == (second + 2 * PAGE if ascending else second - PAGE)
    assert memory.free_bytes == 0
    memory.release(PAGE + 1)
    assert memory.free_bytes == 2 * PAGE


def test_what_others_have_taken_is_not_free() -> None:
    assert DeviceMemory(4 * PAGE, outside_bytes=100).free_bytes == 4 * PAGE - 100
    assert DeviceMemory(PAGE, outside_bytes=3 * PAGE).free_bytes == 0


def test_addresses_are_reserved_without_memory() -> None:
    memory = DeviceMemory(PAGE)
    first = memory.reserve_addresses(2 * PAGE - 1)
    assert memory.reserve_addresses(1) == first + 2 * PAGE
    assert memory.free_bytes == PAGE
    assert memory.map_pages(first, PAGE)
    assert not memory.map_pages(first + PAGE, 1)
    assert memory.free_bytes == 0
