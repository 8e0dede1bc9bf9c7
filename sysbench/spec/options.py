"""The marker that turns a spec's field into a command-line option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


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
    common      shown by `--help`; a command with many options shows the others only with `--help all`
    word        writes a value as the option reads it; None if `str` does
    """

    flags: tuple[str, ...] = ()
    metavar: str | None = None
    panel: str = "Options"
    shorthands: tuple[tuple[str, str], ...] = ()
    positional: bool = False
    repeated: bool = False
    pair: bool = False
    values: tuple[str, ...] = ()
    common: bool = False
    word: Callable[[Any], str] | None = None


OPTION_SYNONYMS: Mapping[str, str] = {
    "ctx": "seq",
    "d-head": "dim",
    "seq-len": "ctx",
    "sequence-length": "ctx",
    "max-length": "ctx",
    "max-seq-len": "ctx",
    "context": "ctx",
    "block-size": "ctx",
    "bs": "batch",
    "micro-batch-size": "batch",
    "per-device-train-batch-size": "batch",
    "gradient-accumulation-steps": "grad-accum",
    "accumulate-grad-batches": "grad-accum",
    "gradient-accumulation": "grad-accum",
    "accumulation-steps": "grad-accum",
    "amp": "precision",
    "mixed-precision": "precision",
    "n-embd": "d-model",
    "embed-dim": "d-model",
    "intermediate-size": "d-ff",
    "n-layer": "layers",
    "num-hidden-layers": "layers",
    "n-head": "heads",
    "num-attention-heads": "heads",
    "vocab-size": "vocab",
    "attn-implementation": "attention",
    "torch-compile": "compile",
    "bucket-cap-mb": "bucket-mb",
    "reshard-after-forward": "reshard",
    "gpu": "simulate",
    "iters": "steps",
    "iterations": "steps",
    "warmup-steps": "warmup",
    "output-dir": "out",
    "output": "out",
}
"""Names that other tools use for options; messages suggest our name instead."""


def flag_of(field: str) -> str:
    """Return the long flag of a field: `--d-model` for `d_model`."""
    return "--" + field.replace("_", "-")
