"""Conversion of a spec's fields to command-line options, and of given options to values of the fields.

The default, help text and validation of a field are defined in the spec; this module adds only the spelling on the
command line. A command is a function of the given options: `@command_options(TimeSpec, TimeOptions)` on
`def time(spec_given, options_given)`. Experiment files use the same long names of options: `d-model`, `bf16`,
`grad-accum`. In the other direction, `command_line` returns the command line that reproduces a spec.
"""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sysbench.command import Kind, command_of, kinds
from sysbench.errors import UsageError
from sysbench.meanings import option_meant
from sysbench.spec.axis import find_axis
from sysbench.spec.cell import RunSpec
from sysbench.spec.options import STEP_PANELS, Option, flag_of
from sysbench.spec.validation import Given, find_option, literals, option_name, option_of, validated

__all__ = ["Given", "command_options", "option_name", "parse_options", "validated"]


def command_options(*specs: type[BaseModel]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options defined by the fields of `specs`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**arguments: object) -> None:
            function(*(_collect_given(spec, arguments) for spec in specs))

        count = sum(option is not None for spec in specs for option in map(find_option, spec.model_fields.values()))
        parameters = [parameter for spec in specs for parameter in _parameters(spec, shows_all=count <= MAX_SHOWN)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


MAX_SHOWN = 20
"""Largest number of options that the help of a command shows at once; with more, it shows only the common ones."""


def parse_options(command: str, words: Sequence[str], *specs: type[BaseModel]) -> list[Given]:
    """Parse the words after `command`; return the given options of each spec, in order; raises UsageError."""
    found: list[Given] = []

    @command_options(*specs)
    def collect(*parsed: Given) -> None:
        found.extend(parsed)

    settings = {"help_option_names": [], "allow_extra_args": True}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(command, context_settings=settings)(collect)
    parser = typer.main.get_command(app)
    try:
        with parser.make_context(command, list(words)) as context:
            refuse_words(context.args, command)
            parser.invoke(context)
    except Exception as error:
        if (complaint := usage_error_message(error)) is None:
            raise
        raise UsageError(complaint) from None
    return found


def usage_error_message(error: Exception) -> str | None:
    """Return a one-line message for a Typer usage error, suggesting the nearest option; None for any other error."""
    # Typer raises usage errors of its own, or those of click, depending on its version; both can format themselves.
    format_message: object = getattr(error, "format_message", None)
    if not callable(format_message):
        return None
    typed, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if not isinstance(typed, str) or context is None:
        return " ".join(str(format_message()).split())
    options: dict[str, list[str]] = {}
    for parameter in context.command.params:
        if names := [flag.removeprefix("--") for flag in parameter.opts if flag.startswith("--")]:
            # Options of all cells of an experiment have fields of other names.
            options |= {parameter.name: names, names[0].replace("-", "_"): names}
    suggestion = option_meant(typed.lstrip("-"), options)
    all_options = "--help all" if any(getattr(param, "hidden", False) for param in context.command.params) else "--help"
    question = f". Did you mean --{suggestion}?" if suggestion else f". {context.command_path} {all_options} lists all"
    return f"No such option: {typed}{question}"


_SAVED_FILES = (".json", ".jsonl", ".json.gz", ".pickle", ".pickle.gz", ".sqlite", ".nsys-rep")


def refuse_words(words: Sequence[str], command: str) -> None:
    """Raise UsageError for words without an option, if any: suggest the option that has one as value, or commas."""
    if not words:
        return
    options = keys_of(command).values() if command in kinds() else ()
    suggestions = (
        f"Did you mean {option_name(key.model, key.field)} {word}?"
        for word in words
        for key in options
        if key.shorthand_value is None and set(word.split(",")) <= set(_values(key.info))
    )
    files = (word for word in words if word.endswith(_SAVED_FILES))
    reads = bool(options) and "source" in command_of(command).models().options.model_fields
    from_file = (f"Did you mean --from {file}?" for file in files if reads)
    hint = next(chain(suggestions, from_file), "Commas separate several values of one option: --ctx 128,256")
    raise UsageError(f"unexpected: {' '.join(words)}. {hint}")


def _values(field: FieldInfo) -> Iterable[str]:
    option = option_of(field)
    if (option.metavar or "").lstrip("[").startswith("GPU"):
        from sysbench.spec import hardware  # only commands that simulate need it

        return [gpu.slug for gpu in hardware.known()]
    return option.values or literals(field.annotation)


def options_in_order(model: type[BaseModel]) -> list[tuple[str, FieldInfo, Option]]:
    """Return the fields with an option in the order of the help: those of a step first, axes before others."""

    def position(found: tuple[str, FieldInfo, Option]) -> tuple[int, bool, bool]:
        _, field, option = found
        is_of_step = option.panel in STEP_PANELS
        panel = STEP_PANELS.index(option.panel) if is_of_step else len(STEP_PANELS)
        return panel, is_of_step and not option.common, find_axis(field) is None

    return sorted(
        ((name, field, option) for name, field in model.model_fields.items() if (option := find_option(field))),
        key=position,
    )


def _parameters(model: type[BaseModel], *, shows_all: bool) -> Iterator[inspect.Parameter]:
    for name, field, option in options_in_order(model):
        switch = field.annotation is bool
        if option.positional:
            argument = typer.Argument(
                help=_help(field),
                metavar=option.metavar,
                show_default=False,
                autocompletion=_completer(field),
            )
            yield _parameter(name, _value_type(option), argument)
            continue
        yield _parameter(
            name,
            bool if switch else _value_type(option),
            typer.Option(
                *(option.flags or (flag_of(name),)),
                help=_help(field),
                metavar=" " if switch else option.metavar,
                show_default=False,
                rich_help_panel=option.panel,
                hidden=not (shows_all or option.common),
                autocompletion=None if switch else _completer(field),
            ),
        )
        for flag, value in option.shorthands:
            yield _parameter(
                _shorthand_parameter(name, value),
                bool,
                typer.Option(
                    flag,
                    help=f"Short for {option_name(model, name)} {value}; added to other values.",
                    metavar=" ",
                    show_default=False,
                    rich_help_panel=option.panel,
                    hidden=not (shows_all or option.common),
                ),
            )


def _completer(field: FieldInfo) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        earlier, comma, last = incomplete.rpartition(",")
        values = map(str, (*_values(field), *option_of(field).completions()))
        return [f"{earlier}{comma}{value}" for value in values if value.startswith(last)]

    return complete


def _value_type(option: Option) -> object:
    return list[str] if option.repeated else tuple[str, str] if option.pair else str


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    default = False if kind is bool else None
    annotation = Annotated[kind if kind is bool else kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _shorthand_parameter(field: str, value: str) -> str:
    return f"{field}__{value}"


def _collect_given(model: type[BaseModel], arguments: dict[str, Any]) -> Given:
    """Return the given options of one spec; a shorthand adds its value to the axis of its field."""
    given: Given = {}
    for name, field in model.model_fields.items():
        words = [arguments[name]] if arguments.get(name) not in (None, False, []) else []
        if words and isinstance(words[0], str) and words[0].startswith("--"):
            raise UsageError(f"{option_name(model, name)} needs a value, but the option {words[0]} follows it")
        words += [value for _, value in option_of(field).shorthands if arguments.get(_shorthand_parameter(name, value))]
        if words:
            given[name] = words[0] if len(words) == 1 else ",".join(words)
    return given


def _help(field: FieldInfo) -> str:
    default = field.default
    if default is None or default is False or default in ((), {}, ""):
        return str(field.description)
    shown = (
        ",".join(map(str, default))
        if isinstance(default, tuple)
        else f"{default:g}"
        if isinstance(default, float)
        else default
    )
    return f"{field.description} Default: {shown}."


EXPERIMENT_WIDE_FIELDS = frozenset(
    {"out", "json_path", "format", "no_live", "quiet", "debug", "plan", "resume", "source", "timeout_s"}
)
"""Option fields that apply to a whole experiment, or have no use in one."""


@dataclass(frozen=True)
class OptionKey:
    """One long option name, with the field that the option sets."""

    field: str
    model: type[BaseModel]
    """The spec or options class that has the field."""
    info: FieldInfo
    shorthand_value: str | None = None
    """The value that a shorthand sets: `bf16` is `precision` bf16."""

    @property
    def is_switch(self) -> bool:
        """Whether the option is a switch, which takes no value."""
        return self.shorthand_value is not None or self.info.annotation is bool

    @property
    def is_positional(self) -> bool:
        """Whether the value is given without a flag."""
        return option_of(self.info).positional

    @property
    def is_file(self) -> bool:
        """Whether the value of the option is a path of a file that the command writes."""
        return Path in get_args(self.info.annotation)

    def names_code(self, text: str) -> bool:
        """Return whether a value of the option, as it is written, names code to run or the place that it comes from."""
        option = option_of(self.info)
        return option.names_code and not {word.strip() for word in text.split(",")} <= set(option.values)


@cache
def keys_of(kind: Kind) -> Mapping[str, OptionKey]:
    """Return the options of this command that an experiment may set, by long name; options of the spec come first."""
    models = command_of(kind).models()
    keys: dict[str, OptionKey] = {}
    for model in (models.spec, models.options):
        for field, info in model.model_fields.items():
            if find_option(info) is None:
                continue
            if model is models.options and field in EXPERIMENT_WIDE_FIELDS:
                continue
            keys[long_name(model, field)] = OptionKey(field, model, info)
            for flag, value in option_of(info).shorthands:
                keys[flag.removeprefix("--")] = OptionKey(field, model, info, value)
    return keys


def long_name(model: type[BaseModel], field: str) -> str:
    """Return the name of an option without leading dashes; for a positional argument, the name of its field."""
    if option_of(model.model_fields[field]).positional:
        return field
    return option_name(model, field).removeprefix("--")


def command_line(spec: RunSpec, shown: Collection[str] = ()) -> str:
    """Return the command line that reproduces a spec, omitting options at their defaults, except those `shown`."""
    return spec.python_call or shlex.join(["sysbench", spec.kind, *_option_words(spec, shown)])


def _option_words(spec: BaseModel, shown: Collection[str] = ()) -> Iterator[str]:
    model = type(spec)
    for name, field, option in options_in_order(model):
        value = getattr(spec, name)
        default = field.get_default(call_default_factory=True)
        if (value == default and name not in shown) or value is False or value is None:
            continue
        for entry in _entries(value) if option.repeated else (value,):
            if not option.positional:
                yield option_name(model, name)
            if entry is not True:
                yield (option.word or _option_word)(entry)


def _entries(value: Mapping[str, object] | Iterable[object]) -> Iterable[object]:
    """Return the values of a repeated option one by one; entries of a mapping become NAME=VALUE."""
    return [f"{name}={_option_word(each)}" for name, each in value.items()] if isinstance(value, Mapping) else value


def _option_word(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(map(str, _entries(value)))
    if isinstance(value, tuple):
        return ",".join(map(_option_word, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
