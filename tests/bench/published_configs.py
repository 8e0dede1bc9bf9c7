"""`sysbench check` over directories of training configs: the verdict of each file, or why there is none.

    python -m tests.bench.published_configs DIRECTORY … [--on GPU] [--only TEXT] [--limit SECONDS] [--state FILE]

A file is `verdict` (fits, does not fit, or the CUDA context decides), `refused` (with the reason in one line),
`starter` (starts a training and describes none, or is no config of a trainer), `slow` (longer than the limit) or
`crash`. One process at a time, at low priority. With --state, files that are in it already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (".yaml", ".yml", ".json", ".toml")


class Outcome(NamedTuple):
    """What became of a file."""

    kind: str
    said: str
    """The verdict, or the reason why there is none."""
    duration_s: float


def checked(path: Path, gpu: str, limit_s: float) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "sysbench", "check", str(path), "--on", gpu, "-q", "--out", directory]
        began_s = time.monotonic()
        process = subprocess.Popen(
            [*command, "--json", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            shown, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Outcome("slow", f"no answer in {limit_s:.0f} s", limit_s)
    return Outcome(*_judged(process.returncode, shown, said), time.monotonic() - began_s)


def _judged(exit_code: int, shown: str, said: str) -> tuple[str, str]:
    if exit_code in (0, 1, 3) and shown.strip():
        tables = {table["name"]: table for table in json.loads(shown)["tables"]}
        return "verdict", ", ".join(row["fits"] for row in tables["verdict"]["rows"])
    line = (said.strip().splitlines() or ["(nothing)"])[-1]
    if exit_code == 1 and "cannot tell: " in said:
        return "refused", said.partition("cannot tell: ")[2].strip()
    if exit_code == 2 and ("starts a training but does not" in said or "is no config of" in said):
        return "starter", line
    return "crash", line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--on", default="h100")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--limit", type=float, default=180, help="seconds for each file")
    parser.add_argument("--state", type=Path, help="a file of results, which are not computed again")
    options = parser.parse_args()
    os.nice(10)
    state = options.state
    found = json.loads(state.read_text()) if state is not None and state.exists() else {}
    paths = sorted(path for root in options.directories for path in root.rglob("*") if path.suffix in SUFFIXES)
    for path in paths:
        if options.only in str(path):
            if str(path) not in found:
                found[str(path)] = checked(path, options.on, options.limit)
                if state is not None:
                    state.write_text(json.dumps(found, indent=1))
            kind, said, duration_s = found[str(path)]
            print(f"{kind:8} {duration_s:6.1f} s  {path}: {said}", flush=True)
    kinds = Counter(kind for path, (kind, _, _) in found.items() if options.only in path)
    trained = sum(kinds.values()) - kinds["starter"]
    print(f"{trained} training configs: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))


if __name__ == "__main__":
    main()
