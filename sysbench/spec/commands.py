"""What the command of each kind can be given, by the long names of its options: `d-model`, `bf16`, `heat-map`."""

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
"""Options that are given to an experiment as a whole, or make no sense in one, by field."""

_PLANS_ONLY = frozenset({("time", "simulate")})
"""Options that do nothing but with --plan."""


@dataclass(frozen=True)
class Key:
    """What one long name stands for."""

    field: str
    """Of the spec, or else of the options."""
    model: type[BaseModel]
    """Whichever of the two it is a field of."""
    info: FieldInfo
    stands_for: str | None = None
    """The value that it is short for: `bf16` is `precision` bf16."""

    @property
    def switch(self) -> bool:
        """Whether it is there or not, without a value."""
        return self.stands_for is not None or self.info.annotation is bool

    @property
    def is_file(self) -> bool:
        """Whether it names a file that the command writes."""
        return Path in get_args(self.info.annotation)


@cache
def keys_of(kind: Kind) -> Mapping[str, Key]:
    """Everything that a run of this kind can be told in an experiment, the measured first."""
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
    """The name of an option without dashes in front; of what needs no flag, its own."""
    if option_of(model.model_fields[field]).positional:
        return field
    return option_name(model, field).removeprefix("--")
