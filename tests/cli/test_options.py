"""The surface of the command line: which options there are, and what each mistake is answered with."""

import fcntl
import inspect
import os
import pty
import struct
import subprocess
import termios

import pytest
from pydantic import BaseModel

from sysbench.command import commands
from sysbench.commands.time.spec import TimeOptions, TimeSpec
from sysbench.package import VERSION
from sysbench.spec.command_options import option_name, options_in_order
from tests.cli import running
from tests.cli.running import answered, sysbench
from tests.processes import HANG_S


def flags(model: type[BaseModel]) -> list[str]:
    return [
        flag
        for name, _, option in options_in_order(model)
        for flag in (option_name(model, name), *(flag for flag, _ in option.shorthands))
    ]


def listed(shown: str) -> set[str]:
    """The options that a help screen lists, by their first flag."""
    return {line.split()[1].partition(",")[0] for line in shown.splitlines() if line.startswith("│ -")}


@pytest.mark.parametrize("command", ["time", "memory", "profile", "attention", "accum", "calibrate", "run"])
def test_help_shows_what_people_use_and_says_where_the_rest_is(command: str) -> None:
    short, whole = (answered(command, "--help", *more, COLUMNS="200") for more in ((), ("all",)))
    assert (short.code, whole.code) == (0, 0)
    assert listed(short.out) < listed(whole.out)
    assert 6 <= len(listed(short.out)) <= 24
    assert {"--json", "--plan", "--resume"} <= listed(short.out)
    missing = len(listed(whole.out)) - len(listed(short.out))
    assert f"{missing} more options: sysbench {command} --help all" in short.out
    assert "more options" not in whole.out
    assert answered(command, "-h", "all", COLUMNS="200").out == whole.out


def test_help_of_a_command_with_few_options_shows_them_all() -> None:
    for command in ("history", "report", "compare", "gpus", "models", "doctor"):
        short, whole = (answered(command, "--help", *more) for more in ((), ("all",)))
        assert short.out == whole.out


def test_an_option_that_help_leaves_out_works_and_is_suggested() -> None:
    assert answered("time", "--bucket-mb", "5", "--ranks", "2", "--plan").code == 0
    assert answered("time", "--buckt-mb", "5").complaint.endswith("Did you mean --bucket-mb?")
    assert answered("time", "--zzzzzz").complaint.endswith("sysbench time --help all lists all")


def test_help_all_shows_every_option_and_every_default() -> None:
    shown = answered("time", "--help", "all", COLUMNS="200")
    assert shown.code == 0
    for flag in (*flags(TimeSpec), *flags(TimeOptions)):
        assert f" {flag} " in shown.out.replace(",--", " --"), flag
    assert "Default: 128,256,512,1024." in shown.out


def test_the_list_of_commands_says_what_each_commands_own_help_says() -> None:
    for command in commands().values():
        assert (inspect.getdoc(command.function()) or "").splitlines()[0] == command.short_help


def test_nothing_but_the_name_shows_formatted_help_with_three_examples() -> None:
    shown = answered()
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert shown.out == answered("--help").out
    examples = [line.split("  ")[0] for line in map(str.strip, lines[lines.index("  Examples:") + 1 :])]
    assert len(examples) == 3
    known = commands()
    assert all(example.split()[0] == "sysbench" and example.split()[1] in known for example in examples)


@pytest.mark.parametrize(
    ("command", "theirs", "ours"),
    [
        (command, theirs, ours)
        for command in ("time", "memory", "profile")
        for theirs, ours in (
            ("--batch-size 2", "--batch 2"),
            ("--seq-len 32", "--ctx 32"),
            ("--dtype bf16", "--precision bf16"),
            ("--compile-mode eager", "--execution eager"),
            ("--hidden-size 128", "--d-model 128"),
            ("--num-layers 3", "--layers 3"),
            ("--num-heads 2", "--heads 2"),
        )
    ]
    + [
        ("attention", "--batch-size 2", "--batch 2"),
        ("attention", "--seq-len 32", "--seq 32"),
        ("attention", "--dtype bf16", "--precision bf16"),
        ("attention", "--num-heads 2", "--heads 2"),
        ("accum", "--batch-size 2", "--batch 2"),
        ("accum", "--seq-len 8", "--ctx 8"),
    ],
)
def test_options_are_also_known_by_the_names_of_other_libraries(command: str, theirs: str, ours: str) -> None:
    small = ("--size", "tiny") if command in ("time", "memory", "profile") else ()
    shown = answered(command, *small, *theirs.split(), "--plan")
    assert (shown.code, shown.out) == (0, answered(command, *small, *ours.split(), "--plan").out)


def test_the_dtype_of_accum_is_its_own_option() -> None:
    assert "fp8-e4m3" in answered("accum", "--dtype", "fp8-e4m3", "--plan").out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["time", "--size", "smal"],
            "sysbench time: --size smal is not a size. Did you mean small? "
            "(tiny, small, medium, large, xl, 2.7b, 2026/xl, 10b)",
        ),
        (
            ["time", "--heads", "5"],
            "sysbench time: --heads 5 does not divide --d-model 768. Nearest that does: 4",
        ),
        (["time", "--steps", "0"], "sysbench time: --steps 0 is out of range: it must be 1 or more. Nearest: 1"),
        (["time", "--steps", "-3"], "sysbench time: --steps -3 is out of range: it must be 1 or more. Nearest: 1"),
        (
            ["time", "--ctx", "128-1024"],
            "sysbench time: --ctx 128-1024 has no stride: write 128-1024*2 (doubling) or 128-1024+896 (adding)",
        ),
        (
            ["time", "--precision", "fp23"],
            "sysbench time: --precision fp23 is not a precision. Did you mean fp32? (fp32, tf32, bf16, fp16, ",
        ),
        (
            ["time", "--device", "gpu"],
            "sysbench time: --device gpu is not a device. Did you mean cuda? (auto, cpu, mps, cuda, cuda:0, cuda:1, …)",
        ),
        (
            ["time", "--precision", "fp16", "--device", "cpu"],
            "sysbench time: --precision fp16 is not supported on the CPU, which would emulate it. "
            "Use bf16 there, or --device cuda",
        ),
        (["time", "--until", "200%"], "sysbench time: --until 2.0 is out of range: it must be less than 1"),
        (["time", "--until", "soon"], "sysbench time: --until soon is not a share: write 1% or 0.01"),
        (["time", "--sync", "pase"], "sysbench time: --sync pase is not allowed. Did you mean phase? (phase, step)"),
        (["attention", "--repeats", "x"], "sysbench attention: --repeats x is not a whole number"),
        (["time", "--seed", "-1"], "sysbench time: --seed -1 is out of range: it must be 0 or more. Nearest: 0"),
        (["time", "--timeout", "0"], "sysbench time: --timeout 0 is out of range: it must be more than 0"),
        (["time", "--bathc", "2"], "sysbench time: No such option: --bathc. Did you mean --batch?"),
        (
            ["time", "--tables", "sumary"],
            "sysbench time: --tables sumary is not a table. Did you mean summary?",
        ),
        (["time", "--from", "none.jsonl"], "sysbench time: cannot read none.jsonl: no such file"),
        (
            ["time", "--from", "a.jsonl", "--ctx", "1"],
            "sysbench time: --from shows a finished run; --ctx would have no effect",
        ),
        (
            ["time", "--simulate", "24GiB"],
            "sysbench time: --simulate 24GiB: its rates are unknown, so times cannot be predicted; "
            "sysbench memory --simulate 24GiB shows whether a step fits",
        ),
        (
            ["time", "--plan", "--simulate", "a100-80"],
            "sysbench time: --simulate a100-80 is not a known GPU or a memory size such as 24GiB.",
        ),
        (["time", "--json", "--plan"], "sysbench time: --json needs a value, but the option --plan follows it"),
        (
            ["time", "--ctx", "128", "256"],
            "sysbench time: unexpected: 256. Commas separate several values of one option: --ctx 128,256",
        ),
        (["time", "small"], "sysbench time: unexpected: small. Did you mean --size small?"),
        (["profile", "t.json.gz"], "sysbench profile: unexpected: t.json.gz. Did you mean --from t.json.gz?"),
        (
            ["memory", "tiny,small", "128"],
            "sysbench memory: unexpected: tiny,small 128. Did you mean --size tiny,small?",
        ),
        (["profile", "h100"], "sysbench profile: unexpected: h100. Did you mean --simulate h100?"),
        (["attention", "naive"], "sysbench attention: unexpected: naive. Did you mean --impl naive?"),
        *(
            (
                [command, "--simulate", "h100", "--threads", "2"],
                f"sysbench {command}: --threads sets how many threads compute on a CPU, but --simulate predicts a GPU. "
                "Drop one of them",
            )
            for command in ("time", "memory", "profile", "attention")
        ),
        (["time", "--until", "5"], "sysbench time: --until 5 is 5 times the whole, or 500%: did you mean 5%?"),
        (["time", "--gpu", "h100"], "sysbench time: No such option: --gpu. Did you mean --simulate?"),
        (["time", "--n-layer", "2"], "sysbench time: No such option: --n-layer. Did you mean --layers?"),
        (["run", "quick", "--seq-len", "64"], "sysbench run: No such option: --seq-len. Did you mean --ctx?"),
        (["time", "--head-dim", "64"], "sysbench time: No such option: --head-dim."),
        (["memory", "--context-length", "8"], "sysbench memory: No such option: --context-length. Did you mean --ctx?"),
        (["memory", "--model_size", "xl"], "sysbench memory: No such option: --model_size. Did you mean --size?"),
        (["attention", "--head-dim", "64"], "sysbench attention: No such option: --head-dim. Did you mean --dim?"),
        (["attention", "--ctx", "64"], "sysbench attention: No such option: --ctx. Did you mean --seq?"),
        (["fit", "--gpu", "h100"], "sysbench fit: No such option: --gpu. Did you mean --on?"),
        (["fit", "--simulate", "h100"], "sysbench fit: No such option: --simulate. Did you mean --on?"),
        (["calibrate", "--gpu", "0"], "sysbench calibrate: No such option: --gpu. Did you mean --device?"),
        (["report", "--html", "x"], "sysbench report: No such option: --html. Did you mean --output?"),
        (
            ["time", "--gradient-checkpointng"],
            "sysbench time: No such option: --gradient-checkpointng. Did you mean --",
        ),
        (["time", "--opti", "sgd"], "sysbench time: No such option: --opti. Did you mean --optimizer?"),
        (
            ["time", "--on", "h100"],
            "sysbench time: --on h100 is not a place to run cells. (ray, slurm, slurm:local, ray:",
        ),
        (["tiem"], "sysbench: tiem is not a command. Did you mean time? (time, memory, "),
        (["runs"], "sysbench: runs is not a command. Did you mean history? (time, "),
        (["xyzzy"], "sysbench: xyzzy is not a command. (time, memory, "),
    ],
)
def test_a_mistake_is_answered_in_one_line_that_names_it(arguments: list[str], complaint: str) -> None:
    ran = answered(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.complaint.startswith(complaint)


@pytest.mark.parametrize("words", [("--version",), ("-V",), ("version",)])
def test_the_version_has_the_spellings_that_people_type(words: tuple[str, ...]) -> None:
    assert (answered(*words).code, answered(*words).out) == (0, f"sysbench {VERSION}\n")


def test_help_comes_before_or_after_the_command() -> None:
    assert answered("help").out == answered("--help").out == answered().out
    assert answered("help", "gpus").out == answered("gpus", "--help").out


def test_a_name_is_recognised_whatever_its_case() -> None:
    words = ("time", "--plan", "--ctx", "128")
    typed = answered(*words, "--size", "2.7B,Tiny", "--precision", "BF16")
    assert (typed.code, typed.out) == (0, answered(*words, "--size", "2.7b,tiny", "--precision", "bf16").out)


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (("time", "--steps", "20", "--until", "1%", "--sync", "step"), "--steps, --until"),
        (("time", "--warmup", "2", "--steps", "9"), "--warmup, --steps"),
        (("profile", "--steps", "2"), "--steps"),
        (("attention", "--repeats", "2", "--cold"), "--repeats, --cold"),
    ],
)
def test_an_option_without_effect_on_a_prediction_is_named(words: tuple[str, ...], unused: str) -> None:
    ran = answered(*words, "--simulate", "h100", "--plan")
    assert (ran.code, ran.complaint) == (0, f"no effect with --simulate, which measures nothing: {unused}")
    assert answered(*words, "--plan").err == ""
    assert answered(words[0], "--simulate", "h100", "--plan").err == ""


@pytest.mark.parametrize("name", commands())
def test_a_mistake_ends_every_command_with_2_and_one_line(name: str) -> None:
    # Those that measure, and those that do not, are started alike: a process of either kind is enough.
    ran = (sysbench if name in ("time", "report") else answered)(name, "--nonsense")
    assert (ran.code, ran.out) == (2, "")
    assert ran.complaint.startswith(f"sysbench {name}: No such option: --nonsense")


def test_shorthands_add_to_the_axis_they_are_short_for() -> None:
    shown = answered("time", "--plan", "--size", "tiny", "--ctx", "128", "--precision", "fp32", "--bf16", COLUMNS="100")
    assert shown.code == 0
    assert "fp32" in shown.out
    assert "bf16" in shown.out


def test_on_a_terminal_a_mistake_breaks_between_words() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    done = subprocess.run(
        running.command("runs"), stdin=theirs, stdout=theirs, stderr=theirs, timeout=HANG_S, check=False
    )
    os.close(theirs)
    lines = os.read(ours, 10_000).decode().replace("\r", "").splitlines()
    os.close(ours)
    assert done.returncode == 2
    assert max(map(len, lines)) <= 60
    assert " ".join(lines) == answered("runs").complaint
