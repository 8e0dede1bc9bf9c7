"""`PYTORCH_CUDA_ALLOC_CONF` means here what it means to PyTorch."""

import re

import pytest

from sysbench.simulate.allocator.settings import MIB, UNLIMITED, AllocatorSettings

# What PyTorch's own parser (libc10 2.11.0 and 2.13.0, AcceleratorAllocatorConfig) made of these texts:
# large segment, max split, max rounding without split (MiB), threshold, expandable, divisions from 1 MiB to 64 GiB.
PARSED = {
    "": (20, None, 20, 0.0, False, (0,) * 16),
    "max_split_size_mb:128": (20, 128, 20, 0.0, False, (0,) * 16),
    " max_split_size_mb : 128 , ": (20, 128, 20, 0.0, False, (0,) * 16),
    "large_segment_size_mb:64": (64, None, 64, 0.0, False, (0,) * 16),
    "max_non_split_rounding_mb:100,large_segment_size_mb:64": (64, None, 100, 0.0, False, (0,) * 16),
    "large_segment_size_mb:12,max_split_size_mb:12": (12, 12, 12, 0.0, False, (0,) * 16),
    "garbage_collection_threshold:.5,expandable_segments:True": (20, None, 20, 0.5, True, (0,) * 16),
    "roundup_power2_divisions:4": (20, None, 20, 0.0, False, (4,) * 16),
    "roundup_power2_divisions:[]": (20, None, 20, 0.0, False, (0,) * 16),
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]": (
        *(20, None, 20, 0.0, False),
        (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8),
    ),
    "roundup_power2_divisions:[16:4,>:2,32:2]": (
        *(20, None, 20, 0.0, False),
        (4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2),
    ),
    "roundup_power2_divisions:[>:8]": (20, None, 20, 0.0, False, (0, *(8,) * 15)),
    "pinned_use_background_threads:True,backend:native,release_lock_on_cudamalloc:False": (
        *(20, None, 20, 0.0, False),
        (0,) * 16,
    ),
}


@pytest.mark.parametrize("text", PARSED)
def test_settings_are_read_as_pytorch_reads_them(text: str) -> None:
    segment_mib, split_mib, rounding_mib, threshold, expandable, divisions = PARSED[text]
    settings = AllocatorSettings.parse(text)
    assert settings.large_segment_bytes == segment_mib * MIB
    assert settings.max_split_bytes == (UNLIMITED if split_mib is None else split_mib * MIB)
    assert settings.max_non_split_rounding_bytes == rounding_mib * MIB
    assert settings.garbage_collection_threshold == threshold
    assert settings.expandable_segments is expandable
    assert settings.roundup_power2_divisions == divisions
    assert settings.text == text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max_split_sise_mb:128", "max_split_sise_mb is not an allocator option. Did you mean max_split_size_mb?"),
        ("max_split_size_mb=128", "max_split_size_mb=128"),
        ("max_split_size_mb:", "max_split_size_mb:"),
        ("max_split_size_mb:19", "max_split_size_mb must be at least 20"),
        ("max_split_size_mb:32,large_segment_size_mb:64", "max_split_size_mb must be at least 64"),
        ("max_split_size_mb:128MB", "max_split_size_mb takes an integer"),
        ("large_segment_size_mb:10", "large_segment_size_mb must be more than 10"),
        ("large_segment_size_mb:21,expandable_segments:True", "large_segment_size_mb:21 is incompatible with"),
        ("garbage_collection_threshold:1", "garbage_collection_threshold must be between 0 and 1"),
        ("garbage_collection_threshold:high", "garbage_collection_threshold takes a number"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction must be in [0, 1]"),
        ("expandable_segments:true", "expandable_segments takes True or False"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions takes a power of two"),
        ("roundup_power2_divisions:[256:3]", "roundup_power2_divisions takes entries size:divisions"),
        ("roundup_power2_divisions:[3:2]", "roundup_power2_divisions takes sizes in MiB that are powers of two"),
        ("roundup_power2_divisions:[256:1", "[256:1"),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync is not simulated"),
        ("throw_on_cudamalloc_oom:True", "throw_on_cudamalloc_oom:True is not simulated"),
    ],
)
def test_what_cannot_be_simulated_is_named_in_one_line(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)) as refused:
        AllocatorSettings.parse(text)
    assert "\n" not in str(refused.value)


def test_the_cuda_variable_wins_over_the_general_one_as_in_pytorch() -> None:
    both = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert AllocatorSettings.from_environment(both) == AllocatorSettings.parse("expandable_segments:True")
    only = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}
    assert AllocatorSettings.from_environment(only).max_split_bytes == 64 * MIB
    assert AllocatorSettings.from_environment({}) == AllocatorSettings()


def test_a_snapshot_has_the_settings_as_pytorch_writes_them() -> None:
    text = "roundup_power2_divisions:[2:4,>:8],garbage_collection_threshold:0.5,max_split_size_mb:64"
    assert AllocatorSettings.parse(text).for_snapshot() == {
        "PYTORCH_CUDA_ALLOC_CONF": text,
        "max_split_size": 64 * MIB,
        "garbage_collection_threshold": 0.5,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "roundup_power2_divisions": {"1": 4, "2": 4} | {str(2**power): 8 for power in range(2, 16)},
    }
    assert AllocatorSettings.parse("").for_snapshot()["max_split_size"] == -1


@pytest.mark.parametrize(
    ("divisions", "requested", "block"),
    [
        # round_size: multiples of 512 bytes
        (0, 1, 512),
        (0, 512, 512),
        (0, 513, 1024),
        (1, 1_000_000, 1_000_448),
        # roundup_power2_next_division: its own example, 1200 with 4 divisions, is below 512 bytes for each of them
        (4, 1200, 1536),
        (4, 2048, 2048),
        (4, 2049, 2560),
        (4, 5 * MIB + 1, 6 * MIB),
        (8, 5 * MIB + 1, 5 * MIB + 512 * 1024),
        (2, 3 * MIB + 1, 4 * MIB),
    ],
)
def test_requests_are_rounded_as_round_size_does(divisions: int, requested: int, block: int) -> None:
    settings = AllocatorSettings(roundup_power2_divisions=(divisions,) * 16)
    assert settings.block_bytes(requested) == block


@pytest.mark.parametrize(
    ("block", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (1000 * MIB + 512, 1002 * MIB),
    ],
)
def test_segments_have_the_sizes_of_get_allocation_size(block: int, segment: int) -> None:
    assert AllocatorSettings().segment_bytes(block) == segment
