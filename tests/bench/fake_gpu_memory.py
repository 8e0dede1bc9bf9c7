"""Simulated against measured memory, byte for byte, under the fake GPU of tests/fake_gpu; prints what differs.

    python -m tests.bench.fake_gpu_memory --state FILE [--torch 2.11,2.12,2.13,2.14,2.15 --environments DIR]

Each version of PyTorch gets an environment of its own below DIR, made by uv; without --torch, the installed one is
used. An eager cell takes a second: workers are forked. Whatever is in FILE was measured with the same code and is not
measured again, so that a run may be stopped and continued; --anew forgets it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from tests.fake_gpu.fake import FakeGpu
from tests.fake_gpu.memory import Group, Pair, architecture, own, pairs, split, table

ROOT = Path(__file__).parents[2]

_TINY = ("--size=tiny",)
_BOTH = ("--precision=fp32,bf16", "--attention=naive,sdpa", "--mode=train")
_OF_TEXT = (*("NanoGpt", "Llama", "Grouped", "Encoder", "Weighted", "Mamba", "Mixture", "Adapted", "Recomputed"),)
PLAIN = (
    Group((*_TINY, "--ctx=64,128,512", "--precision=fp32,bf16,fp16,tf32", "--mode=train", "--attention=naive,sdpa")),
    Group((*_TINY, "--ctx=128,512", "--precision=fp32,bf16", "--mode=forward,inference", "--attention=naive,sdpa")),
    Group(
        (
            *_TINY,
            "--ctx=128,512",
            "--precision=fp32,bf16",
            "--mode=train,forward-backward",
            "--attention=efficient,math",
        )
    ),
    Group((*_TINY, "--ctx=128,512", "--precision=bf16,fp16", "--mode=train", "--attention=flash,cudnn")),
    Group((*_TINY, "--ctx=128", "--precision=fp32,bf16", "--mode=train,train-first", "--optimizer=for-loop,fused")),
    Group((*_TINY, "--ctx=96,200", "--batch=1,3", *_BOTH)),
    Group((*_TINY, "--ctx=128", "--grad-accum=3", *_BOTH)),
    Group(("--size=small", "--ctx=128,512", *_BOTH)),
    Group(("--size=medium", "--ctx=256", "--batch=2", "--precision=bf16", "--attention=naive,sdpa", "--mode=train")),
    *(
        Group((*_TINY, "--ctx=128,512", *_BOTH), {"PYTORCH_CUDA_ALLOC_CONF": settings})
        for settings in (
            "expandable_segments:True",
            "roundup_power2_divisions:4",
            "max_split_size_mb:64,garbage_collection_threshold:0.6",
        )
    ),
    *(
        Group((*_TINY, "--ctx=128", *_BOTH), {name: value})
        for name, value in (
            ("TORCH_CUBLAS_WORKSPACE_CACHE", "1"),
            ("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8"),
            ("CUBLAS_WORKSPACE_CONFIG", ":1024:3"),
        )
    ),
    Group((*_TINY, "--ctx=128", *_BOTH), gpu=("a100-80gb", "8.0")),
    *(own(name, "--precision=fp32,bf16") for name in _OF_TEXT),
    *(own(name, "--precision=fp32,bf16", "--input=image=float32[B,3,64,64]") for name in ("Patches", "Mixer")),
    own("Translator", "--precision=fp32,bf16", "--input=source=int64[B,T]<1024,target=int64[B,T]<1024"),
)
"""Sizes, contexts, batches, precisions, modes, attention kinds, optimizers, settings, two GPUs, own models."""


_STEP = (*_TINY, "--ctx=128", "--mode=train")
_CHECKPOINTED = "--checkpoint=full,every-2,selective,layers.*.feed_forward"
KNOBS = (
    Group((*_STEP, "--precision=fp32,bf16,bf16-true", _CHECKPOINTED, "--cross-entropy=full,chunked-200")),
    Group((*_STEP, "--bf16", "--attention=sdpa,flash", _CHECKPOINTED, "--cross-entropy=chunked-200")),
    Group((*_STEP, "--precision=bf16-true", "--checkpoint=full", "--optimizer=fused,sgd,adafactor,muon")),
    Group(
        (
            *_STEP,
            "--precision=fp32,bf16,bf16-true",
            "--checkpoint=full",
            "--optimizer=foreach,fused,sgd,adafactor,muon",
            "--optimizer-in-backward=on",
        )
    ),
    Group((*_STEP, "--precision=fp32,bf16", "--optimizer=muon", "--optimizer-in-backward=on")),
    Group((*_STEP, "--precision=fp32,bf16", "--grad-accum=2", "--checkpoint=full", "--cross-entropy=chunked-200")),
    Group(
        (
            *_STEP,
            "--precision=bf16,bf16-true",
            "--lora=8",
            "--checkpoint=none,full,selective",
            "--cross-entropy=full,chunked-200",
        )
    ),
    Group(
        (
            *_STEP,
            "--bf16",
            "--lora=8",
            "--lora-targets=all-linear",
            "--optimizer=fused,adafactor",
            "--optimizer-in-backward=on,off",
        )
    ),
    Group(
        (
            *_STEP,
            "--bf16",
            "--allocator=default,expandable",
            "--checkpoint=full",
            "--cross-entropy=full,chunked-200",
            "--optimizer-in-backward=on,off",
        )
    ),
    Group((*_STEP, "--bf16", "--allocator=max_split_size_mb:20", "--lora=4", "--checkpoint=selective")),
    *(
        own(
            name,
            "--precision=fp32,bf16",
            "--checkpoint=none,full",
            "--cross-entropy=chunked-40",
            "--optimizer-in-backward=on",
        )
        for name in ("NanoGpt", "Llama")
    ),
    *(own(name, "--precision=fp32,bf16", "--lora=4", "--checkpoint=full") for name in ("NanoGpt", "Llama")),
)
"""Combinations of knobs: of checkpoints, cross-entropy, precision, optimizers, LoRA, and the allocator's segments."""

_BF16_AND_FP32 = "--precision=fp32,bf16"
_PICTURES = "--input=pixel_values=float32[B,3,{0},{0}]"
_ODD_SHAPE = ("--heads=6", "--layers=3", "--mode=train")


ODD = (
    Group(("--d-model=204", "--d-ff=517", "--vocab=1009", *_ODD_SHAPE, "--ctx=33,77,130", _BF16_AND_FP32)),
    Group(("--d-model=396", "--d-ff=1001", "--vocab=50257", *_ODD_SHAPE, "--ctx=65", "--batch=3", _BF16_AND_FP32)),
    Group(("--d-model=768", "--d-ff=2048", "--vocab=32003", *_ODD_SHAPE, "--ctx=250", "--batch=5", "--bf16")),
    Group(("--d-model=1020", "--d-ff=2731", "--vocab=9973", *_ODD_SHAPE, "--ctx=511", "--batch=1", _BF16_AND_FP32)),
    Group(("--d-model=204", "--d-ff=517", "--vocab=1009", *_ODD_SHAPE, "--ctx=77", "--attention=naive", "--batch=7")),
    Group(("--d-model=396", "--d-ff=1001", "--vocab=5003", *_ODD_SHAPE, "--ctx=129", "--cross-entropy=chunked-77")),
    Group(("--d-model=396", "--d-ff=1001", "--vocab=5003", *_ODD_SHAPE, "--ctx=129", "--checkpoint=full,every-2")),
    Group(("--d-model=396", "--d-ff=1001", "--vocab=5003", *_ODD_SHAPE, "--ctx=33", "--lora=5", "--bf16")),
    *(
        Group((*_TINY, "--ctx=60", "--mode=train", "--precision=fp32,bf16-true", f"--optimizer={optimizer}", *shape))
        for optimizer in ("adamw-8bit", "adamw-4bit")
        for shape in ((), ("--d-model=264", "--d-ff=776", "--vocab=2049"), ("--d-model=512", "--vocab=32000"))
    ),
    architecture("t5", "--ctx=64,61,100", "--batch=2", _BF16_AND_FP32),
    architecture("t5", "--ctx=77", "--batch=3", "--model-arg=heads=6", _BF16_AND_FP32),
    *(
        architecture(name, "--ctx=37,128", "--batch=3", _BF16_AND_FP32)
        for name in ("qwen", "gemma", "mixtral", "gpt", "bert", "mamba", "neox")
    ),
    architecture("qwen", "--ctx=200", "--batch=1", "--model-arg=vocab=50257", "--model-arg=groups=1", _BF16_AND_FP32),
    architecture("qwen", "--ctx=51", "--batch=2", "--precision=bf16-true", "--optimizer=fused,adafactor"),
    architecture("gemma", "--ctx=333", "--batch=1", "--precision=bf16-true", "--grad-accum=1,3"),
    architecture("vit", "--ctx=16", "--batch=3", _PICTURES.format(48), _BF16_AND_FP32),
    architecture("vit", "--ctx=16", "--batch=5", "--model-arg=picture=72", _PICTURES.format(72), _BF16_AND_FP32),
    *(
        architecture(name, "--ctx=16", "--batch=2,5", _PICTURES.format(side), f"--precision={precisions}")
        # The fake cuDNN has no batch norm in fp32.
        for name, side, precisions in (("convnext", 64, "fp32,bf16"), ("resnet", 56, "bf16"), ("resnet", 75, "bf16"))
    ),
    *(
        own(name, "--batch=3", "--ctx=51,64,130", _BF16_AND_FP32)
        for name in ("NanoGpt", "Llama", "Grouped", "Encoder", "Mamba", "Mixture")
    ),
    *(
        own(name, "--batch=3", "--ctx=16", "--input=image=float32[B,3,64,64]", _BF16_AND_FP32)
        for name in ("Patches", "Mixer")
    ),
)
"""Sizes, contexts, vocabularies and batches that are no multiples of anything; architectures of transformers."""


_COMPILED = "--execution=compiled"
_COMPILED_STEP = (*_STEP, "--bf16", _COMPILED)
COMPILED = (
    Group((*_TINY, "--ctx=64,128,256", *_BOTH, _COMPILED)),
    Group((*_TINY, "--ctx=128", "--precision=tf32,fp16,bf16-true", "--mode=train", _COMPILED)),
    Group((*_TINY, "--ctx=128", _BF16_AND_FP32, "--mode=forward,inference", _COMPILED)),
    Group((*_COMPILED_STEP, "--attention=flash,efficient,math")),
    Group((*_COMPILED_STEP, "--optimizer=fused,for-loop,sgd,adafactor,muon")),
    Group((*_COMPILED_STEP, "--checkpoint=full,every-2,selective")),
    Group((*_COMPILED_STEP, "--grad-accum=2", "--cross-entropy=full,chunked-200")),
    Group((*_COMPILED_STEP, "--lora=8", "--lora-targets=all-linear")),
    Group((*_COMPILED_STEP, "--optimizer-in-backward=on")),
    Group(
        ("--d-model=204", "--d-ff=520", "--vocab=1008", *_ODD_SHAPE, "--ctx=77", "--batch=3", _BF16_AND_FP32, _COMPILED)
    ),
    Group(("--size=small", "--ctx=256", "--batch=2", "--mode=train", "--bf16", "--attention=sdpa", _COMPILED)),
    *(
        own(name, _BF16_AND_FP32, _COMPILED)
        for name in ("NanoGpt", "Llama", "Grouped", "Encoder", "Weighted", "Mamba", "Recomputed")
    ),
    *(own(name, _BF16_AND_FP32, "--input=image=float32[B,3,64,64]", _COMPILED) for name in ("Patches", "Mixer")),
    *(
        architecture(name, "--ctx=64", "--batch=2", _BF16_AND_FP32, _COMPILED)
        for name in ("qwen", "gemma", "gpt", "bert", "t5")
    ),
    architecture("vit", "--ctx=16", "--batch=2", _PICTURES.format(48), _BF16_AND_FP32, _COMPILED),
)
"""Steps that torch.compile compiles, once the kernels are chosen."""


def key() -> str:
    """What changes with the code that measures or simulates."""
    digest = hashlib.sha256()
    for folder in ("sysbench/lab", "sysbench/simulate", "sysbench/commands/memory", "tests/fake_gpu/native"):
        for path in sorted((ROOT / folder).rglob("*.[pch]*")):
            if path.suffix in (".py", ".c", ".cpp", ".h"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def environment(directory: Path, torch: str) -> Path:
    """The interpreter of an environment with that version of PyTorch and what the tests need, made if it is absent."""
    python = directory / torch / "bin" / "python"
    if not (directory / torch / "done").exists():
        subprocess.run(["uv", "venv", "-q", "-p", sys.executable, directory / torch], check=True)
        install = ["uv", "pip", "install", "-q", "--python", python]
        wanted = [f"torch=={torch}.*", "pytest", "hypothesis", "transformers>=4.56,<6"]
        subprocess.run([*install, *wanted, "-e", f"{ROOT}[lora]"], check=True)
        # Headers that cuBLAS' own include, and that come with PyTorch's wheels from 2.15 on only.
        runtime = "import importlib.metadata as m; print(m.version('nvidia-cuda-runtime').rsplit('.', 1)[0])"
        cuda = subprocess.run([python, "-c", runtime], check=True, capture_output=True, text=True).stdout.strip()
        if not next((directory / torch).glob("lib/*/site-packages/nvidia/*/include/nv/target"), None):
            subprocess.run([*install, f"nvidia-cuda-cccl=={cuda}.*"], check=True)
        (directory / torch / "done").touch()
    return python


def measure(state: Path, groups: tuple[Group, ...]) -> None:
    """Measure and simulate what `state` lacks, with the PyTorch of this interpreter."""
    from importlib.metadata import version

    from tests.worker import forked

    torch, code = version("torch"), key()
    done = {(each["torch"], each["code"], each["group"]) for each in read(state)}
    home = Path(tempfile.mkdtemp(prefix="fake-gpu-home-"))
    gpu = FakeGpu.built(ROOT / ".pytest_cache" / "fake_gpu", home)
    with mock.patch.object(forked.WorkerProcess, "_launch", forked.launch), state.open("a") as file:
        for group in groups:
            for each in split(group, "--ctx"):
                if (torch, code, each.name) in done:
                    continue
                try:
                    found, problem = [asdict(pair) for pair in pairs(gpu, each)], None
                except RuntimeError as error:
                    found, problem = [], str(error)
                outcome = {"torch": torch, "code": code, "group": each.name, "pairs": found, "problem": problem}
                file.write(json.dumps(outcome) + "\n")
                file.flush()
                print(f"torch {torch} {each.name}: {len(found)} cells {problem or ''}", file=sys.stderr)


def read(state: Path) -> Iterator[dict[str, Any]]:
    """What was measured so far; a line that was cut off is none."""
    if state.exists():
        for line in state.read_text().splitlines():
            if line.endswith("}"):
                yield json.loads(line)


def show(state: Path, *, categories: bool) -> None:
    """Print a table for each version of PyTorch, of the newest code."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for each in read(state):
        latest[each["torch"], each["group"]] = each
    for torch in dict.fromkeys(torch for torch, _ in latest):
        groups = [each for (version, _), each in latest.items() if version == torch]
        print(f"\ntorch {torch}")
        for each in groups:
            if each["problem"]:
                print(each["problem"])
        found = [Pair(**pair) for each in groups for pair in each["pairs"]]
        print("\n".join(table(found, categories=categories)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, default=Path("fake_gpu_memory.jsonl"))
    parser.add_argument("--torch", default="", help="versions, each in an environment of its own")
    parser.add_argument("--environments", type=Path, default=Path("environments"))
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--knobs", action="store_true", help="only combinations of knobs")
    parser.add_argument("--odd", action="store_true", help="only odd sizes and architectures of transformers")
    parser.add_argument("--compiled", action="store_true", help="only compiled steps: a minute each")
    parser.add_argument("--only", default="", help="groups with this text in their name")
    parser.add_argument("--no-categories", action="store_true")
    arguments = parser.parse_args()
    if arguments.anew:
        arguments.state.unlink(missing_ok=True)
    for torch in filter(None, arguments.torch.split(",")):
        python = environment(arguments.environments.resolve(), torch)
        words = [f"--state={arguments.state.resolve()}", f"--only={arguments.only}", "--no-categories"]
        words += ["--knobs"] * arguments.knobs + ["--odd"] * arguments.odd + ["--compiled"] * arguments.compiled
        quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [python, "-m", __spec__.name, *words], cwd=ROOT, env=quiet, stdout=subprocess.DEVNULL, check=True
        )
    if not arguments.torch:
        chosen = [(arguments.knobs, KNOBS), (arguments.odd, ODD), (arguments.compiled, COMPILED)]
        groups = next((groups for is_chosen, groups in chosen if is_chosen), (*PLAIN, *KNOBS, *ODD))
        measure(arguments.state, tuple(group for group in groups if arguments.only in group.name))
    show(arguments.state, categories=not arguments.no_categories)


if __name__ == "__main__":
    main()
