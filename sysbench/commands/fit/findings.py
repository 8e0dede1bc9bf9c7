"""Findings of `sysbench fit`: whether the step fits on each GPU, and which change to make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sysbench import units
from sysbench.commands.fit.record import FitCellRecord, FitRecord, Trial
from sysbench.commands.fit.suggestions import Suggestions, nearest_miss, suggestions, words
from sysbench.log.predictions import Training
from sysbench.render.sentences.findings import Finding
from sysbench.render.sentences.phrases import join_words
from sysbench.render.training_columns import in_digits
from sysbench.spec import hardware
from sysbench.spec.quantities import time_limit_word

SAME_CLASS_SHARE = 0.02
"""Largest difference in memory between GPUs of one class: of 80 GB, different drivers leave different amounts."""


def verdict(trial: Trial) -> str:
    if trial.is_undecided:
        return "cannot tell"
    return "fits" if trial.is_safe else "barely fits" if trial.fits else "does not fit"


def undecided(trial: Trial) -> str:
    """Return why the size of the CUDA context decides whether a step fits."""
    missing, spare = -trial.margin_bytes, trial.margin_bytes + trial.context_uncertainty_bytes
    return (
        f"{units.size(missing)} more are needed if the CUDA context is as large as any that is known, and "
        f"{units.size(spare)} are to spare if it is as small"
    )


def of_run(record: FitRecord) -> Iterator[Finding]:
    for cell in record.cells:
        parts = list(suggestions(cell))
        firsts = {part.gpu: part for part in reversed(parts)}
        for gpu in cell.gpus:
            answer = _answer(cell, gpu, [part for part in parts if part.gpu == gpu])
            yield Finding(" ".join(filter(None, answer)), (cell,))
        if cell.training_tokens and (training := _whole_training(cell, firsts, cell.training_tokens)):
            yield Finding(training, (cell,))
        if unfinished := unfinished_search(cell):
            yield Finding(unfinished, (cell,))
        if cell.extents:
            yield Finding(_smallest_gpu(cell), (cell,))


def unfinished_search(cell: FitCellRecord) -> str | None:
    """Return the sentence on a search that did not end; None for one that did."""
    if cell.stopped_after_s is not None:
        limit = time_limit_word(cell.stopped_after_s)
        return f"the search was stopped at --max-time {limit}: better changes may exist."
    if cell.outcome != "ok" and cell.trials:
        return "the search did not end: better changes may exist."
    return None


def _whole_training(cell: FitCellRecord, firsts: Mapping[str, Suggestions], tokens: int) -> str | None:
    trained: dict[str, Training] = {}
    for gpu in cell.gpus:
        trial = firsts[gpu].best if gpu in firsts else cell.asked(gpu)
        if trial.fits and (training := cell.training(trial, tokens)) is not None:
            trained[gpu] = training
    costs = {gpu: training.cost for gpu, training in trained.items() if training.cost is not None}
    if not trained:
        return None
    takes = [f"{units.duration(training.duration_s.point)} on {gpu}" for gpu, training in trained.items()]
    cheapest = min(costs, key=lambda gpu: costs[gpu].point, default=None)
    cost = ""
    if cheapest is not None:
        which = f": {cheapest} costs least," if len(trained) > 1 else " and cost"
        cost = f"{which} {in_digits(costs[cheapest])}"
    return f"{units.count(tokens)} tokens take {join_words(takes)}{cost}."


def _smallest_gpu(cell: FitCellRecord) -> str:
    batches = [extent for extent in cell.extents if extent.axis == "batch"]
    safe = [extent for extent in batches if extent.safe >= cell.cell.batch]
    step = f"batch {cell.cell.batch} at ctx {cell.cell.ctx}"
    if not safe:
        return f"{step} fits safely on none of these GPUs; sysbench fit without --table searches for changes."
    smallest = min(safe, key=lambda extent: extent.gpu_bytes)
    least = f"{smallest.gpu} is the smallest of them" if len(safe) > 1 else f"it is {smallest.gpu}"
    return f"{step} fits safely on {len(safe)} of {len(batches)} GPUs: {least}."


def _answer(cell: FitCellRecord, gpu: str, found: Sequence[Suggestions]) -> Iterator[str]:
    asked = cell.asked(gpu)
    missing = f", {units.size(-asked.margin_bytes)} more are needed" if not asked.fits else ""
    spare = f", with {units.size(asked.margin_bytes)} to spare" if asked.fits else ""
    if asked.is_undecided:
        yield f"{gpu}: cannot tell whether the step fits as asked: {undecided(asked)}."
    else:
        yield f"{gpu}: as asked, the step {verdict(asked)}{missing}{spare}."
    if found:
        yield _best(found[0])
        if found[0].best.ranks > asked.ranks:
            yield from _on_as_many(found[1:], asked.ranks)
    elif cell.cell.asked_only:
        yield "" if asked.is_safe else "sysbench fit without --gate searches for changes that make it fit."
    elif asked.is_safe and cell.cell.faster:
        yield "No change that was tried makes it faster."
    elif asked.is_safe:
        yield "--faster searches for changes that make it faster."
    else:
        yield from _nothing_fits(cell, gpu)


def _best(found: Suggestions) -> str:
    trial = found.best
    time = f", a step of {units.seconds(trial.step.point_s)}" if trial.step else ""
    aim = "Faster" if found.cell.asked(found.gpu).is_safe else "It fits"
    learning = ", which alters what the model learns" if found.relearns else ""
    spare = f"{units.size(trial.margin_bytes)} to spare{'' if trial.is_safe else ', within the uncertainty'}"
    return f"{aim} with {words(trial.changes)}{learning}: {spare}{time}."


def _on_as_many(found: Iterable[Suggestions], ranks: int) -> Iterator[str]:
    """Yield what fits without more GPUs, at the price of what the model learns."""
    fitting = (trial for part in found for trial in part.trials if trial.ranks == ranks and trial.is_safe)
    if (trial := next(fitting, None)) is not None:
        where = "one GPU" if ranks == 1 else f"{ranks} GPUs"
        spare = f"{units.size(trial.margin_bytes)} to spare"
        yield f"On {where}, it fits with {words(trial.changes)}, which alters what the model learns: {spare}."


def _nothing_fits(cell: FitCellRecord, gpu: str) -> Iterator[str]:
    miss = nearest_miss(cell.trials, gpu)
    if miss is None:
        return
    tried = sum(bool(trial.changes) for trial in cell.trials if trial.gpu == gpu)
    if tried:
        nearest = words(miss.changes) if miss.changes else "the step as asked"
        ended = unfinished_search(cell) is None
        none = "Nothing that was tried" if ended else f"None of the {tried} combinations tried so far"
        yield f"{none} fits: nearest is {nearest}, which lacks {units.size(-miss.margin_bytes)}."
    if miss.state_bytes > miss.gpu_bytes:
        yield f"Weights, gradients and optimizer state alone take {units.size(miss.state_bytes)}."
    what = words(miss.changes) or "the step as asked"
    least_bytes = miss.needed_bytes + miss.uncertainty_bytes
    enough = [card for card in hardware.available_gpus() if card.memory_bytes >= least_bytes]
    if enough:
        smallest_bytes = min(card.memory_bytes for card in enough)
        names = [card.slug for card in enough if card.memory_bytes <= smallest_bytes * (1 + SAME_CLASS_SHARE)]
        yield f"The smallest known GPUs that have enough for {what}: {', '.join(names)} ({units.size(smallest_bytes)})."
