"""The command line that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

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
        if not option.positional:
            yield option_name(model, name)
        if value is not True:
            yield ",".join(map(_word, value)) if isinstance(value, tuple) else _word(value)


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
