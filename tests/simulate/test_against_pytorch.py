"""The model does what PyTorch's own compiled allocator does, call by call, on a stand-in for the device.

Runs where the installed PyTorch was built with CUDA and there is a C++ compiler; no GPU is needed. Another environment
can be named in SYSBENCH_TEST_CUDA_SITE_PACKAGES.
"""

from dataclasses import replace

import pytest

from sysbench.simulate.allocator import CachingAllocator
from sysbench.simulate.allocator.blocks import Block
from sysbench.simulate.allocator.device_memory import DeviceMemory
from sysbench.simulate.allocator.settings import MIB, AllocatorSettings
from tests.simulate.allocator_calls import SETTINGS, Call, play, random_calls, training_calls, with_changing_fractions
from tests.simulate.compiled_allocator.compiled import CompiledAllocator, NotAvailableError, build

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledAllocator:
    try:
        return build(tmp_path_factory.mktemp("compiled"))
    except NotAvailableError as reason:
        pytest.skip(str(reason))


def assert_same(compiled: CompiledAllocator, calls: list[Call], text: str, capacity_bytes: int) -> None:
    settings = replace(AllocatorSettings.parse(text), prefers_oldest=compiled.torch == "2.12")
    device = DeviceMemory(capacity_bytes, ascending=True)  # as those of the stand-in driver
    made = CachingAllocator(capacity_bytes, settings, record=True, device=device)
    ran = compiled.run(calls, text, capacity_bytes)
    held: dict[int, Block] = {}
    addresses: list[int | None] = []
    counters = []
    for call in calls:
        addresses += play([call], made, held)
        now = made.statistics
        counters.append(
            (
                *(now.allocated_bytes, now.allocated_peak_bytes),
                *(now.reserved_bytes, now.reserved_peak_bytes, now.alloc_retries),
            )
        )
    assert addresses == ran.addresses
    assert counters == [(*each[:2], *each[4:6], each[10]) for each in ran.counters]
    assert made.snapshot() == ran.snapshot


@pytest.mark.parametrize("capacity_mib", [64, 300, 100_000])
@pytest.mark.parametrize("text", SETTINGS)
def test_addresses_counters_events_and_segments_are_pytorchs_own(
    compiled: CompiledAllocator, text: str, capacity_mib: int
) -> None:
    assert_same(compiled, random_calls(len(text) + capacity_mib, 1500), text, capacity_mib * MIB)


@pytest.mark.parametrize("text", ["", "expandable_segments:True"])
def test_a_training_loop_takes_the_memory_that_pytorch_would_take(compiled: CompiledAllocator, text: str) -> None:
    calls = [call for part in training_calls(3) for call in part]
    assert_same(compiled, calls, text, 16 * 1024 * MIB)


@pytest.mark.parametrize("text", ["", "garbage_collection_threshold:0.5", "expandable_segments:True"])
def test_a_memory_fraction_set_while_running_works_as_in_pytorch(compiled: CompiledAllocator, text: str) -> None:
    assert_same(compiled, with_changing_fractions(random_calls(11, 1500)), text, 400 * MIB)
