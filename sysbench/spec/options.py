"""How a spec's field appears on the command line; the field itself holds the default and the help text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """Marks a field as a command-line option.

    `flags` are its spellings (by default the field's name with dashes), `metavar` is the placeholder of its value,
    `panel` the heading under which it is listed, and `shorthands` are flags without a value that set one: `{"--bf16":
    "bf16"}`. A `positional` option needs no flag. A `repeated` option may be given several times, or as several
    arguments: its field gets a list of words; a `pair` takes the next two words, whatever they are.
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
