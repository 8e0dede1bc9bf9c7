"""`--model`, as a process: the page of the documentation, models that misbehave, and what is refused beforehand."""

import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from sysbench.cli import main
from sysbench.commands.memory.spec import MemorySpec
from sysbench.commands.showing import tracebacks
from sysbench.errors import UsageError
from sysbench.log.outcomes import Caution
from tests.cli.running import Ran, answered, ran_once
from tests.fixtures_cautions import in_words

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
COMMANDS = re.findall(r"^\$ sysbench (.+)$", PAGE, re.MULTILINE)

THEIRS = """
import os
import sys

import torch
from torch import nn

print("importing theirs")


class Lm(nn.Module):
    def __init__(self, vocab=50, width=16):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


class Prints(Lm):
    def forward(self, tokens):
        print("in forward")
        return super().forward(tokens)


class Reads(Lm):
    def forward(self, tokens):
        return super().forward(tokens) * float(input())


class Forks(Lm):
    def __init__(self):
        super().__init__()
        if os.fork() == 0:
            raise RuntimeError("in the child")


class Nan(Lm):
    def forward(self, tokens):
        return super().forward(tokens) * float("nan")


class Looks(Lm):
    def forward(self, tokens):
        x = super().forward(tokens)
        return 2 * x if x.mean().item() > 0 else x
"""


def theirs(directory: Path) -> Path:
    path = directory / "theirs.py"
    path.write_text(THEIRS)
    return path


@pytest.mark.parametrize("words", COMMANDS)
def test_every_example_of_the_page_runs_and_says_what_the_page_shows(words: str, tmp_path: Path) -> None:
    here = tmp_path / "work"
    (here / "llama").mkdir(parents=True)
    for kind, block in re.findall(r"^```(python|json)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        name = "llama/config.json" if kind == "json" else block.splitlines()[0].removeprefix("# ")
        (here / name).write_text(block)
    ran = answered(*shlex.split(words), cwd=here, COLUMNS="80")
    assert ran.code == 0, ran.err
    (shown,) = re.findall(rf"^\$ sysbench {re.escape(words)}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    expected = _lines(shown)
    if "--simulate" not in words:  # then all that does not depend on the machine is what was inferred
        expected = [line for line in expected if re.match(r"\w+ from \w+\.\w+: ", line)]
    assert expected
    assert [line for line in expected if line not in _lines(ran.out)] == []


def _lines(text: str) -> list[str]:
    """Lines without the version of torch, and without numbers of lines."""
    lines = (re.sub(r"torch \S+|(?<=\.py:)\d+", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line not in ("", "…")]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """Models that misbehave, one after another in one worker."""
    here = theirs(tmp_path_factory.mktemp("code")).parent
    models = ",".join(f"theirs.py:{name}" for name in ("Prints", "Reads", "Forks", "Nan", "Looks"))
    quick = ("--ctx", "8", "--batch", "1", "--steps", "2", "--warmup", "0", "--device", "cpu", "--json", "-")
    words = ("time", "--model", models, "--app-dir", str(here), "--mode", "forward-backward", *quick)
    return ran_once(tmp_path_factory, "own-models-measured", *words)


def cell_of(measured: tuple[Ran, Path], name: str) -> dict[str, Any]:
    (cell,) = [cell for cell in json.loads(measured[0].out)["cells"] if cell["axes"]["size"] == name]
    found: dict[str, Any] = cell
    return found


def test_what_a_model_prints_is_not_in_the_results_and_is_marked(measured: tuple[Ran, Path]) -> None:
    ran, _ = measured
    assert json.loads(ran.out)["kind"] == "time"
    assert cell_of(measured, "Prints")["outcome"] == "ok"
    assert "\nPrints printed: importing theirs\nPrints printed: in forward\n" in ran.err


def test_a_model_that_breaks_ends_its_own_cell_alone(measured: tuple[Ran, Path]) -> None:
    reads = cell_of(measured, "Reads")
    assert reads["outcome"] == "crashed"
    assert reads["detail"] == "forward: it reads from standard input, which is empty (theirs.py:28 in forward)"
    assert measured[0].code == 1
    assert cell_of(measured, "Looks")["outcome"] == "ok"


def test_the_whole_traceback_is_kept_and_shown_on_request(measured: tuple[Ran, Path]) -> None:
    (log,) = (measured[1] / "runs").glob("*.jsonl")
    shown = list(tracebacks(log))
    assert any(re.fullmatch(r' *File ".*theirs\.py", line 28, in forward', line) for line in shown)
    assert any(line.startswith("EOFError") for line in shown)
    with pytest.raises(UsageError, match="nonsense is not a reference to code"):
        main(["time", "--model", "nonsense", "--debug"])


def test_a_child_that_a_model_forks_reports_nothing(measured: tuple[Ran, Path]) -> None:
    assert cell_of(measured, "Forks")["outcome"] == "ok"
    assert "in the child" not in measured[0].err


def test_a_loss_that_is_not_a_number_is_a_caution(measured: tuple[Ran, Path]) -> None:
    (caution,) = (each for each in cell_of(measured, "Nan")["cautions"] if each["code"] == "loss-not-finite")
    assert in_words(Caution.model_validate(caution)) == "the loss of the first measured step is nan"
    assert "loss-not-finite" not in {caution["code"] for caution in cell_of(measured, "Looks")["cautions"]}


def test_a_model_that_cannot_be_simulated_is_measured_without_flops(measured: tuple[Ran, Path]) -> None:
    looks = cell_of(measured, "Looks")
    assert looks["rates"]["step_flops"] is None
    assert "(theirs.py:46 in forward)" in looks["own_model"]["uncounted"]
    assert cell_of(measured, "Prints")["rates"]["step_flops"] == 3 * 2 * 8 * 16 * 50


def test_the_record_says_which_code_ran_and_reading_it_imports_none(measured: tuple[Ran, Path]) -> None:
    own = cell_of(measured, "Prints")["own_model"]
    (file,) = own["files"]
    assert Path(file["path"]).name == "theirs.py"
    assert file["sha256"] == hashlib.sha256(THEIRS.encode()).hexdigest()
    Path(file["path"]).write_text("raise SystemExit('imported')")
    (saved,) = (measured[1] / "runs").glob("*.jsonl")
    again = answered("time", "--from", str(saved))
    assert again.code in (0, 1), again.err
    assert "Looks" in again.out
    assert "imported" not in again.out + again.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--model theirs",
            "theirs is not a reference to code: write package.module:NAME or path/to/file.py:NAME, such as",
        ),
        ("--model other.py:Lm", "--model other.py:Lm: there is no file other.py"),
        ("--model hf:nowhere", "--model hf:nowhere: is none of sysbench models, and no file; "),
        ("--model hf:", "hf: is not a reference to code"),
        ("--model theirs:Lm --loss other.py:loss", "--loss other.py:loss: there is no file other.py"),
        ("--model theirs:Lm --model-arg width", "width is not NAME=VALUE, such as layers=12,24 or norm=rms"),
        ("--model theirs:Lm --input tokens", "tokens does not describe an input: write tokens=int64[B,T]<vocab or"),
        ("--model theirs:Lm --input 'int64[B]'", "int64[B] needs an upper bound for its integers"),
        ("--model theirs:Lm --input a:b --input 'bool[B]'", "--input a:b makes all inputs of the model"),
        ("--model theirs:Lm --optimizer sdg", "sdg is not an optimizer."),
        ("--loss theirs:loss", "--loss applies to a model of your own. Add --model package.module:Class"),
        ("--optimizer theirs:make", "--optimizer module:factory applies to a model of your own"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_imported(words: str, said: str, tmp_path: Path) -> None:
    theirs(tmp_path)
    ran = answered("time", *shlex.split(words), "--ctx", "8", "--device", "cpu", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.complaint


def test_an_experiment_from_elsewhere_may_not_name_code_unless_it_is_allowed(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    written = 'title = "T"\n[[run]]\nname = "r"\ncommand = "time"\nmodel = "theirs:Lm"\nctx = 8\ndevice = "cpu"\n'
    (tmp_path / "there" / "e.toml").write_text(written)
    refused = answered("run", "../there/e.toml", "--plan", cwd=tmp_path / "here")
    assert refused.code == 2
    assert "line 5: model names code (theirs:Lm), and the file is not in the current directory" in refused.complaint
    allowed = answered("run", "../there/e.toml", "--plan", "--allow-code", cwd=tmp_path / "here")
    assert allowed.code == 0, allowed.err


def test_code_that_the_manifest_of_an_experiment_names_is_refused(tmp_path: Path) -> None:
    manifest = {"sysbench_version": "1", "experiment": "quick", "title": "T", "started_at": 0, "runs": []}
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "overrides": {"model": "theirs:Lm"}}))
    refused = answered("run", "--resume", str(tmp_path), cwd=tmp_path)
    assert refused.complaint.endswith("names code (--model theirs:Lm): read it, then add --allow-code")


HALF = """
import torch
from torch import nn


class Half(nn.Module):
    def __init__(self, dtype="float32"):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.to(getattr(torch, dtype))

    def forward(self, tokens):
        return self.head(self.embed(tokens))
"""


def shown_memory(here: Path, *words: str) -> str:
    ran = answered(
        "memory", *words, "--ctx=16", "--mode=forward", "--simulate=h100", "--quiet", cwd=here, COLUMNS="300"
    )
    assert ran.code == 0, ran.err
    return ran.out


def test_the_title_names_the_dtype_of_the_parameters(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(HALF)
    whole, half, autocast = (
        shown_memory(tmp_path, "--model=half.py:Half", *more)
        for more in ((), ("--model-arg=dtype=bfloat16",), ("--model-arg=dtype=float16", "--bf16"))
    )
    assert "· fp32 ·" in whole.splitlines()[0]
    assert "· bf16 parameters ·" in half.splitlines()[0]
    assert "· bf16, fp16 parameters ·" in autocast.splitlines()[0]
    assert "3.25 k parameters; " in whole
    assert "3.25 k parameters in bfloat16; " in half


def test_a_configs_dtype_is_followed_or_its_neglect_is_said(tmp_path: Path) -> None:
    shape = {"vocab_size": 50, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", **shape, **heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    neglected = shown_memory(tmp_path, "--model=hf:config.json")
    assert "in float32, not in its config's bfloat16 (--model-arg dtype=bfloat16 follows it)" in neglected
    followed = shown_memory(tmp_path, "--model=hf:config.json", "--model-arg=dtype=bfloat16")
    assert "config's" not in followed
    assert "· bf16 parameters ·" in followed.splitlines()[0]


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("dtype=0-9", "--model-arg 0-9 has no stride: write 0-9+9 (adding)"),
        ("dtype=8-64", "--model-arg 8-64 has no stride: write 8-64*2 (doubling) or 8-64+56 (adding)"),
    ],
)
def test_a_wrong_argument_is_refused_before_a_worker_starts(argument: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(f"raise SystemExit\n{HALF}")  # whoever imports it ends
    ran = answered(
        "time", "--model=half.py:Half", f"--model-arg={argument}", f"--out={tmp_path / 'runs'}", cwd=tmp_path
    )
    assert ran.code == 2
    assert ran.complaint.endswith(complaint)
    assert not (tmp_path / "runs").exists()


def test_a_model_on_two_ranks_has_twice_the_flops_of_one(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(HALF)
    words = ("time", "--model=half.py:Half", "--ctx=8", "--batch=2", "--steps=1", "--warmup=0", "--device=cpu")
    flops = []
    for ranks in (1, 2):
        ran = answered(*words, f"--ranks={ranks}", "--quiet", "--json=-", cwd=tmp_path)
        assert ran.code == 0, ran.err
        flops.append(json.loads(ran.out)["cells"][0]["rates"]["step_flops"])
    products = 2 * 2 * 8 * 32 * 50  # batch × ctx × width × vocab, multiplied and added
    assert flops == [3 * products, 6 * products]


TOWER = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
OTHER_INPUTS: dict[str, dict[str, Any]] = {
    "CLIPModel": {
        "model_type": "clip",
        "text_config": {**TOWER, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2},
        "vision_config": {**TOWER, "image_size": 32, "patch_size": 16},
    },
    "BertForSequenceClassification": {"model_type": "bert", **TOWER, "vocab_size": 50},
    "BertForTokenClassification": {"model_type": "bert", **TOWER, "vocab_size": 50},
    "ViTForImageClassification": {"model_type": "vit", **TOWER, "image_size": 32, "patch_size": 16},
    "WhisperForConditionalGeneration": {
        "model_type": "whisper", "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "vocab_size": 50, "num_mel_bins": 4,
        "max_source_positions": 10, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("architecture", OTHER_INPUTS)
def test_a_model_that_takes_more_than_token_ids_gets_a_line_that_works(architecture: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], **OTHER_INPUTS[architecture]}))
    words = ("memory", "--model=hf:config.json", "--ctx=16", "--mode=train", "--simulate=h100", "--quiet")
    refused = answered(*words, "--json=-", cwd=tmp_path)
    (cell,) = json.loads(refused.out)["cells"]
    assert cell["outcome"] == "invalid"
    advice = re.search(r"takes more than token ids: add (--input .*)$", cell["detail"])
    assert advice is not None, cell["detail"]
    works = answered(*words, *shlex.split(advice[1]), "--json=-", cwd=tmp_path)
    (cell,) = json.loads(works.out)["cells"]
    assert cell["outcome"] == "ok", cell["detail"]


@pytest.mark.parametrize("field", ["input", "loss", "optimizer"])
def test_what_is_no_text_in_an_edited_record_is_no_code(field: str) -> None:
    with pytest.raises(ValueError, match=r"3\.5"):
        MemorySpec.model_validate({"model": "gpt.py:Gpt", "ctx": 16, field: [3.5] if field == "optimizer" else 3.5})
