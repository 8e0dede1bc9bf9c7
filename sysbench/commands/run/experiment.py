"""Plan an experiment for one machine: its runs in order, each with a spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from pathlib import Path

from pydantic import BaseModel

from sysbench.command import command_of
from sysbench.commands.run.experiment_file import (
    DeviceOverrides,
    OptionValue,
    OptionValues,
    WrittenExperiment,
    WrittenRun,
    by_field,
)
from sysbench.errors import OptionError, UsageError
from sysbench.log.manifest import Here, RunEntry
from sysbench.spec import hardware
from sysbench.spec.cell import DeviceType, RunSpec
from sysbench.spec.command_options import keys_of, long_name
from sysbench.spec.validation import Given, validated

MAX_RUNS = 500
"""Maximum number of runs; only nested inclusions could exceed it."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment, as planned for one machine."""

    entry: RunEntry
    spec: RunSpec
    """The spec; as written in the file if the run is skipped."""
    options: Given
    """Run options given by the experiment, by field; file names are relative to the experiment's directory."""


@dataclass
class _Overrides:
    words: Mapping[str, OptionValue]
    """Options by long name."""
    experiment: str
    """Name of the experiment."""
    used: set[str] = field(default_factory=set)
    fixed: dict[str, str] = field(default_factory=dict)
    """Maps the long name of an option to a run that keeps its own value of the option."""

    def apply(self, run: WrittenRun, words: OptionValues) -> OptionValues:
        """Return `words` with these overrides applied, except to fields that the run keeps."""
        keys = keys_of(run.command)
        applicable = {name: value for name, value in self.words.items() if name in keys}
        self.fixed |= {name: run.name for name in applicable if keys[name].field in run.keep}
        effective = {name: value for name, value in applicable.items() if keys[name].field not in run.keep}
        self.used |= effective.keys()
        return {**words, **by_field(run.command, effective)}

    def refuse_unused(self) -> None:
        for name, value in self.words.items():
            if name in self.used:
                continue
            if name in self.fixed:
                problem = f"is fixed by {self.fixed[name]}, and no other run of {self.experiment} has it"
            else:
                problem = f"is not an option of any run of {self.experiment}"
            raise value.place.error(f"{name} {problem}") if value.place else UsageError(f"--{name} {problem}")


def plan(
    experiment: WrittenExperiment, overrides: Mapping[str, str], devices: Sequence[DeviceType]
) -> tuple[PlannedRun, ...]:
    """Plan every run of the experiment for a machine with these `devices`; the first one is the default (`auto`).

    `overrides` maps long option names to values ("" for a switch). An override applies to every run that has the option
    and does not keep its own value. Raises UsageError for an override that no run uses, and for options that are
    invalid on any type of device.
    """
    outermost = _Overrides({name: OptionValue(text) for name, text in overrides.items()}, experiment.name)
    planned: list[PlannedRun] = []
    for written, part, layers in _all_runs(experiment, (outermost,)):
        if len(planned) == MAX_RUNS:
            raise UsageError(f"{experiment.path} includes more than {MAX_RUNS} runs")
        name = written.name if part is experiment else f"{part.name}-{written.name}"
        used_names = {each.entry.name.lower() for each in planned}
        # Runs of an experiment that is included twice are numbered.
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        name = next(candidate for candidate in names if candidate.lower() not in used_names)
        planned.append(_plan_run(written, name, part.title, layers, devices))
    outermost.refuse_unused()
    return tuple(planned)


def refuse_invalid(experiment: WrittenExperiment, overrides: Mapping[str, str]) -> None:
    """Raise UsageError for errors that `plan` would report on any device."""
    plan(experiment, overrides, ("cuda",))


def refuse_code(experiment: WrittenExperiment, overrides: Mapping[str, str], *, allowed: bool) -> None:
    """Raise UsageError if the file is not in the current directory and imports code, unless this is `allowed`."""
    if allowed or experiment.path.resolve().parent == Path.cwd():
        return
    for each in plan(experiment, {}, ("cuda",)):
        named = (*getattr(each.spec, "model", ()), *getattr(each.spec, "optimizer", ()))
        code = next((name for name in named if ":" in name), None)
        if code is not None:
            raise UsageError(
                f"{experiment.path} is not in the current directory, and it imports code ({code}): read it, then add "
                "--allow-code"
            )


def _all_runs(
    experiment: WrittenExperiment, layers: tuple[_Overrides, ...]
) -> Iterator[tuple[WrittenRun, WrittenExperiment, tuple[_Overrides, ...]]]:
    """Yield every run with its experiment and the overrides that apply to the run, the innermost first."""
    for inclusion in experiment.inclusions:
        own = _Overrides(inclusion.overrides, inclusion.experiment.name)
        yield from _all_runs(inclusion.experiment, (own, *layers))
        own.refuse_unused()
    for run in experiment.runs:
        yield run, experiment, layers


def _plan_run(
    run: WrittenRun, name: str, part: str, layers: Sequence[_Overrides], devices: Sequence[DeviceType]
) -> PlannedRun:
    for each in (DeviceOverrides(), *run.instead.values()):
        # Options that are invalid on one type of device are refused on all.
        _spec_and_options(run, {**run.words, **each.words})

    def with_overrides(words: OptionValues) -> OptionValues:
        return reduce(lambda so_far, layer: layer.apply(run, so_far), layers, words)

    # The type of device that the run uses: the first one that it names, or the default if the machine lacks that one.
    initial_words = with_overrides(run.words)
    device_name = (initial_words["device"].text or "") if "device" in initial_words else "auto"
    device_type = next(
        (each for each in devices if each == device_name.partition(",")[0].partition(":")[0].strip()), devices[0]
    )
    instead = run.instead.get(device_type, DeviceOverrides())
    words = with_overrides({**run.words, **instead.words})
    not_simulated = ""
    if "simulate" in words:
        as_written = {name: word for name, word in words.items() if name != "simulate"}
        # A simulated run uses no device; `device` has only determined which options apply.
        words = {name: word for name, word in words.items() if name != "device"}
        if "simulate" not in {**run.words, **instead.words} and _are_known_gpus(words["simulate"]):
            try:
                _validate_options(run, words)
            except OptionError as error:  # runs that cannot be simulated ignore an overriding --simulate
                words, not_simulated = as_written, str(error)
    spec, options = _spec_and_options(run, words)
    models: tuple[type[BaseModel], ...] = (command_of(run.command).spec_class, command_of(run.command).options_class)
    options_by_long_name = {
        long_name(model, field): text
        for model in models
        for field in model.model_fields
        if field in words and (text := words[field].text) is not None
    }
    here, why = _difference_from_file(run, words, instead, device_type, devices)
    if not_simulated and here != "left out":
        here, why = "left out", f"it cannot be simulated: {not_simulated}"
    entry = RunEntry(
        name=name,
        part=part,
        title=run.title,
        question=run.question,
        command=run.command,
        options=options_by_long_name,
        here=here,
        why=why,
    )
    return PlannedRun(entry, spec, options)


def _are_known_gpus(gpus: OptionValue) -> bool:
    try:
        return bool(hardware.parse_gpus(gpus.text or ""))
    except ValueError:
        return False


def _difference_from_file(
    run: WrittenRun,
    words: OptionValues,
    instead: DeviceOverrides,
    device_type: DeviceType,
    devices: Sequence[DeviceType],
) -> tuple[Here, str]:
    reason = {"cuda": "on a CUDA GPU", "mps": "on an Apple GPU", "cpu": "on the CPU"}[device_type]
    if device_type == "cpu" and devices == ("cpu",):
        reason = "no GPU on this machine"
    if instead.skip is not None:
        return "left out", f"{reason}: {instead.skip}"
    effective = {name: word for name, word in instead.words.items() if words.get(name) is word}
    if "simulate" in words:
        simulated = f"simulated for {words['simulate'].text}"
        return "simulated", f"{reason}: {simulated}" if "simulate" in instead.words else simulated
    if not effective:
        return "as written", ""
    return "changed", f"{reason}: {', '.join(_describe_change(run, name, word) for name, word in effective.items())}"


def _describe_change(run: WrittenRun, name: str, word: OptionValue) -> str:
    option_name = next(
        option_name
        for option_name, each in keys_of(run.command).items()
        if each.field == name and each.shorthand_value is None
    )
    previous = (run.words[name].text or "") if name in run.words else ""
    if word.text is None:
        return f"no --{option_name} {previous}".rstrip()
    return f"--{option_name} {word.text}".rstrip() + (f" instead of {previous}" if previous else "")


def _spec_and_options(run: WrittenRun, words: OptionValues) -> tuple[RunSpec, Given]:
    try:
        return _validate_options(run, words)
    except OptionError as error:
        word = words.get(error.field or "", OptionValue(None, run.place))
        if word.place is None:
            raise UsageError(f"{error} (for {run.name} of `{run.command}`)") from None
        raise word.place.error(str(error)) from None


def _validate_options(run: WrittenRun, words: OptionValues) -> tuple[RunSpec, Given]:
    given: Given = {name: word.text or True for name, word in words.items() if word.text is not None}
    own = {name: value for name, value in given.items() if name in command_of(run.command).spec_class.model_fields}
    others = {name: value for name, value in given.items() if name not in own}
    spec: RunSpec = validated(command_of(run.command).spec_class, own)
    validated(command_of(run.command).options_class, others)
    impossible = next(filter(None, (cell.problem(None) for cell in spec.cells())), None)
    if impossible is not None:
        raise OptionError(impossible, None)
    return spec, others
