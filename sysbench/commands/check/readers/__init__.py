"""The formats of files that `sysbench check` reads, a module each."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from sysbench.commands.check.file import ConfigFile
from sysbench.commands.check.understanding import Format
from sysbench.errors import UsageError

_MODULES = (
    "axolotl",
    "trainer",
    "llama_factory",
    "llama_factory_v1",
    "litgpt",
    "torchtitan",
    "accelerate",
    "deepspeed",
)


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats."""
    return tuple(import_module(f"{__name__}.{name}").FORMAT for name in _MODULES)


def format_of(file: ConfigFile) -> Format:
    """Return the format of a file: the one that a key decides, else that with most of its keys.

    Raises UsageError if none has two of them.
    """

    def likeness(form: Format) -> tuple[bool, int]:
        return not file.keys.isdisjoint(form.decided_by), len(file.keys & form.recognized_by)

    best = max((form for form in formats() if form.may_be(file)), key=likeness)
    if likeness(best)[1] < min(2, len(file.keys)):
        names = ", ".join(form.name for form in formats())
        some = ", ".join(sorted(file.keys)[:4])
        raise UsageError(
            f"{file.path} (with {some}) is no config of {names}. sysbench fit --model hf:NAME computes any model's step"
        )
    return best
