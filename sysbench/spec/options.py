"""How a spec's field appears on the command line; the field itself holds the default and the help text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """Marks a field as a command-line option.

    `flags` are its spellings (by default the field's name with dashes), `metavar` what stands for its value,
    `panel` the heading it is listed under, and `shorthands` are flags without a value that stand for one:
    `{"--bf16": "bf16"}`. What is `positional` needs no flag. What is `repeated` may be given several times, or as
    several arguments: its field gets a list of words; a `pair` takes the two words that follow it, whatever they are.
    """

    flags: tuple[str, ...] = ()
    metavar: str | None = None
    panel: str = "Options"
    shorthands: tuple[tuple[str, str], ...] = ()
    positional: bool = False
    repeated: bool = False
    pair: bool = False


def flag_of(field: str) -> str:
    """The long flag of a field: `d_model` is `--d-model`."""
    return "--" + field.replace("_", "-")
