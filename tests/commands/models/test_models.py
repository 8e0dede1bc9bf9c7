"""The list of published models, against their files."""

import csv
import io
import json
from pathlib import Path

from tests.cli.running import answered

FILES = sorted((Path(__file__).parents[3] / "profiles" / "models").glob("*.json"), key=lambda file: file.stem)


def rows(*words: str) -> list[dict[str, str]]:
    ran = answered("models", *words, "--format", "csv")
    assert (ran.code, ran.err) == (0, "")
    return list(csv.DictReader(io.StringIO(ran.out)))


def test_every_file_is_a_row_with_its_dimensions_and_source() -> None:
    found = {row["model"]: row for row in rows()}
    assert list(found) == [file.stem for file in FILES]
    llama, gpt2, t5 = found["llama-3.1-8b"], found["gpt2"], found["t5-small"]
    assert [llama[each] for each in ("layers", "width", "heads", "kv_heads", "vocab", "ctx")] == [
        "32", "4096", "32", "8", "128256", "131072",
    ]  # fmt: skip
    assert [gpt2[each] for each in ("parameters", "layers", "width", "heads", "kv_heads")] == [
        "124439808", "12", "768", "12", "",
    ]  # fmt: skip
    assert (t5["layers"], t5["width"]) == ("6", "512")
    assert all(row["source"] and row["repository"] for row in found.values())


def test_one_model_is_shown_with_every_field_of_its_config() -> None:
    config = json.loads((FILES[0].parent / "gemma-2-9b.json").read_text())
    found = {row["field"]: row["value"] for row in rows("google/Gemma-2-9B")}
    assert found.keys() == {name for name in config if not name.startswith("_")}
    assert found["head_dim"] == "256"
    shown = answered("models", "gemma-2-9b").out
    assert "9,241,705,984 parameters" in shown
    assert "google/gemma-2-9b-it" in shown


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    ran = answered("models", "lama-3.1-8b")
    assert (ran.code, ran.out) == (2, "")
    assert "Did you mean llama-3.1-8b?" in ran.complaint
