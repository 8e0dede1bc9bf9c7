"""What an experiment comes down to on one machine: its runs, each with a spec, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import count

from pydantic import BaseModel

from sysbench.command import Kind, measuring
from sysbench.commands.run.experiment_file import Instead, Word, Words, WrittenExperiment, WrittenRun, by_field
from sysbench.errors import OptionError, UsageError
from sysbench.log.manifest import Here, RunEntry
from sysbench.spec.cell import DeviceType, RunSpec
from sysbench.spec.commands import keys_of, long_name
from sysbench.spec.validation import Given, validated

MOST_RUNS = 500
"""More than this is an experiment that includes others that include others, not one that somebody waits for."""


@dataclass(frozen=True)
class PlannedRun:
    """One run, as it will be on this machine."""

    entry: RunEntry
    spec: RunSpec
    """What is measured or simulated; what was written where the run is left out."""
    options: Given
    """How it is carried out, as far as the experiment says so, by field; files are relative to its directory."""


@dataclass
class _Overrides:
    """Options from outside, and which of them were of use to a run."""

    words: Mapping[str, Word]
    """By long name."""
    of: str
    """Whose runs they are for."""
    taken: set[str] = field(default_factory=set)
    kept: dict[str, str] = field(default_factory=dict)
    """By long name, a run that has the option and keeps its own."""

    def over(self, run: WrittenRun, words: Words) -> Words:
        """The words of a run with these in their place."""
        keys = keys_of(run.command)
        mine = {name: word for name, word in self.words.items() if name in keys}
        self.kept |= {name: run.name for name in mine if keys[name].field in run.keep}
        free = {name: word for name, word in mine.items() if keys[name].field not in run.keep}
        self.taken |= free.keys()
        return {**words, **by_field(run.command, free)}

    def refuse_useless(self) -> None:
        """Raise UsageError for the first that no run has taken."""
        for name, word in self.words.items():
            if name in self.taken:
                continue
            if name in self.kept:
                what = f"is what {self.kept[name]} is about, and no other run of {self.of} has it"
            else:
                what = f"is an option of no run of {self.of}"
            raise word.place.complaint(f"{name} {what}") if word.place else UsageError(f"--{name} {what}")


def plan(
    experiment: WrittenExperiment, overrides: Mapping[str, str], devices: Sequence[DeviceType]
) -> tuple[PlannedRun, ...]:
    """Every run of the experiment where there are `devices`, the one that `auto` stands for first.

    `overrides` are options by long name, "" for switches: every run that has one, and does not keep its own, takes it.
    Raises UsageError for one that no run takes, and for options that are wrong, here or with other devices.
    """
    outermost = _Overrides({name: Word(text) for name, text in overrides.items()}, experiment.name)
    planned: list[PlannedRun] = []
    for written, part, layers in _all(experiment, (outermost,)):
        if len(planned) == MOST_RUNS:
            raise UsageError(f"{experiment.path} includes more than {MOST_RUNS} runs")
        name = written.name if part is experiment else f"{part.name}-{written.name}"
        taken = {each.entry.name.lower() for each in planned}
        # With a number where an experiment is included twice.
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        name = next(candidate for candidate in names if candidate.lower() not in taken)
        planned.append(_planned(written, name, part.title, layers, devices))
    outermost.refuse_useless()
    return tuple(planned)


def refuse_mistakes(experiment: WrittenExperiment, overrides: Mapping[str, str]) -> None:
    """Raise UsageError for what `plan` would refuse whatever devices there are."""
    plan(experiment, overrides, ("cuda",))


def _all(
    experiment: WrittenExperiment, layers: tuple[_Overrides, ...]
) -> Iterator[tuple[WrittenRun, WrittenExperiment, tuple[_Overrides, ...]]]:
    """Every run, with the experiment that it is written in and what is changed from outside, the innermost first."""
    for inclusion in experiment.inclusions:
        own = _Overrides(inclusion.overrides, inclusion.experiment.name)
        yield from _all(inclusion.experiment, (own, *layers))
        own.refuse_useless()
    for run in experiment.runs:
        yield run, experiment, layers


def _planned(
    run: WrittenRun, name: str, part: str, layers: Sequence[_Overrides], devices: Sequence[DeviceType]
) -> PlannedRun:
    for each in (Instead(), *run.instead.values()):
        # What is wrong on any kind of device is refused on all.
        _spec_and_options(run, {**run.words, **each.words})

    def changed(words: Words) -> Words:
        return reduce(lambda so_far, layer: layer.over(run, so_far), layers, words)

    landing = _landing(changed(run.words), devices)
    instead = run.instead.get(landing, Instead())
    words = changed({**run.words, **instead.words})
    if "simulate" in words:
        # What is simulated is on no device: one that was named has said where the run would have landed.
        words = {name: word for name, word in words.items() if name != "device"}
    spec, options = _spec_and_options(run, words)
    here, why = _difference(run, words, instead, landing, devices)
    entry = RunEntry(
        name=name,
        part=part,
        title=run.title,
        question=run.question,
        command=run.command,
        options=_written(run.command, words),
        here=here,
        why=why,
    )
    return PlannedRun(entry, spec, options)


def _landing(words: Words, devices: Sequence[DeviceType]) -> DeviceType:
    """The kind of device that the run is made on: that of the first it names, where there is one of it."""
    named = ((words["device"].text or "") if "device" in words else "auto").partition(",")[0].partition(":")[0].strip()
    return next((device for device in devices if device == named), devices[0])


def _difference(
    run: WrittenRun, words: Words, instead: Instead, landing: DeviceType, devices: Sequence[DeviceType]
) -> tuple[Here, str]:
    """Whether the run is another one here than the file has, and why."""
    reason = {"cuda": "on a GPU of CUDA's", "mps": "on an Apple GPU", "cpu": "on the CPU"}[landing]
    if landing == "cpu" and devices == ("cpu",):
        reason = "no GPU here"
    if instead.skip is not None:
        return "left out", f"{reason}: {instead.skip}"
    at_work = {name: word for name, word in instead.words.items() if words.get(name) is word}
    if "simulate" in words:
        simulated = f"simulated for {words['simulate'].text}"
        return "simulated", f"{reason}: {simulated}" if "simulate" in instead.words else simulated
    if not at_work:
        return "as written", ""
    return "changed", f"{reason}: {', '.join(_said(run, name, word) for name, word in at_work.items())}"


def _said(run: WrittenRun, name: str, word: Word) -> str:
    """`--size tiny instead of small,medium`."""
    key = next(key for key, each in keys_of(run.command).items() if each.field == name and each.stands_for is None)
    former = (run.words[name].text or "") if name in run.words else ""
    if word.text is None:
        return f"no --{key} {former}".rstrip()
    return f"--{key} {word.text}".rstrip() + (f" instead of {former}" if former else "")


def _written(kind: Kind, words: Words) -> dict[str, str]:
    """The words by long name, in the order of the spec's fields."""
    models: tuple[type[BaseModel], ...] = (measuring(kind).spec_class, measuring(kind).options_class)
    return {
        long_name(model, name): text
        for model in models
        for name in model.model_fields
        if name in words and (text := words[name].text) is not None
    }


def _spec_and_options(run: WrittenRun, words: Words) -> tuple[RunSpec, Given]:
    """Both halves of what the words say; raises UsageError, with the line of the wrong word where a file has it."""
    given: Given = {name: word.text or True for name, word in words.items() if word.text is not None}
    own = {name: value for name, value in given.items() if name in measuring(run.command).spec_class.model_fields}
    others = {name: value for name, value in given.items() if name not in own}
    try:
        spec: RunSpec = validated(measuring(run.command).spec_class, own)
        validated(measuring(run.command).options_class, others)
        impossible = next(filter(None, (cell.problem(None) for cell in spec.cells())), None)
        if impossible is not None:
            raise OptionError(impossible, None)
    except OptionError as error:
        word = words.get(error.field or "", Word(None, run.place))
        if word.place is None:
            raise UsageError(f"{error} (for {run.name} of `{run.command}`)") from None
        raise word.place.complaint(str(error)) from None
    return spec, others
