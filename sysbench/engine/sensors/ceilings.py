"""The highest matmul rates that any run has seen on a device, in a file in the user's directory.

A ceiling that was measured beside other busy processes is far too low, and no rate should be compared with it. So the
best undisturbed one counts, of this run or of an earlier one with the same device, number of threads and torch.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from sysbench.errors import OutputError
from sysbench.log import storage
from sysbench.log.events import CeilingMeasured, DeviceInfo
from sysbench.spec import hardware
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Count, Instant, PerSecond, Size
from sysbench.spec.steps import Precision


class Best(Frozen):
    """The best ceiling of a device with a version of torch."""

    device: str
    """Name of the hardware."""
    torch: str
    precision: Precision
    threads: Size
    """Number of CPU threads that torch uses by default, or the chosen number."""
    matmul_flops_per_s: PerSecond
    matmul_size: Count
    at_s: Instant


_FILE: TypeAdapter[list[Best]] = TypeAdapter(list[Best])


def file() -> Path:
    """Return the path of the file, which holds a JSON list of `Best`."""
    return hardware.user_directory().parent / "ceilings.json"


def best(measured: CeilingMeasured, device: DeviceInfo, torch: str, default_threads: int) -> CeilingMeasured:
    """Return the ceiling to use: the measured one, or a better one that an earlier run has seen.

    The measured one is kept for later runs if it is the best so far and undisturbed. A file that cannot be read or
    written is no reason to end a run: the measured ceiling is then used.
    """
    here = Best(
        device=device.name,
        torch=torch,
        precision=measured.precision,
        threads=measured.threads or default_threads,
        matmul_flops_per_s=measured.matmul_flops_per_s,
        matmul_size=measured.matmul_size,
        at_s=measured.at_s,
    )
    with suppress(OSError, OutputError), _locked(file()):
        known = {_subject(each): each for each in _read(file())}
        earlier = known.get(_subject(here))
        if earlier is not None and (measured.disturbed or earlier.matmul_flops_per_s > here.matmul_flops_per_s):
            return measured.model_copy(
                update={
                    "matmul_flops_per_s": earlier.matmul_flops_per_s,
                    "matmul_size": earlier.matmul_size,
                    "seen_at_s": earlier.at_s,
                    "flops_per_s_now": measured.matmul_flops_per_s,
                    "disturbed": False,
                }
            )
        if not measured.disturbed:
            storage.write_atomically(file(), _FILE.dump_json([*({**known, _subject(here): here}).values()], indent=1))
    return measured


def _subject(best: Best) -> tuple[str, str, str, int]:
    return best.device, best.torch, best.precision, best.threads


def _read(path: Path) -> list[Best]:
    try:
        return _FILE.validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return []


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclude other runs while the file is read and replaced; raises OSError or OutputError if that is impossible."""
    storage.make_directory(path.parent)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
