"""The search of `sysbench fit` against brute force: every combination of changes, simulated on every size of GPU."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from sysbench.commands.calibrate.hardware_file import toml
from sysbench.commands.fit.measure import memory_of
from sysbench.commands.fit.record import Trial
from sysbench.commands.fit.search.changes import Change, Combination, changed, changes_of
from sysbench.commands.fit.search.rules import MAX_CHANGES, Memory, Outcome, Search
from sysbench.commands.fit.search.trials import outcome_of
from sysbench.commands.fit.search.trials import simulated as simulated_trial
from sysbench.commands.fit.spec import MAX_PLAIN_ROWS, FitCell, FitSpec, next_limit_bytes
from sysbench.commands.fit.suggestions import worth_showing
from sysbench.predict.rates import LINK_RATES
from sysbench.spec import hardware
from sysbench.spec.hardware import Rate
from tests.cli.running import made_once

GPU = "a100-40gb"

MIB = 2**20

BUDGETS_MIB = (640, 720, 760, 800, 860, 1000)
"""From a GPU on which nothing fits to one on which everything does."""

SHAPE = {"d_model": (64,), "d_ff": (256,), "layers": (2,), "heads": (4,), "batch": (2,), "gpus": (GPU,)}

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
    "learning": FitSpec(
        **SHAPE,
        vocab=(20_000,),
        ctx=(512,),
        keep=("ranks", "batch", "cross-entropy", "optimizer-in-backward", "lora"),
    ),
}


def question(spec: FitSpec, budget_mib: int) -> FitCell:
    (cell,) = spec.cells()
    return cell.model_copy(update={"budget": budget_mib * MIB})


Table = Mapping[tuple[Combination, int], Trial | None]
"""The trial of every combination with every budget."""


@pytest.fixture(scope="module", params=["logits", "scores", pytest.param("learning", marks=pytest.mark.slow)])
def simulated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[FitSpec, list[Change], Table]:
    """A question, its changes, and every combination of them, simulated with every budget."""
    spec = QUESTIONS[request.param]
    changes = changes_of(question(spec, BUDGETS_MIB[0]))
    keys = list(itertools.product(every_combination(changes), BUDGETS_MIB))
    trials = TypeAdapter(list[Trial | None])

    def simulate(_: Path) -> str:
        return trials.dump_json([simulated_trial(question(spec, budget), each, GPU) for each, budget in keys]).decode()

    found, _ = made_once(tmp_path_factory, f"combinations-{request.param}", simulate)
    return spec, changes, dict(zip(keys, trials.validate_json(found), strict=True))


def tried(search: Search, look_up: Callable[[Combination, bool], Outcome | None]) -> list[Combination]:
    """What the search asks for, in order."""
    found = []
    for strand in itertools.chain.from_iterable(search.stages()):
        outcome = None
        try:
            while True:
                combination, _, simulate = strand.send(outcome)
                found.append(combination)
                outcome = look_up(combination, simulate)
        except StopIteration:
            pass
    return found


def costly(changes: Combination) -> list[Change]:
    return [change for change in changes if change.costs_time and not change.replays]


def relearned(combination: Combination) -> Combination:
    return tuple(change for change in combination if change.relearns)


def every_combination(changes: list[Change]) -> Iterator[Combination]:
    """The combinations that the search stands for, in the order of the changes."""
    groups: dict[str, list[Change | None]] = {}
    for change in changes:
        groups.setdefault(change.group, [None]).append(change)
    for chosen in itertools.product(*groups.values()):
        left = [change for change in chosen if change is not None]
        found = tuple(sorted(left, key=lambda each: (each.costs_time, each.relearns, changes.index(each))))
        if len(relearned(found)) <= 1 and len(costly(found)) <= (1 if relearned(found) else MAX_CHANGES):
            yield found


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("budget", BUDGETS_MIB)
def test_what_is_shown_is_the_frontier_of_all_combinations(
    simulated: tuple[FitSpec, list[Change], Table], budget: int, bounded: bool
) -> None:
    spec, changes, table = simulated
    found: list[Trial] = []
    chance = random.Random(budget)

    def look_up(combination: Combination, simulate: bool) -> Outcome | None:
        if (trial := table.get((combination, budget))) is None:
            return None
        if simulate or not bounded:
            found.append(trial)
            return outcome_of(trial)
        outcome = outcome_of(trial)
        share = chance.uniform(0.8, 1.0)
        least = {name: round(getattr(outcome, name) * share) for name in ("needed_bytes", "tensors_bytes")}
        return replace(outcome, **least, step_s=outcome.step_s * chance.uniform(0.99, 1.0), is_simulated=False)

    tried(Search(memory_of(question(spec, budget)), changes), look_up)
    everything = {key: trial for (key, where), trial in table.items() if where == budget and trial is not None}
    asked = everything[()]
    if asked.is_safe:
        return
    shown = {relearns: rows for relearns, _, rows in worth_showing(found, [GPU], faster=False)}
    plain = [trial for key, trial in everything.items() if not relearned(key) and trial.fits]
    plain = [trial for trial in plain if trial.is_safe] or plain
    limit_bytes = asked.gpu_bytes
    for row in shown.get(False, []):
        assert row.relative_s == min(trial.relative_s for trial in plain if trial.needed_bytes <= limit_bytes)
        assert not any(
            trial.relative_s <= row.relative_s and trial.needed_bytes < row.needed_bytes
            for trial in plain
            if len(trial.changes) <= len(row.changes)
        )
        limit_bytes = next_limit_bytes(asked.gpu_bytes, row.needed_bytes)
    if len(shown.get(False, [])) < MAX_PLAIN_ROWS:
        assert not any(trial.needed_bytes <= limit_bytes for trial in plain)
    fastest: dict[Combination, float] = {}
    for key, trial in everything.items():
        if relearned(key) and trial.is_safe:
            fastest[relearned(key)] = min(trial.relative_s, fastest.get(relearned(key), trial.relative_s))
    below_s = shown[False][0].relative_s if False in shown else float("inf")
    wanted = sorted(each_s for each_s in fastest.values() if each_s < below_s)
    rows = shown.get(True, [])
    if wanted:
        assert [row.relative_s for row in rows] == wanted[: len(rows)]
        assert len(rows) == min(len(wanted), 5 - len(shown.get(False, [])))


def test_no_combination_is_tried_twice(simulated: tuple[FitSpec, list[Change], Table]) -> None:
    spec, changes, table = simulated
    budget = BUDGETS_MIB[0]
    search = Search(memory_of(question(spec, budget)), changes)
    asked = tried(search, lambda each, _: outcome_of(trial) if (trial := table.get((each, budget))) else None)
    assert len(asked) == len(set(asked))


def test_a_change_that_is_said_to_cost_time_never_makes_a_step_faster(
    simulated: tuple[FitSpec, list[Change], Table],
) -> None:
    """The assumption of the search: with it, a combination is never faster than with fewer such changes."""
    _, _, table = simulated
    budget = BUDGETS_MIB[0]
    for (combination, where), trial in table.items():
        for change in combination if where == budget and trial is not None else ():
            less = table.get((tuple(each for each in combination if each != change), budget))
            if change.costs_time and less is not None:
                assert trial.relative_s >= less.relative_s
            milder = tuple(change.milder if each == change else each for each in combination)
            if change.milder is not None and (other := table.get((milder, budget))) is not None:  # type: ignore[arg-type]
                assert trial.relative_s >= other.relative_s


LARGE = 1 << 40


def test_where_the_state_alone_is_too_large_only_changes_of_the_state_are_tried(
    simulated: tuple[FitSpec, list[Change], Table],
) -> None:
    _, changes, _ = simulated
    too_large = Outcome(LARGE, LARGE, LARGE, 1.0, True)
    memory = {GPU: Memory(LARGE // 2, LARGE // 3)}
    combinations = tried(Search(memory, changes), lambda each, _: too_large)
    first_answer = {change for change in changes if change.group == "checkpoint"}
    assert all(change.frees_state for each in combinations for change in {*each} - first_answer if costly((change,)))


def test_a_step_that_fits_is_not_searched_unless_a_faster_one_is_wanted() -> None:
    (cell,) = FitSpec(ctx=(32,), size=("tiny",), gpus=("h100",)).cells()
    fits = Outcome(1, 1, 1, 1.0, True)
    assert tried(Search(memory_of(cell), changes_of(cell)), lambda *_: fits) == [()]


def test_two_changes_of_what_is_learned_are_tried_together_only_where_nothing_else_fits() -> None:
    (cell,) = FitSpec(ctx=(32,), size=("tiny",), batch=(1,), gpus=("h100",), keep=("ranks",)).cells()
    changes = changes_of(cell)

    def only(least: int) -> list[Combination]:
        def look_up(combination: Combination, _: bool) -> Outcome:
            is_enough = len(relearned(combination)) >= least
            return Outcome(1 if is_enough else LARGE, 1, 1, 1.0, True)

        return tried(Search(memory_of(cell), changes), look_up)

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
