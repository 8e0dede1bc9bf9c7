"""Readable names of kernels.

A C++ kernel's name contains every template argument: `void at::native::vectorized_elementwise_kernel<4,
at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, …)`. The informative parts are the function and its
functor: `vectorized_elementwise_kernel<CUDAFunctor_add<float>>`.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 72
"""Longest shortened name in characters; a longer one loses its middle."""

_READ: Final = 4000
"""Number of characters of a name that are examined."""
_DEEPEST: Final = 8
"""Depth of nested templates that is examined."""
_SHOWN_ARGUMENTS: Final = 3

_NOISE: Final = (
    (re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::"), ""),
    (re.compile(r"\{lambda\([^{}]*\)#\d+\}|\[lambda\([^\[\]]*\) \(instance \d+\)\]|\{unnamed type#\d+\}"), ""),
    (re.compile(r"operator\s*\(\)"), "operator"),
    (re.compile(r"\((?:bool|int|unsigned int|long|unsigned long|char)\)(?=-?\d)"), ""),
    (re.compile(r"\s+"), " "),
)
_CODE: Final = re.compile(r"<|\S\(")
"""Brackets of C++; brackets after a space, as in `Memcpy DtoD (Device -> Device)`, are ordinary text."""
_ENGINE: Final = "autograd::engine::"
"""Prefix of all calls from autograd's engine, which does not distinguish them."""
_LITERAL: Final = re.compile(r"-?\d+[a-z]*|true|false|\(.*")
_TYPE: Final = re.compile(
    r"(float|double|int|long|short|bool|char|unsigned.*|signed.*|u?int\d+_t|c10::\w+|__nv_\w+|__half2?|void|at::\w+)"
    r"( const)?[*& ]*"
)
_WRAPPERS: Final = frozenset(
    {
        "gpu_kernel_impl",
        "gpu_kernel_impl_nocast",
        "BinaryFunctor",
        "AUnaryFunctor",
        "BUnaryFunctor",
        "ReduceOp",
        "func_wrapper_t",
        "Kernel",
        "Kernel2",
        "device_kernel",
        "GemmUniversal",
    }
)
"""Templates whose argument is shown instead, because it is more informative."""
_PLUMBING: Final = frozenset(
    {
        "array",
        "Array",
        "OffsetCalculator",
        "TrivialOffsetCalculator",
        "LoadWithCast",
        "LoadWithoutCast",
        "StoreWithCast",
        "StoreWithoutCast",
        "TensorListMetadata",
        "TensorListScalarListMetadata",
        "FusedOptimizerTensorListMetadata",
        "integral_constant",
    }
)


def shortened(name: str) -> str:
    """Return the name as shown, of at most LONGEST characters."""
    text = name[:_READ].removeprefix(_ENGINE)
    if _CODE.search(text):
        quiet = text
        for pattern, instead in _NOISE:
            quiet = pattern.sub(instead, quiet)
        text = _function(quiet.removeprefix("void ").strip(), 0) or text
    return elided(" ".join(text.split()) or "(no name)", LONGEST)


def elided(text: str, longest: int) -> str:
    """Shorten a text that is too long by omitting its middle: both ends distinguish kernels."""
    if len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def _function(text: str, depth: int) -> str:
    """Return `name<functor or types>`, without namespaces and parameters."""
    head, inside = _split(text)
    base = head.rstrip(":& *").rpartition("::")[2].strip() or head.strip()
    if depth >= _DEEPEST or not inside:
        return base
    shown = _told(inside, depth)
    if base in _WRAPPERS and shown:
        return shown[0]
    return f"{base}<{', '.join(shown)}>" if shown else base


def _told(inside: str, depth: int) -> list[str]:
    """Return the informative template arguments: functors if there are any, otherwise types."""
    arguments = [argument for argument in _arguments(inside) if argument and not _LITERAL.fullmatch(argument)]
    functors = [argument for argument in arguments if not _TYPE.fullmatch(argument)]
    shown = [_function(argument, depth + 1) for argument in functors or arguments]
    named = [each for each in shown if each and re.split(r"[<( ]", each)[0] not in _PLUMBING]
    return list(dict.fromkeys(named))[:_SHOWN_ARGUMENTS]


def _split(text: str) -> tuple[str, str]:
    """Return the text before the first bracket, and the bracket's content if it holds template arguments."""
    opening = next((position for position, character in enumerate(text) if character in "<("), len(text))
    if opening == len(text) or text[opening] == "(":
        return text[:opening], ""
    depth, closing = 0, len(text)
    for position in range(opening, len(text)):
        depth += (text[position] in "<(") - (text[position] in ">)")
        if not depth:
            closing = position
            break
    return text[:opening], text[opening + 1 : closing]


def _arguments(inside: str) -> list[str]:
    """Split at commas outside all brackets."""
    found, depth, begin = [], 0, 0
    for position, character in enumerate(inside):
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            found.append(inside[begin:position].strip())
            begin = position + 1
    return [*found, inside[begin:].strip()]
