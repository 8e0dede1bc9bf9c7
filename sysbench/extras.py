"""Optional packages: which command installs them here."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sysbench.errors import Refusal

TRANSFORMERS = ("transformers", "hf", "--model hf:…")
PEFT = ("peft", "lora", "--lora")
OFFLOAD = ("torchao", "torchao", "--offload optimizer")
FP8 = ("torchao", "torchao", "--precision fp8")
BITSANDBYTES = ("bitsandbytes", "bitsandbytes", "--quantize")
_OF_OPTIMIZERS = {
    "adamw-8bit": "torchao",
    "adamw-4bit": "torchao",
    "adamw-8bit-paged": "bitsandbytes",
}
"""By optimizer: its package, which has the name of its extra."""


def of_optimizer(choice: str) -> tuple[str, str, str]:
    """Return the package of an optimizer, its extra, and the option that needs it."""
    return _OF_OPTIMIZERS[choice], _OF_OPTIMIZERS[choice], f"--optimizer {choice}"


def of_optimizers(choices: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return those of all optimizers that need a package."""
    return [of_optimizer(choice) for choice in choices if choice in _OF_OPTIMIZERS]


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, without importing it; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


_NEWEST_FOLLOWED = (2, 15)


@cache
def installed_torch() -> tuple[int, int]:
    """Return (major, minor) of the installed PyTorch, without importing it."""
    major, minor = version("torch").split(".")[:2]
    return int(major), int(minor)


def followed_torch() -> str:
    """Return the version of PyTorch that simulations follow: the installed one, or the newest known one."""
    return ".".join(map(str, min(installed_torch(), _NEWEST_FOLLOWED)))


def missing(package: str, extra: str, what: str) -> Refusal | None:
    """Return a refusal if `what` needs a package that cannot be imported here; does not import it."""
    if importlib.util.find_spec(package) is not None:
        return None
    return Refusal(f"needs the package {package}", f"install it: {install_command(extra)}", what)


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the installation that is running.

    Without a clone, it names the packages of the extra, because sysbench is on no package index.
    """
    clone, is_editable = _source()
    if clone is None:
        return f"{_pip()} {' '.join(map(shlex.quote, _packages(extra)))}"
    if _is_made_by_uv() and (clone / "pyproject.toml").is_file() and Path(sys.prefix).parent == clone:
        return f"uv sync --inexact --extra {extra} (in {clone})"
    return f"{_pip()} {'-e ' if is_editable else ''}{shlex.quote(f'{clone}[{extra}]')}"


def _source() -> tuple[Path | None, bool]:
    """Return the directory that sysbench was installed from, if any, and whether it runs from there (PEP 610)."""
    try:
        text = distribution("sysbench").read_text("direct_url.json")
    except PackageNotFoundError:  # run from its sources
        return Path(__file__).parents[1], True
    origin = json.loads(text or "{}")
    if "dir_info" not in origin:
        return None, False
    return Path(unquote(urlsplit(origin["url"]).path)), bool(origin["dir_info"].get("editable"))


def _packages(extra: str) -> list[str]:
    """Return the requirements of an extra, such as `peft<1,>=0.17`, from the metadata of the installation."""
    found = (line.partition(";") for line in distribution("sysbench").requires or ())
    return [name.strip() for name, _, marker in found if marker.replace('"', "'").strip() == f"extra == '{extra}'"]


def _pip() -> str:
    return "uv pip install" if _is_made_by_uv() else "pip install"


def _is_made_by_uv() -> bool:
    """Return whether uv made this environment, which then has no pip."""
    settings = Path(sys.prefix) / "pyvenv.cfg"
    return settings.is_file() and any(line.startswith("uv =") for line in settings.read_text().splitlines())
