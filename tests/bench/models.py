"""Strangers' models through `memory --simulate` and `time --simulate`, as a user would try them.

    python -m tests.bench.models [--only TEXT] [--state FILE]

Tries the models of `model_zoo` whose package is installed (transformers, timm, torchvision, diffusers, peft), and those
written by hand, which need none. The project depends on none of them but transformers, so all are tried in another
environment: `uv venv ELSEWHERE; uv pip install -p ELSEWHERE -e . timm torchvision diffusers peft transformers pytest
hypothesis`. No weights are loaded. A model works if its memory and its time are shown, and is rightly refused if the
reason is the one that stands beside it here; all else fails. `--state` keeps the answers, so that an interrupted trial
goes on where it stopped. The exit code is 1 if fewer than `PROMISED` models in 40 work or are rightly refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from sysbench import units
from tests.cli.running import answered
from tests.worker import forked

ROOT = Path(__file__).parents[2]
CARD = "h100"
PROMISED = 36
"""Of 40 models, how many work or are refused with a reason that is true."""

NEEDS_VALUES = "reads a tensor value, which a simulation does not have"


@dataclass(frozen=True)
class Trial:
    """A class or function of `model_zoo`, the package that it needs, its further options, and why it is refused."""

    package: str
    model: str
    words: str = ""
    refused: str = ""

    @property
    def name(self) -> str:
        return " ".join([self.model, *(word for word in self.words.split() if word == "--bf16")])


IDS = "--input input_ids=int64[B,T]<vocab,labels=int64"
LATENT = "float32[B,4,32,32]"
IMAGE = "--input float32[B,3,224,224]"

TRIALS = (
    *(
        Trial("transformers", name)
        for name in (
            "gpt2", "llama", "mistral", "qwen3", "gemma3", "phi3", "falcon", "bloom", "opt", "mixtral", "qwen3_moe",
            "olmoe", "bert", "modernbert", "deberta", "deberta_v1",
        )
    ),
    Trial("transformers", "mamba", "--ctx 64"),
    Trial("transformers", "gpt2_classifier", f"{IDS}[B]<2"),
    Trial("transformers", "roberta_classifier", f"{IDS}[B]<2"),
    Trial("transformers", "t5", f"{IDS}[B,T]<vocab"),
    Trial("transformers", "t5", f"{IDS}[B,T]<vocab --bf16"),
    Trial("transformers", "bart", f"{IDS}[B,T]<vocab"),
    Trial("transformers", "whisper", "--input input_features=float32[B,80,3000],labels=int64[B,T]<50000"),
    Trial("transformers", "wav2vec2", "--input input_values=float32[B,16000]"),
    Trial("transformers", "clip", "--input input_ids=int64[B,77]<49000,pixel_values=float32[B,3,224,224]"),
    *(Trial("transformers", name, IMAGE) for name in ("vit", "segformer")),
    *(
        Trial("timm", f"timm_{name}", IMAGE)
        for name in ("resnet", "convnext", "vit", "swin", "efficientnet", "mixer")
    ),
    *(
        Trial("torchvision", f"torchvision_{name}", IMAGE)
        for name in ("resnet", "vit", "densenet", "mobilenet", "deeplab")
    ),
    Trial("torchvision", "torchvision_video", "--input float32[B,3,8,112,112]"),
    Trial(
        "diffusers",
        "unet",
        f"--input sample={LATENT},timestep=int64[B]<1000,encoder_hidden_states=float32[B,77,768]",
    ),
    Trial("diffusers", "dit", f"--input hidden_states={LATENT},timestep=int64[B]<1000,class_labels=int64[B]<1000"),
    Trial("diffusers", "vae", "--input float32[B,3,64,64]"),
    *(Trial("peft", name) for name in ("lora_llama", "lora_gpt2", "ia3_opt", "prefix_gpt2")),
    *(Trial("", name) for name in ("KeepsLoss", "Recurrent", "gru", "Experts", "Literals", "Masked")),
    Trial("", "WaveNet", "--input float32[B,1,4096]"),
    Trial("", "Graph", "--input nodes=float32[2000,128],edges=int64[2,10000]<2000"),
    Trial("", "Diffusion", "--input float32[B,3,64,64]"),
    Trial("", "Sampler", refused=NEEDS_VALUES),
)  # fmt: skip


def tried(trial: Trial, kind: str) -> dict[str, Any]:
    """What one command answers about a model: the numbers that a user sees, or the reason why there are none."""
    with tempfile.TemporaryDirectory() as directory:
        record = Path(directory, "record.json")
        answer = answered(
            *(kind, "--model", f"tests.bench.model_zoo:{trial.model}", "--app-dir", str(ROOT), "--simulate", CARD),
            *("--mode", "train", "--batch", "2", "--ctx", "128", *trial.words.split()),
            *("--json", str(record), "--no-live"),
            cwd=Path(directory),
        )
        if not record.is_file():
            return {"reason": answer.err.strip()[-300:]}
        (cell,) = json.loads(record.read_text())["cells"]
    predicted = cell.get("prediction") or {}
    step, withheld = predicted.get("step"), predicted.get("withheld")
    return {
        "reason": cell["detail"] or withheld or "",
        "peak_bytes": cell.get("peak_allocated_bytes"),
        "step_s": step and step["point_s"],
        "limited_by": step and predicted["limited_by"],
        "cautions": [each["code"] for each in cell["cautions"]],
    }


def verdict(trial: Trial, memory: dict[str, Any], step: dict[str, Any]) -> str:
    """Return whether a model works, is rightly refused, or fails."""
    if memory.get("peak_bytes") and step.get("step_s"):
        return "works" if not trial.refused else "fails"
    return "refused" if trial.refused and all(trial.refused in each["reason"] for each in (memory, step)) else "fails"


def shown(trial: Trial, memory: dict[str, Any], step: dict[str, Any]) -> str:
    """Return a row of the table."""
    peak = units.size(memory["peak_bytes"]) if memory.get("peak_bytes") else "—"
    time_s = f"{1e3 * step['step_s']:.2f} ms" if step.get("step_s") else "—"
    remarks = dict.fromkeys([memory["reason"], step["reason"], *memory.get("cautions", ()), *step.get("cautions", ())])
    row = f"{trial.package or 'by hand':13} {trial.name:20} {peak:>11} {time_s:>11}  {step.get('limited_by') or '—':10}"
    return f"{row} {verdict(trial, memory, step):8} {'; '.join(filter(None, remarks))}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only models whose name contains this")
    parser.add_argument("--state", type=Path, help="file that keeps the answers")
    given = parser.parse_args()
    known = (
        [json.loads(line) for line in given.state.read_text().splitlines()]
        if given.state and given.state.exists()
        else []
    )
    answers = {(each["name"], each["kind"]): each["answer"] for each in known}
    chosen = [trial for trial in TRIALS if given.only in trial.name]
    counts: Counter[str] = Counter()
    begun_s = time.monotonic()
    with mock.patch.object(forked.WorkerProcess, "_launch", forked.launch):
        for trial in chosen:
            if trial.package and find_spec(trial.package) is None:
                counts[f"skipped, as {trial.package} is not installed"] += 1
                continue
            for kind in ("memory", "time"):
                if (trial.name, kind) not in answers:
                    answers[trial.name, kind] = tried(trial, kind)
                    if given.state is not None:
                        line = {"name": trial.name, "kind": kind, "answer": answers[trial.name, kind]}
                        with given.state.open("a") as state:
                            state.write(json.dumps(line) + "\n")
            both = answers[trial.name, "memory"], answers[trial.name, "time"]
            counts[verdict(trial, *both)] += 1
            print(shown(trial, *both), flush=True)
    print("\n" + ", ".join(f"{count} {name}" for name, count in counts.items()), f"{time.monotonic() - begun_s:.0f} s")
    done, failed = counts["works"] + counts["refused"], counts["fails"]
    sys.exit(done * 40 < PROMISED * (done + failed))


if __name__ == "__main__":
    main()
