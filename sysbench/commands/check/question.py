"""From files to a question for `sysbench fit`, and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sysbench.commands.check.file import ConfigFile
from sysbench.commands.check.readers import shared
from sysbench.commands.check.spec import CheckSpec
from sysbench.commands.check.understanding import (
    CannotTellError,
    Direction,
    Format,
    Settings,
    Understanding,
    Unmodelled,
    Word,
    account,
)
from sysbench.commands.fit import command as fit
from sysbench.commands.fit.record import FitCellRecord, FitRecord, Trial
from sysbench.commands.fit.spec import FitOptions, FitSpec
from sysbench.commands.surroundings import RunSurroundings
from sysbench.errors import Refusal, UsageError
from sysbench.log.records import typed
from sysbench.spec.axis import axes_of_model
from sysbench.spec.knobs import PAGED, tokens_per_chunk
from sysbench.spec.model import ModelSpec
from sysbench.spec.ranks import NODE_RANKS, ZERO
from sysbench.spec.validation import Given, validated

SHARDED_RANKS = 8
"""Number of GPUs where a file says how they share the work and not how many they are: a node."""


SMALL_WITH_ADAPTERS = ("lora", "optimizer", "precision")
"""Changes that save little where only adapters are trained, so that they are not tried."""


@dataclass(frozen=True)
class Question:
    """A training config as it was understood, with the config that starts it, if any."""

    file: ConfigFile
    form: Format
    understanding: Understanding


@dataclass(frozen=True)
class Answer:
    """What `sysbench fit` found for a number of GPUs."""

    ranks: int
    cell: FitCellRecord
    compiled: FitCellRecord | None = None
    """The step as the file says, if it compiles it and only this decides; `cell` is then the same step, eager."""

    @property
    def as_said(self) -> FitCellRecord:
        """Return what was found for the step as the file says."""
        return self.compiled or self.cell


def understood(file: ConfigFile, form: Format, launchers: Sequence[tuple[ConfigFile, Format]]) -> Question:
    """Return what a file and those that start it say; raises CannotTellError for what cannot be answered for."""
    understanding = Understanding()
    for each, its_form in ((file, form), *launchers):
        settings = Settings(each)
        its_form.read(settings, understanding)
        account(its_form, settings, understanding)
    _leave_out_combinations(understanding, file)
    return Question(file, form, understanding)


def _unmodelled(file: ConfigFile, word: Word, otherwise: str, direction: Direction, reason: str) -> Unmodelled:
    """Return what is left out of a word of the file, at the first key that says it; `otherwise` if none does."""
    key = next(iter(word.keys), otherwise)
    return Unmodelled(key, file.entries[key].line if key in file.entries else 1, direction, reason)


_WITHOUT_SDPA = ("gemma2", "gpt_oss")
"""Types of models that transformers computes without scaled_dot_product_attention: scores are capped, or have sinks."""


def _leave_out_combinations(understanding: Understanding, file: ConfigFile) -> None:
    """Compute the nearest of what is modelled only by itself."""

    def leave_out(option: str, direction: Direction, reason: str) -> None:
        found = _unmodelled(file, understanding.options[option], option, direction, reason)
        understanding.unmodelled.append(found)

    if understanding.word("quantize") is not None and understanding.word("strategy") in ("fsdp2", "hsdp"):
        on_host = ", and kept on the host" if understanding.word("offload") is not None else ""
        leave_out("strategy", "less", f"quantized weights are shared between ranks{on_host}; here each has all")
        understanding.say("strategy", "ddp", *understanding.options["strategy"].keys)
        for option in ("reshard", "param_dtype", "reduce_dtype", "offload"):
            understanding.options.pop(option, None)
    if understanding.word("strategy") in ZERO and understanding.word("optimizer") in ("muon", "adafactor"):
        leave_out("strategy", "less", "state that ranks share; with this optimizer, here each has all")
        understanding.say("strategy", "ddp", *understanding.options["strategy"].keys)
        understanding.options.pop("bucket_mb", None)
    if understanding.word("optimizer") == PAGED and understanding.word("strategy") in ("fsdp2", "hsdp", *ZERO):
        leave_out("optimizer", "less", "state that moves to the host when memory runs out")
        understanding.say("optimizer", "adamw-8bit", *understanding.options["optimizer"].keys)
    chunk = tokens_per_chunk(understanding.word("cross_entropy") or "")
    if chunk is not None and chunk > int(understanding.word("batch") or 1) * int(understanding.word("ctx") or 1):
        understanding.say("cross_entropy", "chunked", *understanding.options["cross_entropy"].keys)
    attention = understanding.word("attention")
    if attention not in (None, "own", "naive") and shared.config(understanding).get("model_type") in _WITHOUT_SDPA:
        if attention == "flash":
            leave_out("attention", "less", "flash-attn stores no scores of this model; here they are stored")
        understanding.say("attention", "own", *understanding.options["attention"].keys)


def ranks_of(question: Question, spec: CheckSpec) -> tuple[int, ...]:
    """Return the numbers of GPUs to answer for: those asked for, else what the files say, else one or a node."""
    said = question.understanding.word("ranks")
    if spec.ranks:
        return spec.ranks
    if said is not None and int(said) > NODE_RANKS:
        question.understanding.assumed.append(
            f"{said} GPUs are computed as {NODE_RANKS}: of more, each needs less where they share the model, and the "
            "network between machines takes time"
        )
    if said is not None:
        return (min(int(said), NODE_RANKS),)
    count = 1 if question.understanding.word("strategy") is None else SHARDED_RANKS
    question.understanding.assumed.append(f"the files do not say how many GPUs: {count} (--ranks asks for others)")
    return (count,)


def answer(question: Question, ranks: int, spec: CheckSpec) -> Answer:
    """Ask `sysbench fit`, in its worker; raises CannotTellError if the step cannot be simulated.

    A compiled step, which needs less than the same step run eagerly, takes minutes to simulate. It is asked for only
    where `spec` says so and the eager one does not fit.
    """
    given = _given(question, ranks, spec)
    cell = _asked(question, given, spec)
    if (compiling := question.understanding.options.get("execution")) is None:
        return Answer(ranks, cell)
    if all(cell.asked(gpu).is_safe for gpu in cell.gpus):
        reason = "it fits uncompiled; compiled, it needs less memory and time"
    elif not spec.try_compile:
        reason = "a compiled step needs less; --try-compile says how much, in minutes"
    else:
        try:
            return Answer(ranks, cell, _asked(question, {**given, "execution": "compiled", "asked_only": True}, spec))
        except CannotTellError as not_told:
            reason = f"a compiled step needs less; {not_told.refusal.reason}"
    left_out = _unmodelled(question.file, compiling, "torch.compile", "less", reason)
    if left_out not in question.understanding.unmodelled:
        question.understanding.unmodelled.append(left_out)
    return Answer(ranks, cell)


def _asked(question: Question, given: Given, spec: CheckSpec) -> FitCellRecord:
    options = FitOptions(out=spec.out, quiet=spec.quiet, no_live=False, debug=spec.debug)
    try:
        asked = fit.suited(validated(FitSpec, given), options)
        record = typed(fit.perform(asked, options, RunSurroundings(shown=False)).record, FitRecord)
    except UsageError as error:
        raise CannotTellError(Refusal(str(error), option=f"{question.file.path}:")) from None
    (cell,) = record.cells
    if not cell.trials:
        raise CannotTellError(Refusal(cell.detail or cell.outcome, option=f"{question.file.path}:"))
    return cell


def _given(question: Question, ranks: int, spec: CheckSpec) -> Given:
    words = question.understanding.options
    given: Given = {name: word.value for name, word in words.items() if name not in ("ranks", "execution")}
    if ranks > 1:
        given["ranks"] = str(ranks)
        if given.get("offload") == "optimizer":  # fit computes this for one process
            del given["offload"]
            question.understanding.assumed.append("optimizer state is on the GPUs; on the host, it needs less of them")
    else:
        if given.get("strategy") in ZERO and "precision" in given and "lora" not in words:
            # fp32 weights, as DeepSpeed keeps beside those of 16 bits
            given["precision"] = words["precision"].value.removesuffix("-true")
        for name in ("strategy", "param_dtype", "reduce_dtype", "reshard", "no_sync", "bucket_mb"):
            given.pop(name, None)
        if given.get("offload") == "parameters":
            given["offload"] = "optimizer"
    if given.get("strategy") == "hsdp" and ranks < 4:
        given["strategy"] = "fsdp2"
    batch, whole = int(words["batch"].value), question.understanding.global_batch
    accumulated = int(words["grad_accum"].value) if whole is None else max(1, whole // (batch * ranks))
    given["grad_accum"] = str(accumulated)
    steps = question.understanding.steps
    if steps:
        each = batch * accumulated * int(words["ctx"].value) * ranks
        given["tokens"] = str(steps * each)
    kept = [*question.form.keep, *(SMALL_WITH_ADAPTERS if "lora" in words else ())]
    lineless = (
        f"{name}={value}"
        for name, value in _remedies()
        if not question.form.lines({name: value}, question.understanding)
    )
    asked = {"gpus": spec.gpus, "price": spec.price, "max_time": spec.max_time}
    return {**given, **asked, "keep": ",".join(kept), "not_tried": tuple(lineless)}


def _remedies() -> Iterator[tuple[str, object]]:
    """Yield every value that fit may try of an axis."""
    for name, axis in axes_of_model(ModelSpec).items():
        if axis.remedy is not None:
            yield from ((name, value) for value in axis.remedy.values + axis.remedy.relearns)


@dataclass(frozen=True)
class FileChange:
    """A change that makes the step fit, as lines of the file."""

    trial: Trial
    lines: dict[str, object]


MAX_CHANGES = 4

WORTH_SHOWING = 0.9
"""A slower change is shown if it needs less than this share of the memory of those before it."""


def file_changes(question: Question, each: Answer, gpu: str) -> list[FileChange]:
    """Return the changes that fit, the smallest first: fewest lines, then the fastest; each faster or leaner than all
    before. Changes of what the model learns come last. There are none if the step fits as the file says."""
    if each.as_said.asked(gpu).is_safe:
        return []
    found = []
    for trial in each.cell.trials:
        if trial.gpu == gpu and trial.changes and trial.is_safe:
            lines = question.form.lines(trial.changes, question.understanding)
            if lines:
                found.append(FileChange(trial, dict(lines)))
    found.sort(key=lambda change: (change.trial.relearns, len(change.lines), change.trial.relative_s))
    shown: list[FileChange] = []
    for change in found:
        if all(
            change.trial.relative_s < other.trial.relative_s
            or change.trial.needed_bytes < WORTH_SHOWING * other.trial.needed_bytes
            for other in shown
        ):
            shown.append(change)
    return shown[:MAX_CHANGES]
