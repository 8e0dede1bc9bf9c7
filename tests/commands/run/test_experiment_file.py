"""Lines of what stands in a TOML file, against files whose every value says its own line."""

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.commands.run.experiment_file import line_of

EVERYTHING = '''\
top = 1
# run = 3

"quoted key" = 4
several = [  # 5
  "[[run]]",
  "size = 7",
]

[[run]]  # 10
size = """
size = 12
"""
ctx = 14

[run.on_cpu]  # 16
size = 17
inline = { size = 18, ctx = 18 }

[[run]]  # 20
d-model = 21
on_cpu.size = 22
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 1),
        (("quoted key",), 4),
        (("several",), 5),
        (("several", 1), 5),
        (("run",), 10),
        (("run", 0), 10),
        (("run", 0, "size"), 11),
        (("run", 0, "ctx"), 14),
        (("run", 0, "on_cpu"), 16),
        (("run", 0, "on_cpu", "size"), 17),
        (("run", 0, "on_cpu", "inline", "ctx"), 18),
        (("run", 1), 20),
        (("run", 1, "d-model"), 21),
        (("run", 1, "on_cpu", "size"), 22),
    ],
)
def test_every_value_is_found_in_the_line_where_its_statement_begins(path: tuple[str | int, ...], line: int) -> None:
    assert line_of(EVERYTHING, path) == line


def test_what_is_missing_is_said_to_stand_where_it_would_belong() -> None:
    assert line_of(EVERYTHING, ("run", 1, "command")) == 20
    assert line_of(EVERYTHING, ("nothing",)) == 1
    assert line_of("", ("nothing", 3)) == 1


_NAMES = st.sampled_from(["a", "b-c", "d_e"])
_VALUES = st.sampled_from(["1", '"[x]"', '"""\n[[run]]\nb = 2\n"""', "[1,\n2]"])


@settings(deadline=None, max_examples=30)
@given(tables=st.lists(st.dictionaries(_NAMES, _VALUES), max_size=3))
def test_lines_are_those_at_which_the_file_was_written(tables: list[dict[str, Any]]) -> None:
    text, expected = "", {}
    for number, table in enumerate(tables):
        text += "# [[run]]\n\n[[run]]\n"
        expected["run", number] = text.count("\n")
        for key, value in table.items():
            expected["run", number, key] = text.count("\n") + 1
            text += f"{key} = {value}\n"
    tomllib.loads(text)
    for path, line in expected.items():
        assert line_of(text, path) == line
