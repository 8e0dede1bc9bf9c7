"""Write the record of a finished run beside its log, and the files that its options name."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sysbench.errors import SysbenchError
from sysbench.log import storage
from sysbench.log.records import RunRecord


class RecordFile:
    """The record beside its log, written by a thread while the results are shown: disks may be slow.

    What cannot be written or shown prevents nothing else from being written or shown; `failures` keeps the errors.
    """

    def __init__(self, record: RunRecord, log: Path, failure: SysbenchError | None) -> None:
        """Begin to write; `failure` is the error that ended the run, if any."""
        self.path = log.with_suffix(".json")
        self.failures = [] if failure is None else [failure]
        self._content = record.model_dump_json(indent=1).encode() + b"\n"
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._written = self._writer.submit(storage.write_atomically, self.path, self._content)

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Keep an error for later."""
        try:
            yield
        except SysbenchError as error:
            self.failures.append(error)

    def copy_to(self, json_path: str | None) -> None:
        """Write the record to the file of `--json` too, if there is one."""
        if json_path not in (None, "-"):
            storage.write_atomically(Path(json_path), self._content)

    def wait(self) -> None:
        """Return when the record is written; raises OutputError if it cannot be written."""
        self._written.result()
