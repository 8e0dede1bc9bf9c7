"""Known devices: memory, data-sheet peaks and measured rates, each with its source.

A device that is not in `profiles/hardware` or in the user's own directory is unknown. There is no default and no guess
by similarity: an H100 PCIe is not an H100 SXM, and a MIG slice of either is neither. `sysbench calibrate` writes files
to the user's directory. For a device requested by name (`--simulate`), the user's file takes precedence.
"""

from __future__ import annotations

import json
import os
import platform
import re
import tomllib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    ValidationError,
    ValidationInfo,
)

from sysbench import package
from sysbench.errors import LogError, OutputError, UsageError, unknown
from sysbench.spec.axes import split_words
from sysbench.spec.axis import Axis
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import MAX_COUNT, PerSecond
from sysbench.spec.steps import Precision
from sysbench.spec.validation import STORED


def user_directory() -> Path:
    """Return the directory of the user's own device files: `sysbench/hardware` in the configuration directory (XDG).

    Raises OutputError for a user without a home directory.
    """
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "sysbench" / "hardware"
    except RuntimeError:
        raise OutputError("this user has no home directory for the files of sysbench: set HOME") from None


MEMORY_TOLERANCE_SHARE = 0.1
"""Memory sizes that differ by less than this belong to the same GPU model: ECC and driver reserves take 1 to 5%."""

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]i?B)", re.IGNORECASE)
_MARKETED_SIZE = re.compile(r"(?P<number>\d{1,9})\s?gi?b?\b")
_VARIANT = re.compile(r"(sxm|pcie|nvl|rtx|(?<=\d)ti\b)(?:(?<=sxm)\d)?")
_GENERIC_TERMS = frozenset({"nvidia", "tesla", "geforce", "rtx", "gpu", "generation"})

_MAX_NAME_CHARACTERS = 255
"""A longer text is no name of a GPU, and takes long to be searched for one."""

_UNITS = {
    f"{prefix}{infix}b": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for infix, base in (("", 1000), ("i", 1024))
}


class Ceiling(Frozen):
    """The highest measured rate of a large matrix product on a device."""

    matmul_flops_per_s: PositiveFloat
    source: str = Field(min_length=1)


class DeviceContext(Frozen):
    """Device memory that a process uses outside PyTorch's allocator: context of the driver, libraries, kernel code."""

    low_bytes: PositiveInt
    high_bytes: PositiveInt
    """Ends of what drivers and versions of PyTorch are known or assumed to use."""
    source: str = Field(min_length=1)


Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
"""Name of a device in a record, which becomes the name of its file."""

Basis = Literal["calibrated", "measured elsewhere", "borrowed", "data sheet", "given", "assumed"]
"""Origin of a constant: this machine, another machine of the same kind, a related device, the data sheet alone, an
option of the user, or no source at all."""


class Rate(Frozen):
    """A constant of the time model, with its uncertainty and origin."""

    value: PositiveFloat
    spread: float = Field(ge=0)
    """Standard deviation of the logarithm of `value`: 0.05 is about 5%."""
    source: str = Field(min_length=1)
    basis: Basis


class Calibration(Frozen):
    """The device and software with which `sysbench calibrate` measured the rates stored in a file."""

    device: str = Field(min_length=1)
    torch: str
    at: str
    """ISO 8601, UTC."""


class Hardware(Frozen):
    """All known properties of a device."""

    slug: str
    """Name of the device for `--simulate`, and stem of its file name."""
    title: str
    names: tuple[str, ...] = ()
    """All names under which drivers report this device and no other."""
    compute_capability: str | None = Field(default=None, pattern=r"^\d+\.\d$")
    """Compute capability, "9.0"; torch selects kernels by it. None for an AMD GPU."""
    architecture: str | None = Field(default=None, pattern=r"^gfx[0-9a-f]+$")
    """LLVM's name of an AMD GPU's architecture, "gfx942"; None for other GPUs."""
    memory_bytes: PositiveInt
    """Total memory that CUDA reports: the data-sheet value minus the memory that ECC and the driver use."""
    context: DeviceContext | None = None
    """None if nobody has published it: `simulate.gpu` then assumes a wide interval."""
    memory_bandwidth_bytes_per_s: PositiveFloat | None = None
    l2_bytes: PositiveInt | None = None
    source: str = ""
    peak_flops_per_s: dict[Precision, PositiveFloat] = Field(default_factory=dict)
    """Peak rates by precision: dense, with products accumulated in fp32. `fp32` is the rate of the ordinary cores.

    Precisions without hardware units are left out."""
    measured: dict[Precision, Ceiling] = Field(default_factory=dict)
    sms: PositiveInt | None = None
    """Streaming multiprocessors."""
    synchronous: bool = False
    """Whether host and device are the same, as for a CPU: an operator returns when its work is done."""
    power_limit_w: PositiveInt | None = None
    rates: dict[str, Rate] = Field(default_factory=dict)
    """Constants for predicted times; `sysbench.predict.rates` describes each."""
    calibration: Calibration | None = None
    """Origin of the rates in a file written by `sysbench calibrate`; None for other files."""


@cache
def known() -> tuple[Hardware, ...]:
    """Return all GPUs with a built-in data sheet, sorted by slug."""
    files = sorted(package.profiles("hardware").glob("*.toml"), key=lambda file: file.stem)
    return tuple(Hardware(slug=file.stem, **tomllib.loads(file.read_text(encoding="utf-8"))) for file in files)


def available() -> tuple[Hardware, ...]:
    """Return all GPUs that can be simulated, sorted by slug; a user's file takes precedence over the built-in one."""
    found = {gpu.slug: gpu for gpu in known()} | {slug: read(file) for slug, file in _user_files().items()}
    return tuple(found[slug] for slug in sorted(found))


def available_gpus() -> tuple[Hardware, ...]:
    """Return those that are GPUs: calibrated CPUs can be simulated too."""
    return tuple(each for each in available() if not each.synchronous)


def read(file: Path) -> Hardware:
    """Read a user's device file; raises LogError if the file is invalid."""
    try:
        return Hardware(slug=file.stem, **tomllib.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise LogError(f"{file} is not a valid device description: {where}: {first['msg']}") from None
    except (OSError, ValueError, TypeError) as error:
        raise LogError(f"{file} is not a valid device description: {error}") from None


@cache
def find(device_name: str, memory_bytes: int | None = None) -> Hardware | None:
    """Return the hardware whose driver reports `device_name`; None if there is none, or several.

    Cards that share a name are distinguished by `memory_bytes`.
    """
    name = _normalized(device_name)
    matches = [hardware for hardware in known() if name in map(_normalized, hardware.names)]
    if memory_bytes is not None:
        matches = [hardware for hardware in matches if _same_memory(hardware.memory_bytes, memory_bytes)]
    return matches[0] if len(matches) == 1 else None


MORE_KERNELS_SHARE = 0.1
"""How much more than the measured context is allowed for: kernels that a step loads and `sysbench doctor` does not."""


def contexts_file() -> Path:
    """Return the file with measured sizes of the CUDA context, by machine and slug; raises OutputError."""
    return user_directory().parent / "contexts.json"


def contexts_with(slug: str, context_bytes: int, source: str) -> str:
    """Return the content of that file with a size that was measured on this machine."""
    most_bytes = round(context_bytes * (1 + MORE_KERNELS_SHARE))
    kept = _kept_contexts()
    measured = DeviceContext(low_bytes=context_bytes, high_bytes=most_bytes, source=source)
    kept.setdefault(platform.node(), {})[slug] = measured.model_dump()
    return json.dumps(kept, indent=1)


def context_of(hardware: Hardware) -> DeviceContext | None:
    """Return the size of the context that `sysbench doctor` measured on this machine, else that of the data sheet."""
    with suppress(ValidationError, KeyError):
        return DeviceContext.model_validate(_kept_contexts()[platform.node()][hardware.slug])
    return hardware.context


def _kept_contexts() -> dict[str, dict[str, Any]]:
    """Return what is kept, by machine and slug; of a file that is missing or damaged, nothing."""
    with suppress(OSError, ValueError, OutputError):
        found = json.loads(contexts_file().read_text(encoding="utf-8"))
        if isinstance(found, dict) and all(isinstance(each, dict) for each in found.values()):
            return found
    return {}


def _user_files() -> dict[str, Path]:
    try:
        return {file.stem: file for file in sorted(user_directory().glob("*.toml"))}
    except OutputError:
        return {}


def by_slug(slug: str) -> Hardware | None:
    """Return the hardware with exactly this slug; None if there is none; raises LogError."""
    file = _user_files().get(slug)
    return read(file) if file else next((hardware for hardware in known() if hardware.slug == slug), None)


def by_name(name: str) -> Hardware:
    """Return the hardware with this name; for a memory size such as `24GiB`, a generic GPU with that much memory.

    The name is a slug, a name reported by the driver, or any unambiguous part of either: `h100-80gb`, `H100 SXM`,
    `4090`. A user's file takes precedence over the built-in one. Raises UsageError for an unknown or ambiguous name,
    and LogError if the user's file is not a valid device description.
    """
    plain = name.strip().lower()
    if (exact := by_slug(plain)) is not None:
        return exact
    if memory_bytes := memory_size(name):
        return Hardware(slug=name.strip(), title=f"a GPU with {name.strip()}", memory_bytes=memory_bytes)
    known_names = known() if len(name) <= _MAX_NAME_CHARACTERS else ()
    candidates = [hardware for hardware in known_names if _matches_name(name, hardware)]
    # A plain H100 is the card without a suffix, not the PCIe or the NVL card.
    full_matches = [hardware for hardware in candidates if _terms(hardware.slug) <= _terms(name)]
    if len(full_matches) == 1:
        return by_slug(full_matches[0].slug) or full_matches[0]
    if candidates:
        raise UsageError(unknown(name, "the full name of one GPU", [hardware.slug for hardware in candidates]))
    if plain.isdigit():
        raise UsageError(f"{name} is not a known GPU; a memory size needs a unit: {name}GiB")
    all_names = [*dict.fromkeys([*(hardware.slug for hardware in known()), *_user_files()])]
    with_prefix = [each for each in all_names if each.startswith(plain)]
    raise UsageError(unknown(name, "a known GPU or a memory size such as 24GiB", with_prefix or all_names))


def memory_size(text: str) -> int:
    """Return the bytes that a memory size such as `24GiB` stands for; 0 for other text, and beyond an exabyte."""
    size = _SIZE.fullmatch(text.strip())
    size_bytes = float(size["number"]) * _UNITS[size["unit"].lower()] if size else 0
    return round(size_bytes) if size_bytes <= MAX_COUNT else 0


def size_word(size_bytes: int) -> str:
    """Return a memory size as `memory_size` reads it, exactly: `22GiB`, `700.5MiB`."""
    unit, unit_bytes = ("GiB", 2**30) if size_bytes % 2**30 == 0 else ("MiB", 2**20)
    return f"{size_bytes / unit_bytes!r}".removesuffix(".0") + unit


def rate_word(bytes_per_s: float) -> str:
    """Return a rate as `parse_rate` reads it: `25GB/s`."""
    return f"{bytes_per_s / 1e9:.12g}GB/s"


def parse_rate(value: object) -> object:
    """Convert text such as `25GB/s` to bytes per second; return other types unchanged; raises ValueError."""
    if not isinstance(value, str):
        return value
    size, slash, _ = value.strip().removesuffix("s").rpartition("/")
    if not slash or not (bytes_per_s := memory_size(size)):
        raise ValueError(f"{value or '(nothing)'} is not a rate with a unit, such as 25GB/s")
    return float(bytes_per_s)


LinkSpeed = Annotated[PerSecond | None, BeforeValidator(parse_rate)]
"""Rate of the link between GPU and host in bytes per second."""


def parse_gpus(value: object) -> tuple[str, ...]:
    """Parse names of GPUs and memory sizes, such as `h100,24GiB`, into slugs; raises ValueError for unknown ones."""
    try:
        return split_words([by_name(name).slug for name in split_words(value)])
    except UsageError as error:
        raise ValueError(str(error)) from None


def parse_prices(value: object) -> dict[str, float]:
    """Parse `h100=2.5,4090=0.4` into a mapping from GPU slug to price; raises ValueError for anything else."""
    if isinstance(value, dict):
        return value
    found = {}
    for text in split_words(value):
        name, _, number = text.partition("=")
        try:
            price = float(number)
        except ValueError:
            raise ValueError(f"{text} is not GPU=PRICE, such as h100=2.5") from None
        found[parse_gpus(name)[0]] = price
    return found


Prices = Annotated[dict[str, PerSecond], BeforeValidator(parse_prices)]
"""Price of an hour by GPU slug, in any currency."""


def parse_gpus_or_stored(value: object, info: ValidationInfo) -> tuple[str, ...]:
    """Parse names of GPUs as `parse_gpus` does, but accept any slug in a stored spec."""
    return split_words(value) if info.context == STORED else parse_gpus(value)


SIMULATED = Axis("device", title="simulated GPU", unset="none", parse=parse_gpus_or_stored, comparison="controlled")


def slug_of(device_name: str, memory_bytes: int | None) -> str:
    """Return the slug of a device: that of its data sheet, otherwise one derived from its name."""
    hardware = find(device_name, memory_bytes)
    return hardware.slug if hardware else re.sub(r"[^a-z0-9]+", "-", device_name.casefold()).strip("-") or "device"


def _matches_name(name: str, hardware: Hardware) -> bool:
    own_terms = {term for each in (hardware.slug, hardware.title, *hardware.names) for term in _terms(each)}
    # A GPU that is sold with 80 GB, or with 141 GB, has about as many GiB.
    sizes_bytes = [int(size["number"]) * 2**30 for size in _MARKETED_SIZE.finditer(name.lower())]
    memory_matches = all(_same_memory(hardware.memory_bytes, size_bytes) for size_bytes in sizes_bytes)
    return bool(_terms(name)) and _terms(name) <= own_terms and memory_matches


def _terms(name: str) -> frozenset[str]:
    """Return the terms of a name that distinguish GPU models: `h100` and `sxm`, but no manufacturer or memory."""
    separated = _VARIANT.sub(r" \1 ", _MARKETED_SIZE.sub(" ", name.lower()))
    return frozenset(re.findall(r"[a-z0-9.]+", separated)) - _GENERIC_TERMS


def _normalized(name: str) -> str:
    """Normalise a device name for comparison; removes the manufacturer, which drivers before 510 do not report."""
    return " ".join(name.split()).casefold().removeprefix("nvidia ")


def _same_memory(one_bytes: int, other_bytes: int) -> bool:
    return abs(one_bytes - other_bytes) <= MEMORY_TOLERANCE_SHARE * max(one_bytes, other_bytes)
