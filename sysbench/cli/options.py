"""Turns the fields of specs into command-line options, and the options given back into specs.

A field's default, help text and validation stay in the spec; the command line only spells them. A command is a
function of finished specs: `@command_options(TimeSpec, RunOptions)` on `def time(spec, options)`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from sysbench.errors import UsageError, unknown
from sysbench.specs.options import Option, flag_of

Model = TypeVar("Model", bound=BaseModel)
Given = dict[str, Any]
"""The options that were really given on the command line, by field name; what is not here has its default."""


def command_options(*specs: type[BaseModel]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a function of `(Given, Given, …)`, one for each of `specs`, the command-line options of their fields."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**arguments: Any) -> None:
            function(*(_given(spec, arguments) for spec in specs))

        parameters = [parameter for spec in specs for parameter in _parameters(spec)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def validated(model: type[Model], values: Given) -> Model:
    """The spec that the options make; a bad value raises UsageError with one line that names its option."""
    try:
        return model(**values)
    except ValidationError as error:
        raise UsageError(_explain(model, error)) from error


def option_name(model: type[BaseModel], field: str) -> str:
    """How a field is known on the command line: `--d-model`, `--timeout`, or `EXPERIMENT` for what has no flag."""
    option = _option_of(model.model_fields[field])
    if option.positional:
        return field.upper()
    return option.flags[0] if option.flags else flag_of(field)


def _parameters(model: type[BaseModel]) -> Iterator[inspect.Parameter]:
    for name, field in model.model_fields.items():
        if not any(isinstance(mark, Option) for mark in field.metadata):
            continue
        option, switch = _option_of(field), field.annotation is bool
        if option.positional:
            argument = typer.Argument(help=_help(field), metavar=option.metavar, show_default=False)
            yield _parameter(name, str, argument)
            continue
        yield _parameter(
            name,
            bool if switch else str,
            typer.Option(
                *(option.flags or (flag_of(name),)),
                help=_help(field),
                metavar=" " if switch else option.metavar,
                show_default=False,
                rich_help_panel=option.panel,
            ),
        )
        for flag, value in option.shorthands:
            yield _parameter(
                _shorthand(name, value),
                bool,
                typer.Option(
                    flag,
                    help=f"Short for {flag_of(name)} {value}.",
                    metavar=" ",
                    show_default=False,
                    rich_help_panel=option.panel,
                ),
            )


def _parameter(name: str, kind: type, option: Any) -> inspect.Parameter:
    default = False if kind is bool else None
    annotation = Annotated[kind if kind is bool else kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _shorthand(field: str, value: str) -> str:
    return f"{field}__{value}"


def _given(model: type[BaseModel], arguments: dict[str, Any]) -> Given:
    """The arguments of one spec that differ from "not given"; shorthands add their value to their field's axis."""
    given: Given = {}
    for name, field in model.model_fields.items():
        words = [arguments[name]] if arguments.get(name) not in (None, False) else []
        words += [value for _, value in _option_of(field).shorthands if arguments.get(_shorthand(name, value))]
        if words:
            given[name] = words[0] if len(words) == 1 else ",".join(words)
    return given


def _option_of(field: FieldInfo) -> Option:
    return next((mark for mark in field.metadata if isinstance(mark, Option)), Option())


def _help(field: FieldInfo) -> str:
    default = field.default
    if default is None or default is False or default == ():
        return str(field.description)
    shown = (
        ",".join(map(str, default))
        if isinstance(default, tuple)
        else f"{default:g}"
        if isinstance(default, float)
        else default
    )
    return f"{field.description} Default: {shown}."


def _explain(model: type[BaseModel], error: ValidationError) -> str:
    """The first mistake, in one line: the option, what is wrong with it, what is allowed."""
    first = error.errors()[0]
    context = first.get("ctx", {})
    if not first["loc"]:
        return str(context.get("error", first["msg"]))  # about options together, which it names itself
    field = str(first["loc"][0])
    name = option_name(model, field)
    match first["type"]:
        case "value_error":
            reason = str(context["error"])
        case "literal_error":
            reason = unknown(str(first["input"]), "allowed", _literals(model.model_fields[field].annotation))
        case "greater_than_equal":
            reason = f"{first['input']} is out of range: allowed is {context['ge']} or more. Nearest: {context['ge']}"
        case "greater_than":
            reason = f"{first['input']} is out of range: allowed is more than {context['gt']:g}"
        case "less_than":
            reason = f"{first['input']} is out of range: allowed is less than {context['lt']:g}"
        case "int_parsing" | "int_from_float":
            reason = f"{first['input']} is not a whole number"
        case "float_parsing":
            reason = f"{first['input']} is not a number"
        case _:
            reason = f"{first['input']}: {first['msg']}"
    return f"{name} {reason}"


def _literals(annotation: Any) -> tuple[str, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(word for member in get_args(annotation) for word in _literals(member))
    return tuple(str(word) for word in get_args(annotation))
