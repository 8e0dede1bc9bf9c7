"""The user's own models: the location of their code, the arguments of their constructors, and their inputs.

This module imports no user code: a spec only names code, and `sysbench.lab.workload` imports it in the worker.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from sysbench.errors import Refusal, nearest
from sysbench.spec import published
from sysbench.spec.axes import Scalar, is_range, parse_integers, parse_scalar, parse_whole_number, split_words
from sysbench.spec.quantities import Size, stored_unless

HUGGING_FACE = "hf:"

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_FILE = re.compile(r"[^:]+\.py:[^\W\d]\w*(\.[^\W\d]\w*)*")
_INPUT = re.compile(r"(?:(?P<name>[^\W\d]\w*)=)?(?P<dtype>\w+)\[(?P<sizes>[\w,]*)\](?:<(?P<bound>\w+))?")
_BETWEEN_ARGUMENTS = re.compile(r",(?=[^\W\d]\w*=)")
_BETWEEN_INPUTS = re.compile(r",(?![^\[]*\])")

DTYPES = ("int64", "int32", "bool", "float32", "float16", "bfloat16")
"""Dtypes of described inputs; integers are drawn below a bound, the others from a normal distribution."""


def code_reference(value: object) -> str:
    """Return `value` if it is a reference to code: `package.module:attribute` or `path/to/file.py:attribute`."""
    if not isinstance(value, str):  # of an edited record
        raise ValueError(f"{value!r} is not a reference to code")
    if _MODULE.fullmatch(value) or _FILE.fullmatch(value):
        return value
    written = value if ":" in value else f"{value}:NAME"
    raise ValueError(
        f"{value or '(nothing)'} is not a reference to code: write package.module:NAME or path/to/file.py:NAME"
        + (f", such as {written}" if _MODULE.fullmatch(written) or _FILE.fullmatch(written) else "")
    )


def _parse_targets(value: object) -> tuple[str, ...]:
    return tuple(map(_target, split_words(value)))


def _target(word: str) -> str:
    if word.startswith(HUGGING_FACE) and len(word) > len(HUGGING_FACE):
        return word
    if ":" not in word and (model := published.catalogued(word)) is not None:
        return f"{HUGGING_FACE}{model.slug}"
    try:
        return code_reference(word)
    except ValueError as error:
        near = published.nearest_name(word) if word and not word.endswith(".py") else None
        raise ValueError(f"{error}; or the name of a published model, such as {near}" if near else str(error)) from None


def _parse_arguments(value: object) -> dict[str, tuple[Scalar, ...]]:
    """Parse words such as `layers=12,24` and `norm=rms` into the values of each argument, by name."""
    if isinstance(value, dict):
        return {name: tuple(each) if isinstance(each, list | tuple) else (each,) for name, each in value.items()}
    found: dict[str, tuple[Scalar, ...]] = {}
    words = [str(word) for word in (value if isinstance(value, list | tuple) else [value])]
    for word in (each for several in words for each in _BETWEEN_ARGUMENTS.split(several)):
        name, equals, written = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"{word} is not NAME=VALUE, such as layers=12,24 or norm=rms")
        found[name] = _parse_scalars(written)
    return found


def _parse_scalars(written: str) -> tuple[Scalar, ...]:
    try:
        return parse_integers(written)
    except ValueError:
        if any(map(is_range, split_words(written))):  # not meant as a word
            raise
        return tuple(parse_scalar(word) for word in split_words(written))


class DescribedInput(BaseModel):
    """One input of a model: `tokens=int64[B,T]<vocab` is the argument `tokens`, integers below the vocabulary size.

    An input without a name is the next positional argument. Each size is a number, `B` (batch) or `T` (context length).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str | None
    dtype: str
    sizes: tuple[int | str, ...]
    below: int | str | None
    """Exclusive upper bound of integers: a number, or `vocab`."""

    def __str__(self) -> str:
        """Return the description as it is written on the command line."""
        name, bound = f"{self.name}=" if self.name else "", f"<{self.below}" if self.below is not None else ""
        return f"{name}{self.dtype}[{','.join(map(str, self.sizes))}]{bound}"


def _parse_inputs(value: object) -> tuple[object, ...]:
    words = value if isinstance(value, list | tuple) else [value]
    return tuple(
        each if not isinstance(each, str) else code_reference(each) if _is_code(each) else parse_input(each)
        for word in words
        for each in (_BETWEEN_INPUTS.split(word) if isinstance(word, str) else [word])
    )


def _is_code(word: str) -> bool:
    return ":" in word and "[" not in word


def parse_input(word: str) -> DescribedInput:
    """Parse the description of one input; raises ValueError with the expected form."""
    found = _INPUT.fullmatch(word.replace(" ", ""))
    if found is None:
        raise ValueError(
            f"{word} does not describe an input: write tokens=int64[B,T]<vocab or image=float32[B,3,224,224]"
        )
    if found["dtype"] not in DTYPES:
        hint = nearest(found["dtype"], DTYPES)
        question = f" Did you mean {hint}?" if hint else ""
        raise ValueError(f"{found['dtype']} is not an input dtype.{question} ({', '.join(DTYPES)})")
    words = filter(None, found["sizes"].split(","))
    sizes = tuple(parse_whole_number(size) if size.isdecimal() else size for size in words)
    if wrong := [size for size in sizes if size == 0 or (isinstance(size, str) and size not in ("B", "T"))]:
        raise ValueError(f"{wrong[0]} is not a size in {word}; use a whole number from 1, B (batch) or T (ctx)")
    bound = found["bound"]
    below: int | str | None = parse_whole_number(bound) if bound and bound.isdecimal() else bound
    if below == 0 or (isinstance(below, str) and below != "vocab"):
        raise ValueError(f"{bound} is not a bound in {word}: write a whole number from 1, or vocab")
    if found["dtype"].startswith("int") and below is None:
        raise ValueError(f"{word} needs an upper bound for its integers, such as <vocab or <1000")
    return DescribedInput(name=found["name"], dtype=found["dtype"], sizes=sizes, below=below)


Targets = Annotated[tuple[str, ...], BeforeValidator(_parse_targets)]
Arguments = Annotated[dict[str, tuple[Scalar, ...]], BeforeValidator(_parse_arguments)]
Inputs = Annotated[tuple[DescribedInput | str, ...], BeforeValidator(_parse_inputs)]
"""Descriptions of the inputs, or one function that makes them."""
Code = Annotated[str, BeforeValidator(code_reference)]


class OwnModel(BaseModel):
    """A user's model and its inputs."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    target: str
    """`package.module:Class`, `path/to/file.py:factory`, or `hf:` and the directory or name of a published model."""
    arguments: dict[str, Scalar]
    dimensions: dict[str, Size]
    """Dimensions passed to a constructor that has arguments of these names."""
    sized: bool
    """Whether the user gave a size, so that a model that takes none of its dimensions is an error."""
    single_dimensions: tuple[str, ...] = stored_unless(())
    """Dimensions that the user gave without a size: the model keeps its own values of all others."""
    inputs: str | None
    """A function `(batch, ctx)` that makes the inputs."""
    described: tuple[DescribedInput, ...]
    loss: str | None
    """A function `(output)` or `(output, inputs)` that computes the loss."""
    directory: str

    def __hash__(self) -> int:
        """Return the hash of the model's JSON form, because its dictionaries cannot be hashed."""
        return hash(self.model_dump_json())

    @property
    def is_hugging_face(self) -> bool:
        """Whether the model is that of a Hugging Face config."""
        return self.target.startswith(HUGGING_FACE)

    @property
    def title(self) -> str:
        """The model's name without its location: the class or factory (`GPT`), or the directory of a config."""
        if self.is_hugging_face:
            path = Path(self.target.removeprefix(HUGGING_FACE))
            return (path.parent if path.suffix == ".json" and path.parent.name else path).name
        return self.target.rpartition(":")[2]

    @property
    def config(self) -> Path:
        """Path of the config file of a Hugging Face model."""
        return published.config_file(self.target.removeprefix(HUGGING_FACE), self.directory)

    def problem(self) -> Refusal | None:
        """Return the reason if a file that the user named is missing; otherwise None.

        The config of a published model is downloaded if it is neither in the hub's cache nor in the catalogue.
        """
        if self.is_hugging_face and (
            refusal := published.problem(self.target.removeprefix(HUGGING_FACE), self.directory)
        ):
            return refusal
        for option, target in (("--model", self.target), ("--input", self.inputs), ("--loss", self.loss)):
            where = (target or "").rpartition(":")[0]
            file = Path(self.directory) / where if where.endswith(".py") else None
            if file is not None and not file.is_file():
                return Refusal(f"there is no file {file}", option=f"{option} {target}:")
        return None
