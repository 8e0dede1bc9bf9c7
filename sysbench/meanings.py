"""Words that other tools use for our commands and options: a mistake is answered with what has the same meaning."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from sysbench.command import commands
from sysbench.errors import nearest

OPTIONS: Final[tuple[tuple[str, str], ...]] = (
    ("ctx seq length", "seq-len context context-length context-len sequence-length seqlen seq-length max-length "
     "max-seq-len max-seq-length max-position-embeddings block-size n-ctx n-positions cutoff-len sequence-len"),
    ("dim", "head-dim d-head head-size d-k"),
    ("size", "model-size model-name preset"),
    ("model", "model-name-or-path arch architecture hf"),
    ("batch", "bs batch-size batches micro-batch micro-batch-size per-device-train-batch-size train-batch-size"),
    ("grad_accum", "accumulate accumulation gradient-accumulation gradient-accumulation-steps accumulation-steps"),
    ("precision dtype", "amp autocast mixed-precision torch-dtype fp16"),
    ("d_model", "hidden-size n-embd embed-dim width hidden hidden-dim n-embed"),
    ("d_ff", "ffn ffn-dim mlp-dim intermediate-size"),
    ("layers", "num-layers n-layer n-layers depth num-hidden-layers blocks"),
    ("heads", "num-heads n-head n-heads num-attention-heads"),
    ("vocab", "vocab-size n-vocab vocabulary"),
    ("simulate gpus device", "gpu gpus hardware card gpu-type gpu-name"),
    ("device", "cpu cuda mps backend"),
    ("steps repeats rounds", "iters iterations num-steps reps n-steps runs samples"),
    ("warmup", "warm-up warmups warmup-steps warmup-iters"),
    ("until", "target-precision accuracy rel-error"),
    ("checkpoint", "gradient-checkpointing activation-checkpointing recompute remat"),
    ("execution", "torch-compile inductor jit backend"),
    ("attention implementation impl", "attn attn-implementation attention-backend kernel"),
    ("optimizer", "optim opt"),
    ("strategy", "fsdp fsdp2 ddp parallelism sharding"),
    ("ranks", "world-size nproc nproc-per-node gpus-per-node num-gpus n-gpus"),
    ("lora", "lora-r lora-rank rank"),
    ("find", "max-batch largest auto-batch"),
    ("max_time budget_s timeout_s", "time-limit max-seconds duration"),
    ("budget", "memory-limit max-memory vram"),
    ("trace", "export-trace chrome-trace"),
    ("output page format out", "html"),
    ("output out", "save save-to output-dir out-dir outdir o"),
    ("figure", "plot png svg graph picture"),
    ("format", "csv markdown latex md"),
    ("json_path", "export-json json-path as-json"),
    ("source", "load read input-file file"),
    ("quiet", "silent no-progress"),
    ("no_live", "plain no-tui batch-mode"),
    ("plan", "dry-run"),
    ("force", "no-skip"),
    ("gate", "threshold fail-over ci"),
    ("across", "ignore"),
    ("debug", "traceback verbose v"),
)  # fmt: skip
"""Fields of options, of which a command shows the first that it has, and other words for them."""

LEAST_LIKENESS: Final = 0.7
"""Smallest likeness of the letters with which a name counts as mistyped."""


def command_meant(typed: str) -> str | None:
    """Return the command that a word stands for, or from which it differs by a typing error."""
    word = typed.lower()
    by_word = {other: name for name, command in commands().items() for other in command.also_called.split()}
    if word in by_word:
        return by_word[word]
    close = nearest(word, [*commands(), *by_word], LEAST_LIKENESS)
    return by_word.get(close, close) if close else None


def option_meant(typed: str, options: Mapping[str, Collection[str]]) -> str | None:
    """Return the option that a name stands for, or from which it differs by a typing error; both without dashes.

    `options` has the names of each option of a command, the preferred one first, by this name and by the field.
    """
    word = typed.lower().replace("_", "-")
    by_word: dict[str, str] = {}
    for fields, others in OPTIONS:
        own = next((field for field in fields.split() if field in options), None)
        if own is not None:
            same = [*fields.replace("_", "-").split(), *others.split()]
            by_word = {**dict.fromkeys(same, next(iter(options[own]))), **by_word}
    names = list(dict.fromkeys(name for spellings in options.values() for name in spellings))
    if word in by_word and word not in names:
        return by_word[word]
    begun = [name for name in names if len(word) > 1 and name.startswith(word)]
    close = begun[0] if len(begun) == 1 else nearest(word, [*names, *by_word], LEAST_LIKENESS)
    return by_word.get(close, close) if close and close not in names else close
