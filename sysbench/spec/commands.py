"""Options of each command by long name, for experiments: `d-model`, `bf16`, `heat-map`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sysbench.command import Kind, measuring
from sysbench.spec.options import Option
from sysbench.spec.validation import option_name, option_of

OF_THE_WHOLE = frozenset(
    {"out", "json_path", "format", "no_live", "quiet", "debug", "plan", "resume", "source", "timeout_s"}
)
"""Fields of options that apply to a whole experiment, or have no use in one."""

_PLANS_ONLY = frozenset({("time", "simulate")})
"""Options that have an effect only with --plan."""


@dataclass(frozen=True)
class Key:
    """The meaning of one long name."""

    field: str
    """Whether it belongs to the spec, or otherwise to the options."""
    model: type[BaseModel]
    """The spec or options class that has the field."""
    info: FieldInfo
    stands_for: str | None = None
    """The value that a shorthand stands for: `bf16` is `precision` bf16."""

    @property
    def switch(self) -> bool:
        """Whether it is a switch without a value."""
        return self.stands_for is not None or self.info.annotation is bool

    @property
    def is_file(self) -> bool:
        """Whether it names a file that the command writes."""
        return Path in get_args(self.info.annotation)


@cache
def keys_of(kind: Kind) -> Mapping[str, Key]:
    """Return all options of this command in an experiment, those of the spec first."""
    command = measuring(kind)
    keys: dict[str, Key] = {}
    for model in (command.spec_class, command.options_class):
        for field, info in model.model_fields.items():
            if not any(isinstance(mark, Option) for mark in info.metadata):
                continue
            if model is command.options_class and (field in OF_THE_WHOLE or (kind, field) in _PLANS_ONLY):
                continue
            keys[long_name(model, field)] = Key(field, model, info)
            for flag, value in option_of(info).shorthands:
                keys[flag.removeprefix("--")] = Key(field, model, info, value)
    return keys


def long_name(model: type[BaseModel], field: str) -> str:
    """Name of an option without leading dashes; for a positional argument, the name of its field."""
    if option_of(model.model_fields[field]).positional:
        return field
    return option_name(model, field).removeprefix("--")
