"""Calls that PyTorch's compiled allocator has served, made on the model: snapshots are equal to the byte.

Unlike tests/simulate/test_against_pytorch.py, this needs neither a compiler nor a PyTorch with CUDA.
"""

import gzip
import io
import pickle
from typing import Any

import pytest

from sysbench.simulate.allocator import CachingAllocator
from sysbench.simulate.allocator.blocks import Block
from sysbench.simulate.allocator.device_memory import DeviceMemory
from sysbench.simulate.allocator.settings import AllocatorSettings
from tests.simulate.allocator_calls import play, random_calls
from tests.simulate.compiled_allocator.record import FIXTURES, RECORDINGS


class PlainUnpickler(pickle.Unpickler):
    """A snapshot is made of plain containers and values; anything else in a file is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a snapshot")


def load(name: str) -> dict[str, Any]:
    recorded: dict[str, Any] = PlainUnpickler(io.BytesIO(gzip.decompress((FIXTURES / name).read_bytes()))).load()
    return recorded


def replayed(name: str) -> tuple[CachingAllocator, dict[str, Any]]:
    """The model after the calls of a recording, with the peaks since recording began; its snapshot."""
    calls, text, capacity_bytes = RECORDINGS[name]
    begin = calls.index(("r",)) if ("r",) in calls else 0
    device = DeviceMemory(capacity_bytes, ascending=True)  # as those of the stand-in driver
    made = CachingAllocator(capacity_bytes, AllocatorSettings.parse(text), record=True, device=device)
    held: dict[int, Block] = {}
    play(calls[:begin], made, held)
    unrecorded = len(made.events)
    made.reset_peaks()
    play([call for call in calls[begin:] if call not in (("r",), ("p",))], made, held)
    snapshot = made.snapshot()
    del snapshot["device_traces"][0][:unrecorded]
    return made, snapshot


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recorded_trace_is_reproduced_to_the_byte(name: str) -> None:
    recorded, (_, snapshot) = load(f"{name}.pickle.gz"), replayed(name)
    for index, entry in enumerate(snapshot["device_traces"][0]):
        entry["time_us"] = index
    del recorded["recording"]
    assert snapshot == recorded


def test_pytorchs_own_viewer_reads_a_simulated_snapshot() -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    made = CachingAllocator(200 * 2**20, record=True)
    play(random_calls(3, 100), made)
    snapshot = made.snapshot()
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    taken = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "segment_alloc"]
    assert f"total_reserved: {viewer.Bytes(reserved)}" in viewer.segsum(snapshot)
    assert viewer.trace(snapshot).count(" = cudaMalloc(") == len(taken) > 0
    assert "<html" in viewer.trace_plot(snapshot).lower()
