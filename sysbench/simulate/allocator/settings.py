"""Options of the caching allocator in `PYTORCH_CUDA_ALLOC_CONF`, and the sizes that follow from them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sysbench.errors import UnavailableError, unknown
from sysbench.extras import installed_torch
from sysbench.snapshot.block_sizes import SMALL_BYTES, rounded_bytes
from sysbench.spec.knobs import allocator_options

MIB = 1024 * 1024

SMALL_SEGMENT_BYTES = 2 * MIB
"""kSmallBuffer: segment size of the small pool."""
MIN_LARGE_BYTES = 10 * MIB
"""kMinLargeAlloc: each request of at least this size gets a segment of its own size."""
ROUND_LARGE_BYTES = 2 * MIB
"""kRoundLarge: segments for requests of at least MIN_LARGE_BYTES are rounded up to a multiple of this."""
UNLIMITED = 2**64 - 1
"""SIZE_MAX: blocks of any size may be split."""

_INTERVALS = 16

ENVIRONMENT_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables of the settings; the first that is set takes precedence (CUDAAllocatorConfig::instance)."""


class NotSimulatedError(ValueError):
    """Raised for a setting that PyTorch accepts, but that is not simulated."""


@dataclass(frozen=True)
class AllocatorSettings:
    """Options of the native backend that affect how much memory is reserved and kept.

    max_split_bytes               blocks of at least this size are neither split nor used for smaller requests
    max_non_split_rounding_bytes  maximum excess of such a block over its request; default of `parse`: the segment size
    roundup_power2_divisions      for each of 16 intervals between powers of two, from 1 MiB to 64 GiB: 0 or 1 rounds up
                                  to a multiple of 512 bytes, n rounds up to the next of n equal steps in the interval
    garbage_collection_threshold  fraction of allowed memory above which old cached segments are freed; 0 means never
    expandable_segments           whether each pool and stream has one segment that grows by pages
    large_segment_bytes           segment size for requests of 1 to 10 MiB, and page size of large expandable segments
    memory_fraction               fraction of the device's memory that the allocator may use
    text                          the settings as they were written
    prefers_oldest                whether, of free blocks of equal size, the one that was made first is used, as in
                                  PyTorch 2.12; otherwise the one at the lowest address
    """

    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = 20 * MIB
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    large_segment_bytes: int = 20 * MIB
    memory_fraction: float = 1.0
    text: str = ""
    prefers_oldest: bool = field(default_factory=lambda: installed_torch() == (2, 12))

    def __post_init__(self) -> None:
        if self.expandable_segments and self.large_segment_bytes % ROUND_LARGE_BYTES:
            # cuMemCreate accepts only multiples of the device's page size.
            raise ValueError(
                f"large_segment_size_mb:{self.large_segment_bytes // MIB} is incompatible with "
                "expandable_segments:True, whose pages are multiples of 2 MiB"
            )

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Parse settings such as `max_split_size_mb:128,expandable_segments:True`."""
        values: dict[str, Any] = {"text": text}
        # The segment size is processed first, regardless of its position: the limits on splitting must not be below it.
        for name, value in sorted(_options(text), key=lambda option: option[0] != _SEGMENT_OPTION):
            _READERS[name](name, value, values)
        segment_bytes = values.get("large_segment_bytes", cls.large_segment_bytes)
        return cls(**{"max_non_split_rounding_bytes": segment_bytes} | values)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> AllocatorSettings:
        """Return the settings in these environment variables. Raises the same errors as `parse`."""
        given = (environment[name] for name in ENVIRONMENT_VARIABLES if name in environment)
        return cls.parse(next(given, ""))

    @classmethod
    def of(cls, choice: str) -> AllocatorSettings:
        """Return the settings of a value of --allocator; raises UnavailableError for options that are not valid."""
        options = allocator_options(choice)
        try:
            return cls.from_environment(os.environ) if options is None else cls.parse(options)
        except ValueError as error:
            source = ENVIRONMENT_VARIABLES[0] if options is None else f"--allocator {choice}"
            raise UnavailableError(f"{source}: {error}") from error

    def for_snapshot(self) -> dict[str, object]:
        """Return these settings as the `allocator_settings` of a memory snapshot.

        Source: THCPModule_memorySnapshot, cuda/Module.cpp.
        """
        return {
            "PYTORCH_CUDA_ALLOC_CONF": self.text,
            # PyTorch casts SIZE_MAX to a signed integer.
            "max_split_size": -1 if self.max_split_bytes == UNLIMITED else self.max_split_bytes,
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "graph_capture_record_stream_reuse": False,
            "roundup_power2_divisions": {
                str(2**interval): divisions for interval, divisions in enumerate(self.roundup_power2_divisions)
            },
        }

    def block_bytes(self, requested_bytes: int) -> int:
        """Return the block size for a request (round_size)."""
        return rounded_bytes(requested_bytes, self.roundup_power2_divisions)

    def segment_bytes(self, block_bytes: int) -> int:
        """Return the size of the new segment for a block of `block_bytes` (get_allocation_size)."""
        if block_bytes <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if block_bytes < MIN_LARGE_BYTES:
            return self.large_segment_bytes
        return (block_bytes + ROUND_LARGE_BYTES - 1) // ROUND_LARGE_BYTES * ROUND_LARGE_BYTES

    def page_bytes(self, is_small: bool) -> int:
        """Return the page size by which an expandable segment grows and shrinks."""
        return SMALL_SEGMENT_BYTES if is_small else self.large_segment_bytes


_OPTION = re.compile(r"(?P<name>[^:,\[\]]+):(?P<value>\[[^\[\]]*\]|[^:,\[\]]+)(?:,|$)")


def _options(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of each option; like PyTorch's tokenizer, ignore white space and a trailing comma."""
    packed = "".join(text.split())
    position = 0
    while position < len(packed):
        option = _OPTION.match(packed, position)
        if option is None:
            raise ValueError(f"{packed[position:]} is not an allocator option of the form name:value or name:[a:b,...]")
        if option["name"] not in _READERS:
            raise ValueError(unknown(option["name"], "an allocator option", sorted(_READERS)))
        yield option["name"], option["value"]
        position = option.end()


def _integer(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{name} takes an integer, not {text}")
    return int(text)


def _float(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} takes a number, not {text}") from None


def _boolean(name: str, text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(f"{name} takes True or False, not {text}")
    return text == "True"


def _read_large_segment(name: str, text: str, values: dict[str, object]) -> None:
    size_mib = _integer(name, text)
    if size_mib <= MIN_LARGE_BYTES // MIB:
        raise ValueError(f"{name} must be more than {MIN_LARGE_BYTES // MIB}, not {text}")
    values["large_segment_bytes"] = min(size_mib, UNLIMITED // MIB) * MIB


def _read_split_limit(name: str, text: str, values: dict[str, Any]) -> None:
    smallest_mib = values.get("large_segment_bytes", AllocatorSettings.large_segment_bytes) // MIB
    size_mib = _integer(name, text)
    if size_mib < smallest_mib:
        raise ValueError(f"{name} must be at least {smallest_mib}, not {text}")
    field = "max_split_bytes" if name == "max_split_size_mb" else "max_non_split_rounding_bytes"
    values[field] = min(size_mib, UNLIMITED // MIB) * MIB


def _read_threshold(name: str, text: str, values: dict[str, Any]) -> None:
    values[name] = _float(name, text)
    if not 0.0 < values[name] < 1.0:
        raise ValueError(f"{name} must be between 0 and 1, not {text}")


def _read_fraction(name: str, text: str, values: dict[str, Any]) -> None:
    values["memory_fraction"] = _float(name, text)
    if not 0.0 <= values["memory_fraction"] <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], not {text}")


def _read_expandable(name: str, text: str, values: dict[str, object]) -> None:
    values[name] = _boolean(name, text)


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _read_divisions(name: str, text: str, values: dict[str, Any]) -> None:
    if not text.startswith("["):
        divisions = _integer(name, text)
        if not _is_power_of_two(divisions):
            raise ValueError(f"{name} takes a power of two, not {text}")
        values["roundup_power2_divisions"] = (divisions,) * _INTERVALS
        return
    table = list(values.get("roundup_power2_divisions", AllocatorSettings.roundup_power2_divisions))
    last: int | None = None
    for entry in filter(None, text[1:-1].split(",")):
        boundary, separator, number = entry.partition(":")
        divisions = _integer(name, number) if separator else -1
        if divisions != 0 and not _is_power_of_two(divisions):
            raise ValueError(f"{name} takes entries size:divisions, divisions being 0 or a power of two, not {entry}")
        if boundary == ">":
            start = 0 if last is None else last
            table[start + 1 :] = [divisions] * (_INTERVALS - start - 1)
            continue
        size_mib = _integer(name, boundary)
        if not _is_power_of_two(size_mib):
            raise ValueError(f"{name} takes sizes in MiB that are powers of two, or > for the rest, not {boundary}")
        interval = min(size_mib.bit_length() - 1, _INTERVALS - 1)
        if last is None:
            table[:interval] = [divisions] * interval
        table[interval] = divisions
        last = interval
    values["roundup_power2_divisions"] = tuple(table)


def _read_backend(name: str, text: str, values: dict[str, object]) -> None:
    if text not in ("native", "cudaMallocAsync"):
        raise ValueError(unknown(text, f"a value of {name}", ("native", "cudaMallocAsync")))
    if text != "native":
        raise NotSimulatedError(f"{name}:{text} is not simulated; {name}:native is")


def _read_early_rejection(name: str, text: str, values: dict[str, object]) -> None:
    if _boolean(name, text):
        raise NotSimulatedError(f"{name}:True is not simulated; {name}:False is")


_SEGMENT_OPTION = "large_segment_size_mb"
_IGNORED_FLAGS = (
    "release_lock_on_cudamalloc", "graph_capture_record_stream_reuse", "pinned_use_background_threads",
    "pinned_use_cuda_host_register", "pinned_free_catch_all",
)  # fmt: skip
_IGNORED_NUMBERS = (
    "pinned_num_register_threads", "pinned_reserve_segment_size_mb", "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
)  # fmt: skip
"""Options for pinned host memory, locks or graph capture: validated, but without effect on device memory."""

_READERS: dict[str, Callable[[str, str, dict[str, object]], object]] = {
    "max_split_size_mb": _read_split_limit,
    "max_non_split_rounding_mb": _read_split_limit,
    _SEGMENT_OPTION: _read_large_segment,
    "roundup_power2_divisions": _read_divisions,
    "garbage_collection_threshold": _read_threshold,
    "expandable_segments": _read_expandable,
    "per_process_memory_fraction": _read_fraction,
    "backend": _read_backend,
    "throw_on_cudamalloc_oom": _read_early_rejection,
    **dict.fromkeys(_IGNORED_FLAGS, lambda name, text, _: _boolean(name, text)),
    **dict.fromkeys(_IGNORED_NUMBERS, lambda name, text, _: _integer(name, text)),
}
