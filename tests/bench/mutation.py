"""Single changes of operators and constants, and whether the related tests notice them.

    python -m tests.bench.mutation --count 200 --seed 1 --minutes 60

Each change is made in a copy of the tree, which is removed in the end; the tree itself is never written to. Only those
tests are run that call the changed function, the fastest first and for `--budget` seconds, in a fork of a process that
has imported torch already. Which tests call what is recorded once for each file of tests, in `--cache`. A change is
noticed if a test fails or does not end. Survivors are printed with their place: each wants a better test, or a reason
in `mutation_equivalent.toml` why it changes nothing that can be observed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

SUBJECTS = {
    "sysbench/statistics": "tests/statistics",
    "sysbench/simulate/allocator": "tests/simulate/test_caching_allocator.py tests/simulate/test_allocator_settings.py "
    "tests/simulate/test_allocator_replay.py tests/simulate/test_device_memory.py",
    "sysbench/trace/attribution.py": "tests/trace",
    "sysbench/trace/readers": "tests/trace",
    "sysbench/log/journal.py": "tests/log tests/engine/test_session.py",
    "sysbench/log/resume.py": "tests/log tests/engine/test_session.py",
    "sysbench/log/runs.py": "tests/log",
    "sysbench/spec/axes.py": "tests/spec/test_axes.py",
    "sysbench/snapshot/plain_pickle.py": "tests/snapshot/test_snapshot.py",
    "sysbench/snapshot/snapshot.py": "tests/snapshot/test_snapshot.py",
}
"""What is changed, and the tests that are to notice it."""

IMPORTED = ("torch", "torch.profiler", "pydantic", "typer", "rich.table", "msgspec", "psutil", "jinja2")
"""What takes long to import, and is not changed."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    path: Path
    node: int
    """Its place among all nodes of the module, in the order of `ast.walk`."""
    line: int
    function: str
    """Qualified name of the function that it is in; empty outside functions."""
    tests: tuple[str, ...]

    @property
    def text(self) -> str:
        """The line of the module, as `ast.unparse` writes it, before and after."""
        source = (ROOT / self.path).read_text(encoding="utf-8")
        lines = ast.unparse(ast.parse(source)).splitlines(), applied(source, self).splitlines()
        before, after = next((old, new) for old, new in zip(*lines, strict=False) if old != new)
        return f"{before.strip()}  →  {after.strip()}"


def changes() -> Iterator[Change]:
    """Every change that could be made."""
    for subject, tests in SUBJECTS.items():
        place = ROOT / subject
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
            for node, function in _that_run(tree):
                if _changed(node) is not None:
                    line: int = getattr(node, "lineno", 0)
                    yield Change(path.relative_to(ROOT), numbers[id(node)], line, function, tuple(tests.split()))


def _that_run(node: ast.AST, prefix: str = "", function: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Every node whose change could be noticed, with its function. Annotations and messages are not run."""
    parts: list[Any] = [*ast.iter_child_nodes(node)]
    match node:
        case ast.FunctionDef(name=name, args=arguments, body=body):
            function, prefix = f"{prefix}{name}", f"{prefix}{name}.<locals>."
            parts = [*arguments.defaults, *filter(None, arguments.kw_defaults), *body]
        case ast.ClassDef(name=name, body=body):
            prefix, parts = f"{prefix}{name}.", body
        case ast.AnnAssign(value=value):
            parts = [value] if value else []
        case ast.Call(func=ast.Name(id="zip")):
            parts = node.args  # `strict` only guards against defects
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.JoinedStr() | ast.Raise():
            return
    yield node, function
    for part in parts:
        yield from _that_run(part, prefix, function)


def _changed(node: ast.AST) -> ast.AST | None:
    """The node with another operator or constant; None where there is none."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.BinOp(left=left, right=right) if any(
            isinstance(getattr(each, "value", each), str | bytes | ast.JoinedStr) for each in (left, right)
        ):
            return None  # texts can only be added
        case ast.Compare(ops=[operator]) if type(operator) in SWAPPED:
            changed.ops = [SWAPPED[type(operator)]()]  # type: ignore[list-item]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in SWAPPED:
            changed.op = SWAPPED[type(operator)]()  # type: ignore[assignment]
        case ast.Constant(value=bool(value)):
            changed.value = not value
        case ast.Constant(value=int(value)):
            changed.value = value + 1
        case ast.Constant(value=float(value)):
            changed.value = value * 2 or 1.0
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case _:
            return None
    return changed


def applied(source: str, change: Change) -> str:
    """The module with one node changed."""
    tree = ast.parse(source)
    target = list(ast.walk(tree))[change.node]

    class Replacing(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return (_changed(node) or node) if node is target else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Replacing().visit(tree)))


# --- which tests call what


class Recording:
    """A plugin of pytest: the seconds that each test takes, and the functions of the package that it calls."""

    def __init__(self, tree: Path) -> None:
        self._package = str(tree / "sysbench")
        self._tree = tree
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, list[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        codes: set[CodeType] = set()
        began_s = time.monotonic()
        sys.settrace(lambda frame, *_: codes.add(frame.f_code))  # returns None: lines are not traced
        try:
            return (yield)
        finally:
            sys.settrace(None)
            test = item.nodeid.partition("[")[0]
            ours = {
                f"{Path(code.co_filename).relative_to(self._tree)}:{code.co_qualname}"
                for code in codes
                if code.co_filename.startswith(self._package)
            }
            self.calls[test] = sorted(ours.union(self.calls.get(test, [])))
            self.seconds[test] = self.seconds.get(test, 0.0) + time.monotonic() - began_s


def record(tree: Path, tests: str, into: Path) -> int:
    """Run a file of tests, and write down what each of them calls."""
    plugin = Recording(tree)
    status = pytest.main([*QUIETLY, tests], plugins=[plugin])
    into.write_text(json.dumps({"seconds": plugin.seconds, "calls": plugin.calls}))
    return int(status)


def recorded(tree: Path, places: set[str], cache: Path) -> dict[str, Any]:
    """By file of tests: its digest, and of each test the seconds and the calls. Only changed files are run again."""
    known: dict[str, Any] = json.loads(cache.read_text()) if cache.exists() else {}
    files = [tree / place if place.endswith(".py") else (tree / place).glob("test_*.py") for place in sorted(places)]
    for path in [each for file in files for each in ([file] if isinstance(file, Path) else sorted(file))]:
        name, digest = str(path.relative_to(tree)), hashlib.sha256(path.read_bytes()).hexdigest()
        if known.get(name, {}).get("digest") != digest:
            into = tree / "recorded.json"
            if (status := in_a_fork(tree, partial(record, tree, name, into), 600)) not in (0, 5):
                raise SystemExit(f"without any change, {name} ends with {status}")
            known[name] = {"digest": digest, **json.loads(into.read_text())}
            cache.write_text(json.dumps(known))
    return known


def related(change: Change, known: dict[str, Any], budget_s: float) -> tuple[list[str], float]:
    """The fastest tests that call the changed function, as many as take so long, and the seconds that they take.

    All tests of the subject where none does: another process may. Where what is changed is in no function, the tests of
    all functions of the module.
    """
    wanted = f"{change.path}:{change.function}"
    seconds: dict[str, float] = {}
    for file in known.values():
        for test, calls in file["calls"].items():
            if wanted in calls or (not change.function and any(each.startswith(wanted) for each in calls)):
                seconds[test] = file["seconds"][test]
    if not seconds:
        files = [file for name, file in known.items() if name.startswith(change.tests)]
        seconds = {test: taken for file in files for test, taken in file["seconds"].items()}
    fastest = sorted(seconds, key=lambda test: seconds[test])
    total_s = list(accumulate(seconds[test] for test in fastest))
    count = max(bisect(total_s, budget_s), 1)
    return fastest[:count], total_s[count - 1]


# --- trying


QUIETLY = ("-x", "-q", "-n0", "-p", "no:cacheprovider", "-p", "no:randomly")


def in_a_fork(tree: Path, run: Callable[[], int], limit_s: float) -> int | None:
    """Exit status of what is run in a fork within the tree; None if it does not end. What it has started is killed."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setsid()
            os.chdir(tree)
            sys.path[:] = [str(tree), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
            os.environ["PYTHONPATH"] = str(tree)
            for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
                del sys.modules[name]
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            status = run()
        finally:
            os._exit(status)
    until_s = time.monotonic() + limit_s
    ended = 0
    while not ended and time.monotonic() < until_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
        return None
    return os.waitstatus_to_exitcode(status)


def noticed(tree: Path, change: Change, known: dict[str, Any], budget_s: float, number: int) -> bool:
    """Whether the tests fail with the change, which is taken back."""
    path = tree / change.path
    path.write_text(applied(path.read_text(encoding="utf-8"), change), encoding="utf-8")
    later_s = time.time() + 10 * (number + 1)  # else bytecode of another change could be taken for this one's
    os.utime(path, (later_s, later_s))
    try:
        tests, seconds = related(change, known, budget_s)
        status = in_a_fork(tree, lambda: int(pytest.main([*QUIETLY, *tests])), 20 + 4 * seconds)
    finally:
        shutil.copy2(ROOT / change.path, path)
    if status not in (None, 0, 1, 2):
        raise SystemExit(f"pytest ended with {status}: {change}")
    return status != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="how many of the sample were tried before")
    parser.add_argument("--numbers", type=int, nargs="*", help="of the sample: only these, as survivors are printed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for each change")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "sysbench-mutation.json"))
    options = parser.parse_args()
    for name in IMPORTED:
        importlib.import_module(name)
    listed = tomllib.loads(Path(__file__).with_name("mutation_equivalent.toml").read_text(encoding="utf-8"))
    equivalent = {(each["path"], each["change"]) for each in listed["equivalent"]}
    possible = list(changes())
    sample = random.Random(options.seed).sample(possible, min(options.count, len(possible)))
    numbers = range(options.first, len(sample)) if options.numbers is None else options.numbers
    until_s = time.monotonic() + options.minutes * 60
    tried = survived = same = 0
    with tempfile.TemporaryDirectory(prefix="sysbench-mutation-") as directory:
        tree = Path(directory).resolve()
        for name in ("sysbench", "tests", "profiles", "docs"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"):
            shutil.copy(ROOT / name, tree / name)
        known = recorded(tree, {place for tests in SUBJECTS.values() for place in tests.split()}, options.cache)
        for number in numbers:
            if time.monotonic() > until_s:
                break
            change = sample[number]
            tried += 1
            if (str(change.path), change.text) in equivalent:
                same += 1
            elif not noticed(tree, change, known, options.budget, number):
                survived += 1
                print(f"{number} survived  {change.path}:{change.line}  {change.function}  {change.text}", flush=True)
    noticed_count = tried - same - survived
    share = f"{noticed_count / (tried - same):.1%}" if tried > same else "none"
    print(
        f"{tried} changes of {len(possible):,} tried, from {options.first} on: "
        f"{noticed_count} noticed, {survived} survived, {same} equivalent; {share} of the others noticed"
    )


if __name__ == "__main__":
    main()
