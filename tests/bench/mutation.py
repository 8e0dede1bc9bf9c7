"""Single changes of operators and constants, and whether the related tests notice them.

    python -m tests.bench.mutation --count 200 --seed 1 --minutes 60

Each change is made in a copy of the tree, which is removed in the end; the tree itself is never written to. A change
is noticed if the related tests fail or do not end. Survivors are printed with their place: each wants a better test, or
an explanation of why it changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

SUBJECTS = {
    "sysbench/statistics": "tests/statistics",
    "sysbench/simulate/allocator": "tests/simulate/test_caching_allocator.py",
    "sysbench/trace/attribution.py": "tests/trace/test_attribution.py",
    "sysbench/trace/readers": "tests/trace",
    "sysbench/log/journal.py": "tests/log",
    "sysbench/log/resume.py": "tests/log tests/engine/test_session.py",
    "sysbench/spec/axes.py": "tests/spec/test_axes.py",
    "sysbench/snapshot": "tests/snapshot",
}
"""What is changed, and the tests that are to notice it."""

LIMIT_S = 120.0
"""Tests that take longer have noticed: a loop does not end."""

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
    text: str
    tests: tuple[str, ...]


def changes() -> Iterator[Change]:
    """Every change that could be made."""
    for subject, tests in SUBJECTS.items():
        place = ROOT / subject
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            quiet = {id(each) for node in ast.walk(tree) for each in _not_run(node)}
            for number, node in enumerate(ast.walk(tree)):
                if id(node) not in quiet and (changed := _changed(node)) is not None:
                    text = f"{ast.unparse(node)}  →  {ast.unparse(changed)}"
                    line = getattr(node, "lineno", 0)
                    yield Change(path.relative_to(ROOT), number, line, text, tuple(tests.split()))


def _not_run(node: ast.AST) -> Iterator[ast.AST]:
    """Annotations, whose operators do nothing."""
    for name in ("annotation", "returns"):
        if (annotation := getattr(node, name, None)) is not None:
            yield from ast.walk(annotation)


def _changed(node: ast.AST) -> ast.AST | None:
    """The node with another operator or constant; None where there is none."""
    changed = copy.deepcopy(node)
    match changed:
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


def noticed(tree: Path, change: Change) -> bool:
    """Whether the tests fail with the change, which is taken back."""
    path = tree / change.path
    source = path.read_text(encoding="utf-8")
    path.write_text(applied(source, change), encoding="utf-8")
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", *change.tests],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""},
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(source, encoding="utf-8")
    if ran.returncode not in (0, 1, 2):
        raise SystemExit(f"pytest ended with {ran.returncode}: {ran.stdout.decode()[-500:]}")
    return ran.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="how many of the sample were tried before")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    options = parser.parse_args()
    possible = list(changes())
    sample = random.Random(options.seed).sample(possible, min(options.count, len(possible)))[options.first :]
    until_s = time.monotonic() + options.minutes * 60
    tried = survived = 0
    with tempfile.TemporaryDirectory(prefix="sysbench-mutation-") as directory:
        tree = Path(directory)
        for name in ("sysbench", "tests", "profiles", "docs"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"):
            shutil.copy(ROOT / name, tree / name)
        for change in sample:
            if time.monotonic() > until_s:
                break
            tried += 1
            if not noticed(tree, change):
                survived += 1
                print(f"survived  {change.path}:{change.line}  {change.text}", flush=True)
    share = f"{(tried - survived) / tried:.0%}" if tried else "none"
    print(f"{tried} changes of {len(possible):,} tried, from {options.first} on; {survived} survived, {share} noticed")


if __name__ == "__main__":
    main()
