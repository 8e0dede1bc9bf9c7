"""`sysbench check`: files → questions for sysbench fit → answers as lines of these files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from sysbench import stderr
from sysbench.commands import showing
from sysbench.commands.check import file as files
from sysbench.commands.check import readers
from sysbench.commands.check.spec import CheckSpec
from sysbench.commands.check.understanding import CannotTellError, Format
from sysbench.commands.running import GATE_EXIT_CODE
from sysbench.errors import UsageError
from sysbench.log import storage
from sysbench.spec.command_options import Given, command_options, validated

if TYPE_CHECKING:
    from sysbench.commands.check.question import Answer, Question

CANNOT_TELL_EXIT_CODE = 1


@command_options(CheckSpec)
def check(given: Given) -> None:
    """Read a training config, and say whether it fits, how long a step takes, and which of its lines to change.

    Nothing in the file is executed. Exits with 0 if the step fits, 3 if it does not, and 1 if that cannot be told.
    """
    spec = validated(CheckSpec, given)
    read = [files.read(path) for path in spec.files]
    found = [(file, readers.format_of(file)) for file in read]
    trained = [(file, form) for file, form in found if not form.launches]
    launchers = [(file, form) for file, form in found if form.launches]
    if not trained:
        file, form = launchers[0]
        raise UsageError(f"{file.path} ({form.name}) starts a training but does not describe it: name its config too")
    if spec.write is not None:
        if len(trained) > 1:
            raise UsageError("--write writes one file, but there are several configs: name one")
        storage.refuse_unwritable(spec.write)
    from sysbench.commands.check import tables

    rows = [_answered(file, form, launchers, spec) for file, form in trained]
    if len(rows) == 1:
        _, question, answers, not_told = rows[0]
        if question is None or not_told is not None:
            stderr.print_line(f"cannot tell: {not_told}")
            raise typer.Exit(CANNOT_TELL_EXIT_CODE)
        sheet = tables.of_file(question, answers)
    else:
        sheet = tables.of_files(rows)
    showing.show_sheet(sheet, spec, spec.columns)
    if spec.write is not None and rows[0][1] is not None:
        _write(rows[0][1], rows[0][2], spec)
    trials = [each.as_said.asked(gpu) for _, _, answers, _ in rows for each in answers for gpu in each.cell.gpus]
    if any(not trial.fits and not trial.is_undecided for trial in trials):
        raise typer.Exit(GATE_EXIT_CODE)
    if any(trial.is_undecided for trial in trials) or any(not_told for _, _, _, not_told in rows):
        raise typer.Exit(CANNOT_TELL_EXIT_CODE)


Row = tuple[str, "Question | None", "Sequence[Answer]", CannotTellError | None]


def _answered(
    file: files.ConfigFile, form: Format, launchers: Sequence[tuple[files.ConfigFile, Format]], spec: CheckSpec
) -> Row:
    from sysbench.commands.check.question import answer, ranks_of, understood

    question, answers = None, []
    try:
        question = understood(file, form, launchers)
        for count in ranks_of(question, spec):
            answers.append(answer(question, count, spec))
    except CannotTellError as not_told:
        return str(file.path), question, answers, not_told
    return str(file.path), question, answers, None


def _write(question: Question, answers: Sequence[Answer], spec: CheckSpec) -> None:
    """Write the copy with the first change for the first GPU that needs one."""
    from sysbench.commands.check.question import file_changes

    assert spec.write is not None
    for each in answers:
        for gpu in each.cell.gpus:
            if not (changes := file_changes(question, each, gpu)):
                continue
            text = files.changed_copy(question.file, changes[0].lines)
            storage.write_atomically(spec.write, text.encode())
            stderr.print_line(f"saved  {spec.write}  (changed for {gpu})")
            return
    stderr.print_line(f"no {spec.write}: nothing has to be changed, or no change fits")
