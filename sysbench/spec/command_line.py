"""The command line that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel

from sysbench.spec.cell import RunSpec
from sysbench.spec.options import Option
from sysbench.spec.validation import option_name, option_of


def command_line(spec: RunSpec) -> str:
    """Return the shortest command line with the same cells: defaults are omitted. A program has its call instead."""
    return spec.called or shlex.join(["sysbench", spec.kind, *_words(spec)])


def _words(spec: BaseModel) -> Iterator[str]:
    model = type(spec)
    for name, field in model.model_fields.items():
        value = getattr(spec, name)
        marked = any(isinstance(mark, Option) for mark in field.metadata)
        if not marked or value == field.get_default(call_default_factory=True) or value is False or value is None:
            continue
        option = option_of(field)
        for each in _entries(value) if option.repeated else (value,):
            if not option.positional:
                yield option_name(model, name)
            if each is not True:
                yield _word(each)


def _entries(value: Mapping[str, object] | Iterable[object]) -> Iterable[object]:
    """What a repeated option is given one after the other."""
    return [f"{name}={_word(each)}" for name, each in value.items()] if isinstance(value, Mapping) else value


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_word, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
