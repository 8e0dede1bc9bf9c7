"""Plan an experiment for one machine: its runs in order, each with a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from sysbench.command import runnable
from sysbench.commands.kinds import command_of
from sysbench.commands.run.experiment_file import (
    DeviceOverrides,
    OptionValue,
    OptionValues,
    WrittenExperiment,
    WrittenRun,
    override,
)
from sysbench.errors import OptionError, UsageError
from sysbench.log.manifest import FILE_NAME, Here, RunEntry
from sysbench.spec import hardware
from sysbench.spec.cell import DeviceType, RunSpec
from sysbench.spec.command_options import keys_of, long_name
from sysbench.spec.validation import Given, validated


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment, as planned for one machine."""

    entry: RunEntry
    spec: RunSpec
    """The spec; as written in the file if the run is skipped."""
    options: Given
    """Run options given by the experiment, by field; file names are relative to the experiment's directory."""


def plan(
    experiment: WrittenExperiment, overrides: Mapping[str, str], devices: Sequence[DeviceType]
) -> tuple[PlannedRun, ...]:
    """Plan every run for a machine with these devices; raises UsageError for options that are invalid on any device."""
    words = {name: OptionValue(text) for name, text in overrides.items()}
    planned: list[PlannedRun] = []
    for run in override(experiment.runs, words, experiment.name):
        name = run.name if run.place.file == experiment.path else f"{run.place.file.stem}-{run.name}"
        used_names = {run.entry.name.lower() for run in planned}
        # Runs of an experiment that is included twice are numbered.
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        name = next(candidate for candidate in names if candidate.lower() not in used_names)
        planned.append(_plan_run(run, name, devices))
    return tuple(planned)


def refuse_code(experiment: WrittenExperiment) -> None:
    """Raise UsageError for an option that names code, if the file that sets it is not in the current directory."""
    here = Path.cwd()
    for run in experiment.runs:
        keys = {key.field: key for key in keys_of(run.command).values()}
        for words in (run.words, *(overrides.words for overrides in run.instead.values()), run.overrides):
            for field, word in words.items():
                if word.place is None or word.text is None or not keys[field].names_code(word.text):
                    continue
                if word.place.file.resolve().parent != here:
                    raise word.place.error(
                        f"{long_name(keys[field].model, field)} names code ({word.text}), and the file is not in the "
                        "current directory: read it, then add --allow-code"
                    )


def refuse_code_in_manifest(path: Path, overrides: Mapping[str, str]) -> None:
    """Raise UsageError for an option that names code; `overrides` come from the manifest in `path`."""
    for kind in runnable():
        for name, key in keys_of(kind).items():
            if name in overrides and key.names_code(overrides[name]):
                raise UsageError(
                    f"{path / FILE_NAME} names code (--{name} {overrides[name]}): read it, then add --allow-code"
                )


def _plan_run(run: WrittenRun, name: str, devices: Sequence[DeviceType]) -> PlannedRun:
    for overrides in (DeviceOverrides(), *run.instead.values()):
        # Options that are invalid on one type of device are refused on all.
        _spec_and_options(run, {**run.words, **overrides.words})

    # The type of device that the run uses: the first one that it names, or the default if the machine lacks that one.
    initial_words = {**run.words, **run.overrides}
    device_name = (initial_words["device"].text or "") if "device" in initial_words else "auto"
    device_type = next(
        (device for device in devices if device == device_name.partition(",")[0].partition(":")[0].strip()), devices[0]
    )
    instead = run.instead.get(device_type, DeviceOverrides())
    words = {**run.words, **instead.words, **run.overrides}
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
    models = command_of(run.command).models()
    options_by_long_name = {
        long_name(model, field): text
        for model in (models.spec, models.options)
        for field in model.model_fields
        if field in words and (text := words[field].text) is not None
    }
    here, why = _difference_from_file(run, words, instead, device_type, devices)
    if not_simulated and here != "left out":
        here, why = "left out", f"it cannot be simulated: {not_simulated}"
    entry = RunEntry(
        name=name,
        part=run.part,
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
        for option_name, key in keys_of(run.command).items()
        if key.field == name and key.shorthand_value is None
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
    models = command_of(run.command).models()
    given: Given = {name: word.text or True for name, word in words.items() if word.text is not None}
    own = {name: value for name, value in given.items() if name in models.spec.model_fields}
    others = {name: value for name, value in given.items() if name not in own}
    spec = validated(models.spec, own)
    validated(models.options, others)
    impossible = next(filter(None, (cell.problem(None) for cell in spec.cells())), None)
    if impossible is not None:
        raise OptionError(impossible, None)
    return spec, others
