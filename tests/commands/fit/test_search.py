"""The search of `sysbench fit` against brute force: every combination of changes, simulated on every size of GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sysbench.commands.calibrate.hardware_file import toml
from sysbench.commands.fit.measure import outcome_of
from sysbench.commands.fit.search.changes import Change, Combination, changed, changes_of
from sysbench.commands.fit.search.rules import MAX_CHANGES, Outcome, Search
from sysbench.commands.fit.search.trials import simulated as simulated_trial
from sysbench.commands.fit.spec import FitCell, FitSpec
from sysbench.predict.rates import LINK_RATES
from sysbench.spec import hardware
from sysbench.spec.hardware import Rate

MIB = 2**20

BUDGETS_MIB = (640, 700, 720, 740, 760, 780, 800, 830, 860, 1000)
"""From a GPU on which nothing fits to one on which everything does."""

SHAPE = {"d_model": (64,), "d_ff": (256,), "layers": (2,), "heads": (4,), "batch": (2,), "gpus": ("a100-40gb",)}

QUESTIONS = {
    "logits": FitSpec(
        **SHAPE, vocab=(40_000,), ctx=(256,), keep=("precision", "ranks", "attention", "optimizer", "lora")
    ),
    "scores": FitSpec(
        **SHAPE,
        vocab=(500,),
        ctx=(1024,),
        keep=("precision", "ranks", "cross-entropy", "optimizer", "optimizer-in-backward", "lora"),
    ),
}


def question(spec: FitSpec, budget_mib: int) -> FitCell:
    (cell,) = spec.cells()
    return cell.model_copy(update={"budget": budget_mib * MIB})


Table = Mapping[tuple[Combination, int], Outcome | None]
"""The outcome of every combination with every budget."""


@pytest.fixture(scope="module", params=list(QUESTIONS))
def simulated(request: pytest.FixtureRequest) -> tuple[list[Change], Table]:
    """The changes of a question, and every combination of them, simulated with every budget."""
    spec = QUESTIONS[request.param]

    def outcome(combination: Combination, budget: int) -> Outcome | None:
        trial = simulated_trial(question(spec, budget), combination, "a100-40gb")
        return outcome_of(trial, trial.is_safe) if trial is not None else None

    changes = changes_of(question(spec, BUDGETS_MIB[0]))
    return changes, {
        (combination, budget): outcome(combination, budget)
        for combination in every_combination(changes)
        for budget in BUDGETS_MIB
    }


def tried(search: Search, look_up: Callable[[Combination], Outcome | None]) -> list[Combination]:
    """What the search asks for, in order."""
    found = []
    for strand in itertools.chain.from_iterable(search.stages()):
        outcome = None
        try:
            while True:
                combination, _ = strand.send(outcome)
                found.append(combination)
                outcome = look_up(combination)
        except StopIteration:
            pass
    return found


def every_combination(changes: list[Change]) -> Iterator[Combination]:
    groups: dict[str, list[Change | None]] = {}
    for change in changes:
        groups.setdefault(change.group, [None]).append(change)
    for chosen in itertools.product(*groups.values()):
        found = [change for change in chosen if change is not None]
        costly = [change for change in found if change.costs_time and not change.replays]
        if len(costly) <= MAX_CHANGES:
            yield tuple(sorted(found, key=lambda change: (change.replays, change.costs_time)))


@pytest.mark.parametrize("budget", BUDGETS_MIB)
def test_the_fastest_combination_that_fits_is_the_fastest_of_all(
    simulated: tuple[list[Change], Table], budget: int
) -> None:
    changes, table = simulated
    asked: list[Combination] = []

    def look_up(combination: Combination) -> Outcome | None:
        key = tuple(sorted(combination, key=lambda change: (change.replays, change.costs_time)))
        asked.append(key)
        return table[key, budget]

    all_tried = tried(Search(("a100-40gb",), changes, faster=True), look_up)
    found = [outcome.step_s for each in asked if (outcome := table[each, budget]) and outcome.fits]
    everything = [
        outcome.step_s for (_, where), outcome in table.items() if where == budget and outcome and outcome.fits
    ]
    assert bool(found) == bool(everything)
    assert min(found, default=0) == pytest.approx(min(everything, default=0))
    assert len(all_tried) == len(set(all_tried)) < len(table) / len(BUDGETS_MIB)


def test_where_the_state_alone_is_too_large_only_changes_of_the_state_are_tried(
    simulated: tuple[list[Change], Table],
) -> None:
    changes, table = simulated
    too_small = {key: Outcome(False, 1, 1.0, False, False) for key, _ in table}
    combinations = tried(Search(("a100-40gb",), changes), lambda each: too_small[each])
    assert all(change.frees_state for combination in combinations for change in combination)


def test_a_step_that_fits_is_not_searched_unless_a_faster_one_is_wanted() -> None:
    (cell,) = FitSpec(ctx=(32,), size=("tiny",), gpus=("h100",)).cells()
    fits = Outcome(True, 1, 1.0, True, True)
    assert tried(Search(("h100",), changes_of(cell)), lambda _: fits) == [()]


def test_two_changes_of_what_is_learned_are_tried_together_only_where_nothing_else_fits() -> None:
    (cell,) = FitSpec(ctx=(32,), size=("tiny",), batch=(1,), gpus=("h100",), keep=("ranks",)).cells()
    changes = changes_of(cell)

    def only(least: int) -> list[Combination]:
        def look_up(combination: Combination) -> Outcome:
            is_enough = len(relearned(combination)) >= least
            return Outcome(is_enough, 2 - is_enough, 1.0, True, True)

        return tried(Search(("h100",), changes), look_up)

    def relearned(combination: Combination) -> list[Change]:
        return [change for change in combination if change.relearns]

    assert max(len(relearned(each)) for each in only(1)) == 1
    pairs = {tuple(change.fields[0] for change in relearned(each)) for each in only(2) if len(relearned(each)) == 2}
    assert any({("lora", 16), ("precision", "bf16-true")} == set(pair) for pair in pairs)


def test_what_is_kept_is_not_changed() -> None:
    (cell,) = FitSpec(ctx=(32,), batch=(8,), gpus=("h100",), keep=("batch", "attention", "ranks")).cells()
    groups = {change.group for change in changes_of(cell)}
    assert groups == {
        "checkpoint", "cross_entropy", "allocator", "optimizer", "optimizer_in_backward", "precision", "lora",
    }  # fmt: skip


def test_a_value_that_the_user_chose_is_not_changed_but_for_what_alters_learning() -> None:
    (cell,) = FitSpec(ctx=(32,), batch=(1,), gpus=("h100",), attention=("flash",), precision=("bf16",)).cells()
    changes = {change.group for change in changes_of(cell) if not change.relearns}
    assert not {"attention", "precision", "batch"} & changes


def test_micro_batches_and_ranks_keep_the_sequences_of_a_step() -> None:
    (cell,) = FitSpec(ctx=(32,), batch=(6,), grad_accum=(2,), gpus=("h100",)).cells()
    changes = [change for change in changes_of(cell) if change.group in ("batch", "ranks")]
    assert {change.group for change in changes} == {"batch", "ranks"}
    for change in changes:
        step = changed(cell, (change,))
        assert step.batch * step.grad_accum * step.ranks == 12


def test_offloading_is_tried_where_the_rate_of_the_link_is_known_and_costs_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {**SHAPE, "gpus": ("a100-40gb", "h100"), "vocab": (20_000,), "ctx": (32,)}
    (cell,) = FitSpec(**shape).cells()
    assert "offload" not in {change.group for change in changes_of(cell)}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    hardware.user_directory().mkdir(parents=True)
    rate = Rate(value=25e9, spread=0.05, source="here", basis="calibrated")
    for gpu in cell.on:
        assert "offload" not in {change.group for change in changes_of(cell)}
        known = hardware.by_name(gpu)
        linked = known.model_copy(update={"rates": {**known.rates, **dict.fromkeys(LINK_RATES, rate)}})
        (hardware.user_directory() / f"{gpu}.toml").write_text(toml(linked))
    (offload,) = (change for change in changes_of(cell) if change.group == "offload")
    assert offload.frees_state
    asked, offloaded = (simulated_trial(cell, each, "h100") for each in ((), (offload,)))
    assert asked is not None
    assert offloaded is not None
    assert offloaded.step is not None
    assert offloaded.state_bytes < asked.state_bytes
    assert offloaded.relative_s > asked.relative_s
    given = FitSpec(**{**shape, "gpus": ("l4",)}, host_link="25GB/s").cells()
    assert "offload" in {change.group for change in changes_of(next(given))}
    kept = cell.model_copy(update={"keep": ("offload",)})
    assert "offload" not in {change.group for change in changes_of(kept)}
