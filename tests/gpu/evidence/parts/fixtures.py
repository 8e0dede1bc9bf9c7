"""Small recordings that tests can keep: a memory snapshot with segment events, traces of a step, autocast's types."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

from sysbench.frames import owner
from tests.gpu.evidence.promises import at_most
from tests.gpu.evidence.work import ROOT, TINY, Part, Work

LARGEST_BYTES = 1_000_000
LARGEST = "the largest recording"


def _run(work: Work) -> None:
    model = TINY if work.rehearsal else ("--size=tiny",)
    step = (*model, "--ctx=64", "--mode=train", work.device)
    snapshot = work.place / "snapshot.pickle"
    work.cells("memory", *step, f"--snapshot={snapshot}")
    with work.attempt("the snapshot"):
        content = pickle.loads(snapshot.read_bytes())  # noqa: S301  written by ourselves a moment ago
        with gzip.open(work.fixtures / "snapshot.pickle.gz", "wb", compresslevel=9) as file:
            pickle.dump(without_places(content), file, protocol=4)
        actions = [entry["action"] for trace in content["device_traces"] for entry in trace]
        work.numbers["snapshot_actions"] = {action: actions.count(action) for action in sorted(set(actions))}
        snapshot.unlink()
    for precision in ("fp32", "bf16"):
        trace = work.fixtures / f"trace-{precision}.json.gz"
        work.cells(
            "profile", *step, f"--precision={precision}", "--active=1", "--steps=0", "--warmup=2", f"--trace={trace}"
        )
    with work.attempt("autocast's types"):
        cells = work.cells("accum", "autocast", "--size=toy,tiny", work.device)
        types = [{"axes": cell["axes"], "dtypes": cell["dtypes"]} for cell in cells]
        (work.fixtures / "autocast.json").write_text(json.dumps(types, indent=1) + "\n")
    sizes = {path.name: path.stat().st_size for path in sorted(work.fixtures.iterdir())}
    work.numbers["fixtures_bytes"] = sizes
    if sizes:
        work.see(LARGEST, max(sizes.values()), max(sizes, key=lambda name: sizes[name]))


def without_places(value: Any) -> Any:
    """The same with file names as they are inside a package or the checkout, wherever those were installed."""
    if isinstance(value, dict):
        return {name: _file(each) if name == "filename" else without_places(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_places(each) for each in value)
    return value


def _file(name: str) -> str:
    file = owner(name)
    return "/".join(file.path) if file.package else name.replace(f"{ROOT}/", "")


def kept(directory: Path) -> list[Path]:
    """The recordings that are small enough to be kept."""
    return [path for path in sorted((directory / "fixtures").glob("*")) if path.stat().st_size <= LARGEST_BYTES]


PART = Part(
    "fixtures",
    "recordings for tests",
    50,
    _run,
    (at_most(LARGEST, LARGEST_BYTES, "bytes"),),
    alone=False,
    limit_s=200,
)
