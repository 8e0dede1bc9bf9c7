"""The marker that turns a spec's field into a command-line option."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

MODEL, OWN_MODEL, STEP, DEVICE, RANKS = STEP_PANELS = (
    *("Model", "Your own model", "Training step", "Device", "Several ranks"),
)
"""Headings of the options of a training step, in the order of the help."""

SWEEP = "Sweep"
MEASUREMENT = "Measurement"


@dataclass(frozen=True)
class Option:
    """Marks a field as a command-line option.

    flags       spellings, the preferred one first; default: the field's name with dashes
    metavar     placeholder for the value in the help
    panel       heading in the help under which the option is listed
    shorthands  flags without a value, each short for one value of the option: `(("--bf16", "bf16"),)`
    positional  the option is an argument without a flag
    repeated    the option may be given several times, or as several arguments; its field gets a list of words
    pair        the option takes the next two words, even if they look like options
    values      completions for a shell, if the type of the field does not list them
    completions returns more completions, which depend on the files of this machine
    common      shown by `--help`; a command with many options shows the others only with `--help all`
    word        writes a value as the option reads it; None if `str` does
    names_code  a value that is not one of `values` names code to run, or the place that code comes from
    """

    flags: tuple[str, ...] = ()
    metavar: str | None = None
    panel: str = "Options"
    shorthands: tuple[tuple[str, str], ...] = ()
    positional: bool = False
    repeated: bool = False
    pair: bool = False
    values: tuple[str, ...] = ()
    completions: Callable[[], Iterable[str]] = tuple
    common: bool = False
    word: Callable[[object], str] | None = None
    names_code: bool = False


def flag_of(field: str) -> str:
    """Return the long flag of a field: `--d-model` for `d_model`."""
    return "--" + field.replace("_", "-")
