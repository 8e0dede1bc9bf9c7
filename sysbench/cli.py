"""The command line: the `sysbench` application with its commands.

All errors are converted here to one line on stderr and an exit code.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from sysbench import stderr
from sysbench.bootstrap import rank_from_environment
from sysbench.command import commands, runnable
from sysbench.engine.interrupts import is_interrupted
from sysbench.errors import SysbenchError, UsageError
from sysbench.interpreter import gc_paused
from sysbench.log.storage import cannot_read, reason
from sysbench.package import VERSION

INTERRUPTED = 130

HELP_OPTIONS = ("-h", "--help")

LONGEST_WORD = 255
"""Longest word that an error message repeats in full, in characters."""

EXAMPLES = """\b
Examples:
  sysbench time --size tiny --ctx 128        time a step on this machine
  sysbench memory --size xl --simulate h100  see whether xl fits an H100
  sysbench run quick                         measure a first experiment
"""

INVALID_PATH_ERRNOS = {
    errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EINVAL,
    errno.EACCES, errno.EPERM,
}  # fmt: skip
"""Errors of file operations caused by an invalid path; all others are caused by the machine."""


def application(words: Sequence[str]) -> typer.Typer:
    """Create the Typer application. Only the commands in `words` are imported, so that `--help` is fast."""
    completing = _is_completing()
    named = [name for name in commands() if completing or name in words]
    settings: dict[str, object] = {"help_option_names": list(HELP_OPTIONS)}
    app = typer.Typer(
        help="Where do the time and memory of a training step go, how reliable is each number, and how far is the "
        "step from the hardware limit?",
        epilog=EXAMPLES,
        context_settings=settings,
        pretty_exceptions_enable=False,
        # Rich's help panels help with the many options of a command; importing them takes longer than everything else.
        rich_markup_mode="rich" if named else None,
    )
    app.callback()(_root)
    for name, command in commands().items():
        function = command.function() if name in named else _placeholder
        app.command(name, cls=_Command, short_help=command.short_help)(function)
    return app


class _Command(TyperCommand):
    """A command that itself refuses words without an option."""

    allow_extra_args = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = super().parse_args(ctx, args)
        if words and not ctx.resilient_parsing:
            from sysbench.spec.command_options import refuse_words

            refuse_words(words, self.name or "")
        return words


def _placeholder() -> None:
    """Stand in for a command that is listed in the help but not imported."""


def _version(value: bool) -> None:
    if value:
        typer.echo(f"sysbench {VERSION}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Accept the options of `sysbench` itself; exit on ranks other than 0 if the command runs no workers.

    Raises UsageError if the current directory has been deleted: torch cannot be imported there.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current directory has been deleted: change to another one") from None
    if rank_from_environment(os.environ) and context.invoked_subcommand not in runnable():
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 success, 1 failure, 2 invalid usage, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(words))


def _run(words: list[str]) -> int:
    undecoded = next((word for word in words if not _is_text(word)), None)
    if undecoded is not None:
        _print_error(words, f"{undecoded} is not UTF-8 text; rename the file or argument")
        return 2
    with gc_paused():
        command = typer.main.get_command(application(words))
        _choose_shown_options(command, words)
    words = _spelled_out(words)
    try:
        _refuse_unknown_command(words)
        return int(command.main(words, prog_name="sysbench", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        # The single exit: every outcome becomes one line and an exit code.
        if is_interrupted():  # Python wraps a KeyboardInterrupt that arrives during the creation of a class
            return INTERRUPTED
        if "--debug" in words:
            raise
        message, code = _explain(error)
        _print_error(words, message)
        return code


def _spelled_out(words: list[str]) -> list[str]:
    """Return the words with `help` and `version` as options; without any words, those that show the help."""
    if words[:1] == ["help"]:
        return [*words[1:2], "--help", *words[2:]]
    return ["--version"] if words == ["version"] else words or ["--help"]


def _refuse_unknown_command(words: Sequence[str]) -> None:
    """Raise UsageError if the first word is no command; name the one that has its meaning."""
    name = words[0]
    if name.startswith("-") or name in commands():
        return
    from sysbench.meanings import command_meant

    meant = command_meant(name)
    question = f" Did you mean {meant}?" if meant else ""
    raise UsageError(f"{name or '(nothing)'} is not a command.{question} ({', '.join(commands())})")


def _is_completing() -> bool:
    return "_SYSBENCH_COMPLETE" in os.environ


def _choose_shown_options(application_command: Any, words: Sequence[str]) -> None:
    """Show the options that are not common only to a shell that completes and with `--help all`; elsewhere, say so."""
    shows_all = _is_completing() or any(
        help_option in HELP_OPTIONS and word == "all" for help_option, word in pairwise(words)
    )
    for name, command in application_command.commands.items():
        hidden = [parameter for parameter in command.params if getattr(parameter, "hidden", False)]
        for parameter in hidden if shows_all else ():
            parameter.hidden = False
        if hidden and not shows_all:
            command.epilog = f"{len(hidden)} more options: sysbench {name} --help all"


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _explain(error: Exception) -> tuple[str, int]:
    if isinstance(error, SysbenchError):
        return str(error), error.exit_code
    from sysbench.spec.command_options import usage_error_message

    if complaint := usage_error_message(error):
        return complaint, int(getattr(error, "exit_code", 2))
    if isinstance(error, OSError) and error.filename is not None:
        path = Path(os.fsdecode(error.filename))
        if error.errno in INVALID_PATH_ERRNOS:  # what cannot be written is an OutputError
            refused = cannot_read(path, error)
            return str(refused), refused.exit_code
        return f"{path}: {reason(error)}", 1
    return f"unexpected {type(error).__name__}: {error} (this is a bug; --debug shows where)", 1


def _print_error(words: list[str], message: str) -> None:
    prefix = f"sysbench {words[0]}" if words and words[0] in commands() else "sysbench"
    for line in _broken_between_words(f"{prefix}: {' '.join(_shorten(word) for word in message.split())}"):
        stderr.print_line(line)


def _broken_between_words(line: str) -> list[str]:
    """Return the line as it is or, on a terminal, which would break it within words, in parts that fit its width."""
    if not sys.stderr.isatty():
        return [line]
    import textwrap

    width = os.get_terminal_size(sys.stderr.fileno()).columns or len(line)
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)


def _shorten(word: str) -> str:
    """Return a word of an error message without its middle if it is longer than any file name may be (NAME_MAX)."""
    return word if len(word) <= LONGEST_WORD else f"{word[:60]}…{word[-60:]}"


__all__ = ["main"]
