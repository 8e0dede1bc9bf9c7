"""A config file of a trainer or launcher: its keys with their values and lines. Nothing in it is executed.

YAML is read by ruamel.yaml's round-trip loader, which builds no objects for tags, refuses duplicate keys, and keeps
comments for `--write`.
"""

from __future__ import annotations

import io
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysbench.errors import UsageError

if TYPE_CHECKING:
    from ruamel.yaml import YAML

MAX_BYTES = 1 << 20
"""Largest file to read; the largest of 196 published configs has 7 kB."""

MAX_VALUES = 20_000
"""Largest number of values in a file, each alias counted as what it stands for."""

_JSON_KEY = re.compile(r'"([^"]+)"\s*:')
_TOML_KEY = re.compile(r"([\w-]+)\"?\s*[=\]]")

SUFFIXES = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True)
class Entry:
    """A value of the file, which is not a mapping, and the line on which its key stands."""

    value: object
    line: int


@dataclass(frozen=True)
class ConfigFile:
    """A file as it was read."""

    path: Path
    document: dict[str, Any]
    entries: dict[str, Entry]
    """Every value by its dotted path, such as `fsdp_config.offload_params`; lists are values."""
    indents_lists: bool
    """Whether items of a list stand further in than its key, for a copy that looks like the file."""

    @property
    def keys(self) -> frozenset[str]:
        """Return the keys of the file's top level."""
        return frozenset(map(str, self.document))


def read(path: Path) -> ConfigFile:
    """Read a YAML, JSON or TOML file; raises UsageError with one line for anything that is not one mapping of keys."""
    text = _text(path)
    suffix = path.suffix.lower()
    if suffix == ".json":
        document, lines = _json(path, text), _lines_of_keys(text, _JSON_KEY)
    elif suffix == ".toml":
        document, lines = _toml(path, text), _lines_of_keys(text, _TOML_KEY)
    elif suffix in SUFFIXES:
        document, lines = _yaml(path, text), None
    else:
        raise UsageError(f"{path} is none of {', '.join(SUFFIXES)}: these are what trainers read")
    if not isinstance(document, dict) or not document:
        raise UsageError(f"{path} holds {'nothing' if not document else 'no mapping'}: a config is keys with values")
    entries: dict[str, Entry] = {}
    for name, key, mapping, value in _flattened(document):
        if len(entries) == MAX_VALUES:
            raise UsageError(f"{path} stands for more than {MAX_VALUES:,} values, counting aliases")
        entries[name] = Entry(value, _yaml_line(mapping, key) if lines is None else lines.get(str(key), 1))
    return ConfigFile(path, document, entries, re.search(r"^ +- ", text, re.MULTILINE) is not None)


def changed_copy(file: ConfigFile, changes: Mapping[str, object]) -> str:
    """Return the text of the file with changed or added keys; YAML keeps comments and order.

    Raises UsageError for TOML, which nothing here writes.
    """
    for name, value in changes.items():
        *parents, last = name.split(".")
        mapping = file.document
        for parent in parents:
            mapping = mapping.setdefault(parent, {})
        mapping[last] = value
    if file.path.suffix.lower() == ".json":
        return json.dumps(file.document, indent=2, ensure_ascii=False) + "\n"
    if file.path.suffix.lower() == ".toml":
        raise UsageError(f"--write writes YAML and JSON, not TOML: add the lines to {file.path} by hand")
    written = io.StringIO()
    yaml = _loader()
    if file.indents_lists:
        yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(file.document, written)
    return written.getvalue()


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise UsageError(f"there is no file {path}")
        if (size_bytes := path.stat().st_size) > MAX_BYTES:
            raise UsageError(f"{path} has {size_bytes / MAX_BYTES:.1f} MiB: a config has at most 1 MiB")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8") from None


def _loader() -> YAML:
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 4096  # long lines stay as they are
    return yaml


def _yaml(path: Path, text: str) -> Any:
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return _loader().load(text)
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = " ".join((error.problem or error.context or "no YAML").split())
        raise UsageError(f"{path}{line}: {problem}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())[:200]}") from None


def _json(path: Path, text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f'{path}: found duplicate key "{twice}"')
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply") from None


def _toml(path: Path, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from None


def _flattened(mapping: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any, Mapping[Any, Any], object]]:
    """Yield (dotted path, key, mapping that has it, value) of every value that is not a mapping with keys."""
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", key, mapping, value


def _yaml_line(mapping: Any, key: object) -> int:
    place = mapping.lc.data or {}
    return int(place[key][0]) + 1 if key in place else int(mapping.lc.line) + 1  # a merged key has no place of its own


def _lines_of_keys(text: str, key: re.Pattern[str]) -> dict[str, int]:
    """Return the first line that has each key, by the pattern of one."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for found in key.finditer(line):
            lines.setdefault(found[1], number)
    return lines
