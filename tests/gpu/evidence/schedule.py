"""Which parts there is time for, which run beside each other, and what happens to one that hangs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.evidence.commands import end
from tests.gpu.evidence.work import LEAST_SHARE, ROOT, Part, result_path, without_places

GRACE_S = 15.0
"""A part stops by itself when its time is up; this much later it is ended."""

Start = Callable[[Part, float], "subprocess.Popen[bytes]"]
"""Starts a part, which is to take no longer than so many seconds."""


@dataclass(frozen=True)
class Child:
    """Parts as processes that write into a directory."""

    directory: Path
    rehearsal: bool

    def __call__(self, part: Part, seconds: float) -> subprocess.Popen[bytes]:
        """Start the part."""
        words = [sys.executable, "-m", "tests.gpu.evidence.child", part.name, str(self.directory), f"{seconds:.1f}"]
        log = self.directory / "records" / f"{part.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            return subprocess.Popen(
                [*words, *(["--rehearse"] if self.rehearsal else [])],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


def groups(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Parts that run at the same time: neighbours that do not mind."""
    together: list[Part] = []
    for part in parts:
        if not part.alone:
            together.append(part)
            continue
        if together:
            yield together
            together = []
        yield [part]
    if together:
        yield together


def run(
    parts: Sequence[Part],
    directory: Path,
    deadline_s: float,
    start: Start,
    finished: Callable[[dict[str, Any]], None],
    *,
    rehearsal: bool = False,
    grace_s: float = GRACE_S,
) -> None:
    """Run every part that there is time for, and hand over what each has found as soon as it is over.

    A part is left out where much less is left until `deadline_s`, by the monotonic clock, than it is expected to take;
    later ones that are shorter may still have their turn.
    """
    for group in groups(parts):
        running: list[tuple[Part, subprocess.Popen[bytes], float, float]] = []
        try:
            for part in group:
                left_s = deadline_s - time.monotonic()
                why = _reason_against(part, left_s, rehearsal=rehearsal)
                if why is not None:
                    finished({**_blank(part, rehearsal=rehearsal), "outcome": "left out", "left_out": [why]})
                    continue
                result_path(directory, part.name).unlink(missing_ok=True)
                limit_s = max(0.0, left_s if rehearsal else min(part.most_s, left_s))
                began_s = time.monotonic()
                running.append((part, start(part, limit_s), began_s, began_s + limit_s + grace_s))
            _wait(running, directory, finished, rehearsal=rehearsal)
        finally:
            for _, process, _, _ in running:
                end(process, 1.0)


def _wait(
    running: list[tuple[Part, subprocess.Popen[bytes], float, float]],
    directory: Path,
    finished: Callable[[dict[str, Any]], None],
    *,
    rehearsal: bool,
) -> None:
    waiting = list(running)
    while waiting:
        for each in list(waiting):
            part, process, began_s, ends_at_s = each
            hangs = time.monotonic() > ends_at_s
            if process.poll() is None and not hangs:
                continue
            waiting.remove(each)
            if hangs:
                end(process, 1.0)
            code = None if hangs else process.returncode
            finished(_found(part, directory, code, time.monotonic() - began_s, rehearsal=rehearsal))
        time.sleep(0.05)


def _found(part: Part, directory: Path, code: int | None, took_s: float, *, rehearsal: bool) -> dict[str, Any]:
    """What the part has written down, with how it ended where it could not say so itself."""
    found = _blank(part, rehearsal=rehearsal)
    path = result_path(directory, part.name)
    if path.exists():
        found |= json.loads(path.read_text())
    if code is None or found["outcome"] == "unfinished":
        found["outcome"] = "hung" if code is None else "failed"
        how = "did not end in time and was ended" if code is None else f"ended with {code} before it was over"
        found["problems"] = [*found["problems"], how + _last_words(directory, part)]
    return {**found, "took_s": round(took_s, 1)}


def _last_words(directory: Path, part: Part) -> str:
    log = directory / "records" / f"{part.name}.log"
    words = log.read_text(errors="replace")[-600:].strip() if log.exists() else ""
    return f": {without_places(words, directory)}" if words else ""


def _reason_against(part: Part, left_s: float, *, rehearsal: bool) -> str | None:
    """Why a part is left out, or None when it is not."""
    if rehearsal and part.rehearsed_by is not None:
        return f"does what {part.rehearsed_by} does, with other options"
    if left_s < (0 if rehearsal else LEAST_SHARE * part.estimate_s):
        return f"takes about {part.estimate_s:.0f} s, and {max(0.0, left_s):.0f} s were left"
    return None


def _blank(part: Part, *, rehearsal: bool) -> dict[str, Any]:
    return {
        "name": part.name,
        "title": part.title,
        "outcome": "unfinished",
        "rehearsal": rehearsal,
        "estimate_s": part.estimate_s,
        "took_s": None,
        "commands": [],
        "numbers": {},
        "tables": [],
        "promises": [promise.outcome(None, rehearsal=rehearsal) for promise in part.promises],
        "problems": [],
        "left_out": [],
    }
