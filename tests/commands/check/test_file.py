"""Files that no trainer could read, and files that try to do something: one line each, and nothing is executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.commands.check import file
from sysbench.commands.check.readers import format_of
from sysbench.errors import UsageError


def read(folder: Path, text: str, name: str = "train.yml") -> file.ConfigFile:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return file.read(path)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("train.yml", "a: 1\nb: 2\na: 3\n", "line 3: found duplicate key"),
        ("train.yml", "a:\n\tb: 1\n", "line 2: found character '\\t' that cannot start any token"),
        ("train.yml", "a: [1, 2\n", "line 2"),
        ("train.yml", "- 1\n- 2\n", "holds no mapping"),
        ("train.yml", "", "holds nothing"),
        ("train.json", '{"a": 1, "a": 2}', 'found duplicate key "a"'),
        ("train.json", '{"a": 1,\n "b": }', "line 2: Expecting value"),
        ("train.json", "[" * 100_000, "nested too deeply"),
        ("train.toml", "a = ", "is no TOML"),
        ("train.py", "a = 1", "is none of .yaml, .yml, .json, .toml"),
        ("train.yml", "a: " + "x" * (10 << 20), "has 10.0 MiB"),
    ],
)
def test_a_file_that_is_no_config_is_refused_in_one_line(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, text, name)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        file.read(tmp_path / "absent.yml")
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not text in UTF-8"):
        file.read(tmp_path / "binary.yml")


def test_aliases_that_multiply_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{{', '.join(f'k{k}: *a{n - 1}' for k in range(9))}}}" for n in range(1, 9)]
    with pytest.raises(UsageError, match="more than 20,000 values"):
        read(tmp_path, "\n".join(lines))


def test_a_tag_is_never_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    found = read(tmp_path, f"a: !!python/object/apply:os.system ['touch {mark}']\nb: !!python/name:os.system\nc: 1\n")
    assert found.entries["c"].value == 1
    assert not mark.exists()


def test_keys_have_their_line_also_where_they_are_merged(tmp_path: Path) -> None:
    found = read(tmp_path, "# first\nbase: &base\n  lora_r: 8\nmore:\n  <<: *base\n  deep:\n    x: 1\nlist: [1, 2]\n")
    assert {name: (entry.value, entry.line) for name, entry in found.entries.items() if name != "more.lora_r"} == {
        "base.lora_r": (8, 3),
        "more.deep.x": (1, 7),
        "list": ([1, 2], 8),
    }
    assert found.entries["more.lora_r"].value == 8


def test_a_changed_copy_keeps_comments_order_and_quotes(tmp_path: Path) -> None:
    text = "# why\nname: 'x'   # quoted\ndatasets:\n  - path: a\n    type: b\ngradient_checkpointing: false\n"
    changed = file.changed_copy(read(tmp_path, text), {"gradient_checkpointing": True, "micro_batch_size": 1})
    expected = text.replace("gradient_checkpointing: false", "gradient_checkpointing: true") + "micro_batch_size: 1\n"
    assert changed == expected


def test_a_changed_copy_of_json_and_none_of_toml(tmp_path: Path) -> None:
    assert (
        file.changed_copy(read(tmp_path, '{"a": {"b": 1}}', "t.json"), {"a.b": 2})
        == '{\n  "a": {\n    "b": 2\n  }\n}\n'
    )
    with pytest.raises(UsageError, match="not TOML"):
        file.changed_copy(read(tmp_path, "a = 1", "t.toml"), {"a": 2})


def test_the_name_of_the_model_decides_whose_config_it_is(tmp_path: Path) -> None:
    (path := tmp_path / "train.yml").write_text(
        "base_model: gpt2\nsequence_len: 512\nbf16: true\nmax_steps: 3\nseed: 1\nsave_steps: 5\noptim: sgd\n"
    )
    assert format_of(file.read(path)).name == "axolotl"
