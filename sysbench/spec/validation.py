"""Building of specs from given options, with one-line messages for invalid options."""

from __future__ import annotations

import types
from typing import Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from sysbench.errors import OptionError, SpecError, unknown
from sysbench.spec.options import Option, flag_of

Model = TypeVar("Model", bound=BaseModel)
Given = dict[str, object]
"""The options that were given, by field name; all others have their defaults."""

STORED: Final = "stored"
"""pydantic context for specs read from a file: their names were checked when the file was written."""


def validated(model: type[Model], values: Given) -> Model:
    """Build the spec from the given options; raises OptionError with one line that names the invalid option."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _option_error(model, error) from error


def validated_arguments(model: type[Model], values: Given) -> Model:
    """Build the spec from the arguments of a Python function; like `validated`, but errors name the argument."""
    try:
        return validated(model, values)
    except OptionError as error:
        raise _naming_argument(error, OptionError) from None


def invalid_spec(model: type[BaseModel], error: ValidationError) -> SpecError:
    """Return the one-line error of a spec that a program builds from invalid fields."""
    first = error.errors()[0]
    if first["type"] == "extra_forbidden":
        field = str(first["loc"][0])
        return SpecError(unknown(f"{field}=", f"a field of {model.__name__}", model.model_fields), field)
    return _naming_argument(_option_error(model, error), SpecError)


AnyError = TypeVar("AnyError", bound=OptionError)


def _naming_argument(error: OptionError, kind: type[AnyError]) -> AnyError:
    """Return an error with the name of the argument, `size=`, instead of the option."""
    return kind(error.reason, error.field, f"{error.field}=" if error.field else "")


def option_name(model: type[BaseModel], field: str) -> str:
    """Return the name of a field on the command line: `--d-model`, or `EXPERIMENT` for a positional argument."""
    option = option_of(model.model_fields[field])
    if option.positional:
        return field.upper()
    return option.flags[0] if option.flags else flag_of(field)


def option_of(field: FieldInfo) -> Option:
    """Return the Option with which the field is marked, or a default one."""
    return find_option(field) or Option()


def find_option(field: FieldInfo) -> Option | None:
    """Return the Option with which the field is marked; None if it is not on the command line."""
    return next((mark for mark in field.metadata if isinstance(mark, Option)), None)


def first_error(error: ValidationError) -> str:
    """Return the first error with its location: `cells.3.phases.step.wall.median_s: Input should be a valid number`."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where or 'at top level'}: {first.get('ctx', {}).get('error', first['msg'])}"


def _option_error(model: type[BaseModel], error: ValidationError) -> OptionError:
    """Return the first error; one about several options names them in its reason."""
    first = error.errors()[0]
    context = first.get("ctx", {})
    if not first["loc"]:
        return OptionError(str(context.get("error", first["msg"])), None)
    field = str(first["loc"][0])
    match first["type"]:
        case "value_error":
            reason = str(context["error"])
        case "literal_error":
            reason = unknown(str(first["input"]), "allowed", literals(model.model_fields[field].annotation))
        case "greater_than_equal":
            reason = f"{first['input']} is out of range: it must be {context['ge']} or more. Nearest: {context['ge']}"
        case "greater_than":
            reason = f"{first['input']} is out of range: it must be more than {context['gt']:g}"
        case "less_than_equal":
            reason = f"{first['input']} is out of range: it must be {context['le']:.15g} or less"
        case "less_than":
            reason = f"{first['input']} is out of range: it must be less than {context['lt']:g}"
        case "int_parsing" | "int_from_float":
            reason = f"{first['input']} is not a whole number"
        case "float_parsing":
            reason = f"{first['input']} is not a number"
        case _:
            reason = f"{first['input']}: {first['msg']}"
    return OptionError(reason, field, option_name(model, field))


def literals(annotation: object) -> tuple[str, ...]:
    """Return the words of a Literal type, even inside a union or a tuple; empty for other types."""
    if get_origin(annotation) in (Union, types.UnionType, tuple):
        return tuple(word for member in get_args(annotation) for word in literals(member))
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()
