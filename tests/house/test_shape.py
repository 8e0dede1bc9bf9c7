"""The shape of the house, counted: what CONTRIBUTING promises cannot rot unseen."""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from grimp import build_graph

from sysbench.command import commands, kinds
from sysbench.commands.kinds import CommandWithRuns, command_of
from sysbench.commands.time.record import ReadingsRecord
from sysbench.log import records
from sysbench.log.events import EVENTS, Event
from sysbench.spec.frozen import Frozen

PACKAGE = Path(__file__).parents[2] / "sysbench"
SOURCES = sorted(PACKAGE.rglob("*.py"))

MOST_FILES = 20
"""A folder holds no more modules than this."""

MOST_LOOKUPS = 15
"""Of `.axes["…"]`: typed cells are asked instead."""

LONGEST_LINES = 60


@cache
def nodes() -> list[tuple[Path, ast.AST]]:
    return [(path, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def functions() -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path, node in nodes():
        if isinstance(node, ast.FunctionDef):
            yield path, node


def test_no_folder_is_too_full() -> None:
    counted = Counter(str(source.parent) for source in SOURCES)
    full = {folder: count for folder, count in counted.items() if count > MOST_FILES}
    assert not full


def test_nothing_is_keyed_by_the_names_of_commands_but_the_list_of_them() -> None:
    names = set(commands())
    for path, node in nodes():
        if isinstance(node, ast.Dict):
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
            assert len(keys & names) < 3, f"{path}:{node.lineno}"


def commands_named_in(path: Path) -> set[str]:
    """The commands whose folders a file imports anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    found = {match[1] for name in names if (match := re.match(r"sysbench\.commands\.(\w+)\b", name))}
    return found & set(commands())


def test_no_command_knows_another() -> None:
    folder = PACKAGE / "commands"
    files = [path for path in SOURCES if path.is_relative_to(folder) and path != folder / "__init__.py"]
    owner = {path: path.relative_to(folder).parts[0] for path in files}
    known = {(owner[path], other) for path in files for other in commands_named_in(path) - {owner[path]}}
    assert known <= {("check", "fit")}  # check asks the question of fit that a file stands for, and shows its answer


def test_a_lazy_import_of_a_command_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "lazy.py"
    file.write_text("def show():\n    from sysbench.commands.memory.tables import sheet\n    return sheet\n")
    assert commands_named_in(file) == {"memory"}
    file.write_text("from sysbench.commands import running, artefacts\n")
    assert not commands_named_in(file)


def test_every_part_of_a_command_can_be_imported() -> None:
    for command in commands().values():
        parts = [command.function]
        if isinstance(command, CommandWithRuns):
            parts += [command.models, command.records, command.launch, command.results, command.screen]
        assert all(part() for part in parts), command.name


def test_no_module_imports_itself_through_others() -> None:
    graph = build_graph("sysbench", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()


def test_axes_are_rarely_looked_up_by_name() -> None:
    found = [path for path in SOURCES for _ in range(path.read_text(encoding="utf-8").count(".axes["))]
    assert len(found) <= MOST_LOOKUPS


def test_a_record_keeps_its_event_instead_of_declaring_its_fields_again() -> None:
    records = _record_classes()  # importing them registers the events of their commands
    declared: dict[type, dict[str, str]] = {
        cls: {name: str(cls.__annotations__[name]) for name in cls.__annotations__ if name not in ("event", "cell")}
        for cls in (*EVENTS.values(), *records)
    }
    for event in EVENTS.values():
        for record in set(records) - {ReadingsRecord}:  # medians over readings, not a reading
            common = declared[event].items() & declared[record].items()
            assert len(common) < 3, f"{event.__name__} and {record.__name__}: {sorted(common)}"


def _record_classes() -> list[type[Frozen]]:
    modules = [records, *(sys.modules[command_of(kind).records().record.__module__] for kind in kinds())]
    found = [cls for module in modules for cls in vars(module).values() if isinstance(cls, type)]
    return [cls for cls in found if issubclass(cls, Frozen) and not issubclass(cls, Event)]


def test_functions_fit_a_screen() -> None:
    long = [
        f"{path}:{node.lineno}" for path, node in functions() if (node.end_lineno or 0) - node.lineno >= LONGEST_LINES
    ]
    assert not long


def test_no_module_is_reached_from_tests_only() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry_points = set(re.findall(r"\w+", str(project["entry-points"])))
    words = {path: set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) for path in SOURCES}
    unused = [
        path
        for path in SOURCES
        if path.stem not in ("__init__", "__main__", *entry_points)
        and not any(path.stem in words[o] for o in SOURCES if o != path)
    ]
    assert not unused


def test_the_way_of_a_number_is_told_with_names_that_are_there() -> None:
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("### One number's way")[2].partition("\n### ")[0]
    steps = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", section, re.MULTILINE)
    assert len(steps) > 10
    defined = {(file, name): rf"^(def|class) {name}\b" for file, name in steps}
    read = {file: (PACKAGE / file).read_text(encoding="utf-8") for file, _ in steps}
    assert [step for step, pattern in defined.items() if not re.search(pattern, read[step[0]], re.MULTILINE)] == []
