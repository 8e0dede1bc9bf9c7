"""Experiments: what a file says, what is wrong with it and where, and what its runs are on one machine."""

from pathlib import Path

import pytest

from sysbench import package
from sysbench.command import runnable
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.commands.memory.spec import MemorySpec
from sysbench.commands.run.experiment import PlannedRun, plan, refuse_code
from sysbench.commands.run.experiment_file import load, names
from sysbench.commands.time.spec import TimeSpec
from sysbench.errors import UsageError
from sysbench.spec.command_options import keys_of
from sysbench.spec.model import ModelSpec
from sysbench.spec.validation import option_of, validated

GPU = ("cuda", "cpu")
NO_GPU = ("cpu",)


def written(directory: Path, text: str, name: str = "mine.toml") -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def planned(directory: Path, text: str, overrides: dict[str, str] | None = None, devices=NO_GPU) -> list[PlannedRun]:  # type: ignore[no-untyped-def]
    return list(plan(load(written(directory, text)), overrides or {}, devices))


def refusal(directory: Path, text: str, overrides: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as refused:
        planned(directory, text, overrides)
    message = str(refused.value)
    assert "\n" not in message
    return message.replace(f"{directory}/", "")


TIME = """
[[run]]
name = "steps"
command = "time"
size = "small"
ctx = "128-512*2"
"""

SCALED = """
[[run]]
name = "steps"
command = "time"
size = "large"
ctx = 256
precision = "fp32"
bf16 = true
keep = ["precision"]

[run.on_cpu]
size = "tiny"

[[run]]
name = "peaks"
command = "memory"
size = "2.7b"
ctx = 128
on_cpu = { simulate = "h100" }

[[run]]
name = "ranges"
command = "profile"
with = "nsys"
on_cpu.skip = "nsys sees kernels of GPUs"
"""


# --- what a file says


def test_a_run_is_what_its_command_would_make_of_the_same_words(tmp_path: Path) -> None:
    (run,) = planned(tmp_path, TIME)
    assert run.spec == TimeSpec(size="small", ctx="128-512*2")
    assert run.entry.command_line == "sysbench time --size small --ctx '128-512*2'"
    assert (run.entry.here, run.entry.why) == ("as written", "")


def test_values_may_be_texts_numbers_lists_and_switches(tmp_path: Path) -> None:
    (run,) = planned(
        tmp_path, '[[run]]\ncommand = "attention"\nseq = [64, 128]\nimpl = ["naive"]\nmax-time = 1.5\ncausal = true\n'
    )
    assert run.spec == AttentionSpec(seq=(64, 128), impl=("naive",), max_time=1.5, causal=True)
    assert run.entry.options == {
        "impl": "naive",
        "seq": "64,128",
        "causal": "",
        "max-time": "1.5",
    }


def test_a_shorthand_adds_to_its_axis_as_on_the_command_line(tmp_path: Path) -> None:
    run, *_ = planned(tmp_path, SCALED, devices=GPU)
    assert isinstance(run.spec, ModelSpec)
    assert run.spec.precision == ("fp32", "bf16")


def test_a_switch_or_shorthand_can_be_taken_back(tmp_path: Path) -> None:
    text = "[[run]]\ncommand = 'attention'\nbf16 = true\ncausal = true\non_cpu = { bf16 = false, causal = false }\n"
    (run,) = planned(tmp_path, text)
    assert run.spec == AttentionSpec()
    assert run.entry.why == "no GPU on this machine: no --precision bf16, no --causal"
    (both,) = planned(tmp_path, text.replace("bf16 = false", "bf16 = false, cold = true"), devices=GPU)
    assert both.spec == AttentionSpec(precision="bf16", causal=True)


def test_how_a_result_is_shown_and_drawn_is_a_runs_own_affair(tmp_path: Path) -> None:
    (run,) = planned(tmp_path, '[[run]]\ncommand = "memory"\nfigure = "over-time.png"\ntables = "phases"\n')
    assert run.options == {"figure": "over-time.png", "tables": "phases"}


# --- what is wrong with it


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TIME + 'szie = "tiny"\n', "mine.toml, line 7: szie is not an option of `time`. Did you mean size?"),
        (TIME + "batch = 0\n", "mine.toml, line 7: --batch 0 is out of range: it must be 1 or more. Nearest: 1"),
        (TIME + 'mode = "trian"\n', "mine.toml, line 7: --mode trian is not a mode. Did you mean train?"),
        (TIME + "seed = 'x'\n", "mine.toml, line 7: --seed x is not a whole number"),
        (TIME + "heads = 5\n", "mine.toml, line 2: --heads 5 does not divide --d-model 768."),
        (TIME + "bf16 = 'yes'\n", "mine.toml, line 7: bf16 is a switch: write true or false"),
        (TIME + "batch = true\n", "mine.toml, line 7: batch needs a value; true and false are for switches"),
        (TIME + "batch = 1979-05-27\n", "mine.toml, line 7: batch takes a string, a number, true, false, or a list"),
        (TIME + "out = 'here'\n", "mine.toml, line 7: out is not an option of `time`."),
        (TIME + "simulate = 'hl00'\n", "mine.toml, line 7: --simulate hl00 is not a known GPU"),
        (TIME + "keep = ['szie']\n", "mine.toml, line 7: szie is not an option of `time` to keep. Did you mean size?"),
        (TIME + "[run.on_cpu]\nsize = 'smal'\n", "mine.toml, line 8: --size smal is not a size. Did you mean small?"),
        (TIME + "[run.on_cpu]\nskip = 'no'\nsize = 'tiny'\n", "mine.toml, line 8: a skipped run takes no"),
        (TIME + TIME, "mine.toml, line 8: there are two runs called steps: give each run its own name"),
        (
            TIME.replace("steps", "s" * 101),
            "mine.toml, line 3: name becomes part of a file name: use at most 100 characters",
        ),
        (
            TIME.replace("steps", "../steps"),
            "mine.toml, line 3: name '../steps' becomes part of a file name: use letters",
        ),
        (
            TIME.replace("time", "tiem"),
            "mine.toml, line 4: command tiem is not a command that measures. Did you mean t",
        ),
        (
            "[[run]]\nsize = 'tiny'\n",
            "mine.toml, line 1: a run needs a command: time, memory, fit, profile, attention, accum",
        ),
        ("titel = 'x'\n" + TIME, "mine.toml, line 1: titel is not a key of an experiment. Did you mean title?"),
        ("[run]\ncommand = 'time'\n", "mine.toml, line 1: run must be a list of tables: begin each with [[run]]"),
        ("include = 'sizes'\n", "mine.toml, line 1: include takes a list of experiments, not 'sizes'"),
        ("include = [3]\n", "mine.toml, line 1: an include entry names its experiment"),
        (
            "\ninclude = ['szies']\n",
            "mine.toml, line 2: szies is not a built-in experiment or a .toml file. Did you mean sizes?",
        ),
        ("title = 'nothing'\n", "mine.toml has no runs"),
        ("title = \n", "mine.toml is not TOML: Invalid value (at line 1, column 9)"),
        ("x = " + "[" * 10_000, "mine.toml is "),
        (TIME + "batch = " + "9" * 5000 + "\n", "mine.toml is not TOML: Exceeds the limit"),
        (TIME + "batch = 0x" + "f" * 5000 + "\n", "mine.toml, line 7: batch is a number of 20000 bits"),
        ('include = ["./a\\u0000.toml"]\n', "mine.toml, line 1: ./a"),
        (
            "[[run]]\ncommand = 'memory'\nfigure = '../x.png'\n",
            "mine.toml, line 3: figure is written to the experiment's directory",
        ),
        (
            "[[run]]\ncommand = 'memory'\nsimulate = 'h100'\ndevice = 'cuda'\n",
            "mine.toml, line 1: --device names the device to measure on, but --simulate measures nothing: drop one",
        ),
        (
            "[[include]]\nrun = 'sizes'\nszie = 'x'\n",
            "mine.toml, line 3: szie is not an option of any command. Did you",
        ),
        ("[[include]]\nrun = 'sizes'\nsize = 'x'\n", "mine.toml, line 3: --size x is not a size."),
        ("[[include]]\nrun = 'sizes'\nseq = 8\n", "mine.toml, line 3: seq is not an option of any run of sizes"),
    ],
)
def test_a_mistake_is_answered_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text).startswith(message)


def test_a_mistake_that_only_another_machine_would_meet_is_found_here(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 8: --size smal is not a size"):
        planned(tmp_path, TIME + "[run.on_cpu]\nsize = 'smal'\n", devices=GPU)


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"mine\.toml"):
        load(str(path))
    with pytest.raises(UsageError, match="Did you mean quick"):
        load("qiuck")


# --- other experiments


def test_an_experiment_that_includes_itself_is_refused_naming_the_circle(tmp_path: Path) -> None:
    written(tmp_path, "include = ['./b.toml']\n", "a.toml")
    written(tmp_path, TIME + "\n[[include]]\nrun = './c.toml'\n", "b.toml")
    written(tmp_path, "title = 'c'\ninclude = [\n'./a.toml']\n", "c.toml")
    with pytest.raises(UsageError) as refused:
        load(str(tmp_path / "a.toml"))
    assert str(refused.value).endswith("c.toml, line 2: includes itself: a.toml → b.toml → c.toml → a.toml")
    written(tmp_path, "include = ['../" + tmp_path.name + "/self.toml']\n", "self.toml")
    with pytest.raises(UsageError, match=r"self\.toml → self\.toml"):
        load(str(tmp_path / "self.toml"))


def test_links_in_a_circle_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "round.toml").symlink_to(tmp_path / "round.toml")
    assert "round.toml" in refusal(tmp_path, "include = ['./round.toml']\n")


def test_including_the_same_experiment_twice_is_no_circle(tmp_path: Path) -> None:
    written(tmp_path, TIME, "a.toml")
    runs = planned(tmp_path, "include = ['./a.toml', './a.toml']\n")
    assert [run.entry.name for run in runs] == ["a-steps", "a-steps-2"]


def test_experiments_that_multiply_are_given_up(tmp_path: Path) -> None:
    written(tmp_path, TIME, "0.toml")
    for level in range(1, 5):
        written(tmp_path, f"include = {['./' + str(level - 1) + '.toml'] * 6}\n", f"{level}.toml")
    with pytest.raises(UsageError, match="more than 500 runs"):
        plan(load(str(tmp_path / "4.toml")), {}, NO_GPU)


def test_an_inclusion_changes_the_runs_that_have_the_option(tmp_path: Path) -> None:
    written(tmp_path, SCALED, "a.toml")
    steps, peaks, ranges = planned(tmp_path, "[[include]]\nrun = './a.toml'\nsize = 'tiny,small'\nwarmup = 0\n")
    assert isinstance(steps.spec, TimeSpec)
    assert isinstance(peaks.spec, MemorySpec)
    assert (steps.spec.size, steps.spec.warmup) == (("tiny", "small"), (0,))
    assert (peaks.spec.size, peaks.spec.simulate) == (("tiny", "small"), ("h100",))
    assert steps.entry.part == "a"
    assert ranges.entry.here == "left out"


# --- the command line


def test_an_override_holds_for_every_run_that_has_the_option_and_wins_over_everything(tmp_path: Path) -> None:
    written(tmp_path, SCALED, "a.toml")
    text = "[[include]]\nrun = './a.toml'\nsize = 'small'\n" + TIME.replace("steps", "own")
    runs = planned(tmp_path, text, {"size": "medium", "simulate": "t4"})
    assert [run.spec.size for run in runs if isinstance(run.spec, ModelSpec)] == [("medium",)] * 4
    assert [getattr(run.spec, "simulate", None) for run in runs] == [("t4",), ("t4",), (), ("t4",)]


def test_a_run_that_cannot_be_simulated_is_left_out_where_all_are_to_be(tmp_path: Path) -> None:
    text = TIME + '[[run]]\nname = "ranges"\ncommand = "profile"\nwith = "nsys"\n'
    steps, ranges = planned(tmp_path, text, {"simulate": "t4"}, GPU)
    assert (steps.entry.here, ranges.entry.here) == ("simulated", "left out")
    assert "it cannot be simulated: --with" in ranges.entry.why
    assert "--simulate tt4 is not a known GPU" in refusal(tmp_path, text, {"simulate": "tt4"})


def test_what_a_run_keeps_is_not_overridden(tmp_path: Path) -> None:
    steps, peaks, _ = planned(tmp_path, SCALED, {"precision": "bf16"})
    assert isinstance(steps.spec, TimeSpec)
    assert isinstance(peaks.spec, MemorySpec)
    assert steps.spec.precision == ("fp32", "bf16")
    assert peaks.spec.precision == ("bf16",)


def test_an_override_that_no_run_takes_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, TIME, {"seq": "8"}) == "--seq is not an option of any run of mine"
    kept = TIME + 'keep = ["ctx"]\n'
    assert refusal(tmp_path, kept, {"ctx": "8"}) == "--ctx is fixed by steps, and no other run of mine has it"


def test_an_override_with_a_wrong_value_names_the_run_that_cannot_take_it(tmp_path: Path) -> None:
    said = refusal(tmp_path, TIME, {"size": "smal"})
    assert said.startswith("--size smal is not a size. Did you mean small?")
    assert said.endswith("(for steps of `time`)")


# --- machines


def test_without_a_gpu_a_run_is_simulated_changed_or_left_out_and_says_why(tmp_path: Path) -> None:
    steps, peaks, ranges = planned(tmp_path, SCALED)
    assert (steps.entry.here, steps.entry.why) == ("changed", "no GPU on this machine: --size tiny instead of large")
    assert (peaks.entry.here, peaks.entry.why) == ("simulated", "no GPU on this machine: simulated for h100")
    assert (ranges.entry.here, ranges.entry.why) == ("left out", "no GPU on this machine: nsys sees kernels of GPUs")
    assert isinstance(steps.spec, TimeSpec)
    assert (steps.spec.size, steps.spec.ctx) == (("tiny",), (256,))


def test_with_a_gpu_a_run_is_as_it_is_written(tmp_path: Path) -> None:
    assert [run.entry.here for run in planned(tmp_path, SCALED, devices=GPU)] == ["as written"] * 3


def test_who_asks_for_the_cpu_beside_a_gpu_gets_what_there_is_for_a_cpu(tmp_path: Path) -> None:
    steps, peaks, _ = planned(tmp_path, SCALED, {"device": "cpu"}, devices=GPU)
    assert (steps.entry.here, steps.entry.why) == ("changed", "on the CPU: --size tiny instead of large")
    assert peaks.entry.here == "simulated"
    assert "device" not in peaks.entry.options


def test_what_is_overridden_is_not_said_to_be_changed_for_the_machine(tmp_path: Path) -> None:
    steps, *_ = planned(tmp_path, SCALED, {"size": "small"})
    assert (steps.entry.here, steps.entry.why) == ("as written", "")


def test_what_is_always_simulated_says_so_with_a_gpu_too(tmp_path: Path) -> None:
    (run,) = planned(tmp_path, "[[run]]\ncommand = 'attention'\nsimulate = 'h100'\n", devices=GPU)
    assert (run.entry.here, run.entry.why) == ("simulated", "simulated for h100")


# --- what ships


@pytest.mark.parametrize("devices", [GPU, NO_GPU, ("mps", "cpu"), ("cuda",)])
@pytest.mark.parametrize("name", names())
def test_every_experiment_that_ships_can_be_planned_anywhere(name: str, devices: tuple[str, ...]) -> None:
    experiment = load(name)
    runs = plan(experiment, {}, devices)  # type: ignore[arg-type]
    assert experiment.title != experiment.name, "has a title"
    assert experiment.question.endswith("?")
    for run in runs:
        assert run.entry.title != run.entry.name
        assert run.entry.question.endswith("?")
        for cell in run.spec.cells():
            assert run.entry.here == "left out" or cell.problem(None if devices == GPU else "cpu") is None
            assert cell.device in ("auto", *devices) or devices == ("cuda",)


@pytest.mark.parametrize("name", names())
def test_every_experiment_that_ships_says_what_it_reproduces(name: str) -> None:
    text = (package.profiles("runs") / f"{name}.toml").read_text()
    heading = text.partition("\ntitle")[0]
    assert all(line.startswith("#") for line in heading.splitlines())
    assert name in ("quick", "systems-report") or "# Reproduces: " in heading


def test_the_whole_report_has_every_other_experiment_and_the_quick_one_too() -> None:
    parts = {load(name).title for name in names() if name not in ("quick", "systems-report")}
    for whole in ("systems-report", "quick"):
        assert {run.entry.part for run in plan(load(whole), {}, GPU)} == parts


def test_the_whole_report_can_be_scaled_down_from_the_command_line() -> None:
    for run in plan(load("systems-report"), {"size": "small", "ctx": "128", "batch": "1"}, GPU):
        if isinstance(run.spec, ModelSpec):
            assert (run.spec.size, run.spec.ctx, run.spec.batch) == (("small",), (128,), (1,))


def test_the_whole_report_can_be_simulated_but_for_what_only_a_compiler_knows() -> None:
    runs = {run.entry.name: run.spec for run in plan(load("systems-report"), {"simulate": "a100-80gb"}, ("cpu",))}
    of_attention = {name: spec.simulate for name, spec in runs.items() if isinstance(spec, AttentionSpec)}
    assert of_attention.pop("compiled-attention") == ()
    assert set(of_attention.values()) == {("a100-80gb",)}


def test_experiments_are_found_in_an_installed_package_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel holds them inside the package."""
    inside = tmp_path / "sysbench" / "profiles" / "runs"
    inside.mkdir(parents=True)
    (inside / "installed.toml").write_text(TIME)
    monkeypatch.setattr(package, "profiles", lambda kind: inside)
    assert names() == ["installed"]
    assert load("installed").path == inside / "installed.toml"


# --- code


CODE = {"app-dir": "elsewhere", "on": "ray://elsewhere:10001", "on-arg": "slurm_setup=evil"}
"""A value that runs code, for options to which it is not `evil.py:Model` or `evil:Model`."""

NAMING_CODE = [
    (kind, name, CODE.get(name, "evil:Model"))
    for kind in runnable()
    for name, key in keys_of(kind).items()
    if option_of(key.info).names_code
]

PLACES = {
    "a run": ("there/mine.toml", "[[run]]\ncommand = '{kind}'\n{name} = '{value}'\n"),
    "a list": ("there/mine.toml", "[[run]]\ncommand = '{kind}'\n{name} = ['{value}']\n"),
    **{
        f"on_{device}": (
            "there/mine.toml",
            f"[[run]]\ncommand = '{{kind}}'\n[run.on_{device}]\n{{name}} = '{{value}}'\n",
        )
        for device in ("cuda", "mps", "cpu")
    },
    "an option of an include": ("there/mine.toml", "[[include]]\nrun = 'plain.toml'\n{name} = '{value}'\n"),
    "an included file": ("there/included.toml", "[[run]]\ncommand = '{kind}'\n{name} = '{value}'\n"),
    "a link to a file": ("there/linked.toml", "[[run]]\ncommand = '{kind}'\n{name} = '{value}'\n"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "name", "value"), NAMING_CODE)
def test_code_that_a_file_from_elsewhere_names_is_refused_wherever_it_stands(
    kind: str, name: str, value: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    written(there, f"[[run]]\ncommand = '{kind}'\n", "plain.toml")
    written(here, "include = ['../there/included.toml']\n", "includes.toml")
    (here / "link.toml").symlink_to("../there/linked.toml")
    file, text = PLACES[place]
    (tmp_path / file).write_text(text.format(kind=kind, name=name, value=value))
    asked = {"an included file": "includes.toml", "a link to a file": "link.toml"}.get(place, "../there/mine.toml")
    with pytest.raises(UsageError, match=r"line \d+: .* names code \(.*add --allow-code") as refused:
        refuse_code(load(asked))
    assert f"{name} names code ({value})" in str(refused.value)


def test_a_file_in_the_current_directory_may_name_code_and_one_from_elsewhere_may_choose_what_is_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for kind, name, value in NAMING_CODE:
        refuse_code(load(written(tmp_path, f"[[run]]\ncommand = '{kind}'\n{name} = '{value}'\n")))
        if built_in := option_of(keys_of(kind)[name].info).values:
            refuse_code(load(written(tmp_path / "there", f"[[run]]\ncommand = '{kind}'\n{name} = {[*built_in]}\n")))
    for name in names():
        refuse_code(load(name))


NO_CODE = {"columns", "tables", "kernel", "range", "step-pattern", "allocator"}
"""Options of any text: names and patterns of names, and settings of PyTorch's allocator, `name:value`."""


def test_every_option_that_takes_a_reference_to_code_is_declared_as_such() -> None:
    accepted = set()
    for kind in runnable():
        for name, key in keys_of(kind).items():
            for value in ("evil:Model", "evil.py:Model", "ray://evil:1"):
                if key.is_switch or key.is_file or option_of(key.info).names_code:
                    continue
                try:
                    validated(key.model, {key.field: value})
                except UsageError:
                    continue
                accepted.add(name)
    assert accepted <= NO_CODE
