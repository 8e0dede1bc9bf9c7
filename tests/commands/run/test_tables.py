"""The table of an experiment's runs."""

from sysbench.commands.run.tables import FinishedRun, outcome
from sysbench.commands.time.fold import fold
from sysbench.commands.time.spec import TimeSpec
from sysbench.log.events import Event
from sysbench.log.manifest import RunEntry
from sysbench.render.table import Word
from tests.fixtures_timing import events, until_measuring


def last_word(stream: list[Event]) -> str:
    """What the table says, in its last column, of a run with these events."""
    entry = RunEntry(name="steps", part="mine", title="steps", command="time")
    (table,) = outcome("mine", [FinishedRun(entry, fold(stream))]).tables
    word = table.rows[0][-1]
    assert isinstance(word, Word)
    return word.text


def test_an_unfinished_run_is_said_to_be_unfinished_once() -> None:
    whole = events(TimeSpec.model_validate({"size": "small", "ctx": "128,256"}))
    assert last_word(whole) == ""
    assert last_word(until_measuring(whole, cell=1, step=3)) == "1 unfinished"
    assert last_word(whole[:-1]) == "unfinished"  # every cell is finished, but not the run
