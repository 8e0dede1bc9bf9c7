"""Published models by name: directories, the hub's cache, the catalogue, and the hub (here a server of our own)."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sysbench.spec import published
from sysbench.spec.model import ModelSpec
from sysbench.spec.own_model import HUGGING_FACE
from tests.processes import HANG_S

PUBLISHED_PARAMETERS = {
    "apertus-8b": 8_053_338_176,
    "bert-base": 109_514_298,
    "bloom-560m": 559_214_592,
    "bloom-7b1": 7_069_016_064,
    "cerebras-gpt-1.3b": 1_315_723_264,
    "codestral-22b": 22_247_282_688,
    "command-r": 34_980_831_232,
    "command-r7b": 8_028_033_024,
    "dbrx": 131_596_523_520,
    "deepseek-coder-1.3b": 1_346_471_936,
    "deepseek-coder-6.7b": 6_740_512_768,
    "deepseek-llm-7b": 6_910_365_696,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2.5": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "distilgpt2": 81_912_576,
    "falcon-h1-0.5b": 521_411_104,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2b": 2_506_172_416,
    "gemma-3-270m": 268_098_176,
    "gemma-7b": 8_537_680_896,
    "glm-4-9b": 9_400_279_040,
    "gpt-j-6b": 6_050_882_784,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "granite-3.1-8b": 8_170_848_256,
    "lfm2-350m": 354_483_968,
    "llama-13b": 13_015_864_320,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-11b-vision": 10_670_220_835,
    "llama-3.2-1b": 1_235_814_400,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llava-1.5-7b": 7_063_427_072,
    "ministral-8b": 8_019_808_256,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "mpt-7b": 6_649_286_656,
    "olmo-3-7b": 7_298_011_136,
    "olmo-7b": 6_888_095_744,
    "open-llama-3b": 3_426_473_600,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-350m": 331_196_416,
    "opt-6.7b": 6_658_473_984,
    "phi-1.5": 1_418_270_720,
    "phi-3-medium": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "pythia-1.4b": 1_414_647_808,
    "pythia-14m": 14_067_712,
    "qwen1.5-0.5b": 463_987_712,
    "qwen1.5-7b": 7_721_324_544,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-vl-7b": 8_291_375_616,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "redpajama-incite-3b": 2_775_864_320,
    "seed-oss-36b": 36_151_104_512,
    "sheared-llama-1.3b": 1_345_423_360,
    "smollm2-1.7b": 1_711_376_384,
    "smollm3-3b": 3_075_098_624,
    "smolvlm2-2.2b": 2_246_784_880,
    "solar-10.7b": 10_731_524_096,
    "stablelm-2-1.6b": 1_644_515_328,
    "stablelm-base-alpha-3b": 3_637_321_728,
    "starcoder": 15_517_456_384,
    "starcoder2-15b": 15_957_889_024,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "starcoderbase-1b": 1_137_207_296,
    "t5-large": 737_668_096,
    "tinyllama-1.1b": 1_100_048_384,
    "vit-base": 86_567_656,
    "whisper-large-v3": 1_543_490_560,
    "yi-1.5-9b": 8_829_407_232,
    "yi-6b": 6_061_035_520,
}
"""Numbers of parameters as they are known of the published weights, not as computed from these configs."""


def target(word: str) -> str:
    return ModelSpec(model=(word,)).model[0]


def test_the_catalogue_names_who_has_each_model_and_where_its_dimensions_are_from() -> None:
    models = published.catalogue()
    assert len(models) >= 195
    assert all(model.repositories and model.source and model.config["architectures"] for model in models)
    names = [name.lower() for model in models for name in {model.slug, *model.repositories}]
    assert len(names) == len(set(names))


def test_the_catalogues_dimensions_have_the_published_numbers_of_parameters() -> None:
    found = {model.slug: model.parameters for model in published.catalogue()}
    assert {slug: found[slug] for slug in PUBLISHED_PARAMETERS} == PUBLISHED_PARAMETERS


@pytest.mark.slow
def test_the_catalogues_configs_build_models_of_these_sizes() -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    built = {}
    for model in published.catalogue():
        config = transformers.AutoConfig.from_pretrained(model.file)
        with torch.device("meta"):
            module = getattr(transformers, config.architectures[0])._from_config(config)
        built[model.slug] = sum(parameter.numel() for parameter in module.parameters())
    assert built == {model.slug: model.parameters for model in published.catalogue()}


@pytest.mark.parametrize(
    "word", ["llama-3.1-8b", "Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "meta-llama/llama-3.1-8b-instruct"]
)
def test_a_published_model_is_named_as_people_name_it(word: str) -> None:
    assert target(word) == f"{HUGGING_FACE}llama-3.1-8b"


@pytest.mark.parametrize(
    ("repository", "slug"),
    [
        ("HuggingFaceH4/starchat2-15b-v0.1", "starcoder2-15b"),
        ("NousResearch/Meta-Llama-3-8B", "llama-3-8b"),
        ("TinyLlama/TinyLlama_v1.1", "tinyllama-1.1b"),
        ("mistralai/Magistral-Small-2506", "mistral-small-24b"),
        ("openlm-research/open_llama_3b_v2", "open-llama-3b"),
        ("stabilityai/stablelm-2-1_6b", "stablelm-2-1.6b"),
    ],
)
def test_mirrors_and_fine_tunes_have_the_dimensions_of_their_model(repository: str, slug: str) -> None:
    assert target(repository) == f"{HUGGING_FACE}{slug}"


def test_a_mistyped_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"lama-3\.1-8b is not .*a published model, such as llama-3\.1-8b"):
        target("lama-3.1-8b")


def config(directory: Path, **fields: Any) -> Path:
    directory.mkdir(parents=True)
    path = directory / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", **fields}))
    return path


def test_a_directory_comes_before_the_cache_and_the_cache_before_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    assert published.config_file("gpt2", str(tmp_path)).name == "gpt2.json"
    repository = tmp_path / "cache" / "models--gpt2"
    cached = config(repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert published.config_file("gpt2", str(tmp_path)) == cached
    assert published.config_file("gpt2@abc", str(tmp_path)) == cached
    here = config(tmp_path / "gpt2")
    assert published.config_file("gpt2", str(tmp_path)) == here


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does: one open model, one gated, one without a config, no others."""

    CONTENT = json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2}).encode()
    ERRORS = {  # noqa: RUF012
        "some/gated": (403, "GatedRepo"),
        "some/empty": (404, "EntryNotFound"),
        "some/open@v9": (404, "RevisionNotFound"),
    }

    def do_HEAD(self) -> None:
        repository, _, rest = self.path.strip("/").partition("/resolve/")
        revision = rest.partition("/")[0]
        name = repository if revision == "main" else f"{repository}@{revision}"
        code, error = self.ERRORS.get(name, (200, "") if name == "some/open" else (404, "RepoNotFound"))
        self.send_response(code)
        if error:
            self.send_header("X-Error-Code", error)
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("ETag", '"abc"')
        self.send_header("Content-Length", str(len(self.CONTENT)))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def problems(names: str, directory: Path, **environment: str) -> list[str | None]:
    """Ask in a process of its own, since the hub's client reads the environment when it is imported."""
    program = (
        "import json, sys; from sysbench.spec import published; "
        "print(json.dumps([each and str(each) for each in (published.problem(name, '.') for name in sys.argv[1:])]))"
    )
    settings = {"HF_HOME": str(directory / "home"), "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1", **environment}
    process = subprocess.run(
        [sys.executable, "-c", program, *names.split()],
        cwd=directory, env=os.environ | settings, capture_output=True, text=True, timeout=HANG_S, check=True,
    )  # fmt: skip
    answers: list[str | None] = json.loads(process.stdout.splitlines()[-1])
    return answers


def test_only_the_config_is_taken_from_the_hub_and_stays_in_its_cache(hub: str, tmp_path: Path) -> None:
    assert problems("some/open", tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="0") == [None]
    files = list((tmp_path / "home" / "hub" / "models--some--open" / "snapshots").rglob("*.*"))
    assert [path.name for path in files] == ["config.json"]
    assert problems("some/open", tmp_path, HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="1") == [None]


def test_what_the_hub_does_not_give_is_said_with_what_to_do(hub: str, tmp_path: Path) -> None:
    names = "some/gated some/empty some/open@v9 mistralai/Mistral-7C"
    gated, empty, revision, unknown = problems(names, tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")
    assert gated == (
        "--model hf:some/gated: is none of sysbench models, and no file; some/gated is gated: ask for access on its "
        "page, then set HF_TOKEN or run hf auth login"
    )
    assert str(empty).endswith("some/empty has no config.json")
    assert str(revision).endswith("some/open has no revision v9")
    assert "the hub has no public model mistralai/Mistral-7C" in str(unknown)
    assert str(unknown).endswith("Nearest of sysbench models: mistral-7b")


def test_without_a_network_a_name_fails_in_one_line(tmp_path: Path) -> None:
    (said,) = problems("some/open", tmp_path, HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="0")
    assert str(said).startswith(
        "--model hf:some/open: is none of sysbench models, and no file; the hub cannot be asked: "
    )
    (said,) = problems("some/open", tmp_path, HF_HUB_OFFLINE="1")
    assert str(said).endswith("the hub's cache does not have it either, and HF_HUB_OFFLINE is set")


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b/c", "-", "a b", "https://example.org/x"])
def test_what_is_no_name_of_the_hub_is_not_asked_for(name: str, tmp_path: Path) -> None:
    refusal = published.problem(name, str(tmp_path))
    assert refusal is not None
    assert refusal.reason == f"there is no file {tmp_path / name}"
    assert refusal.remedy == "name the model as on the hub, or a directory with its config.json"
