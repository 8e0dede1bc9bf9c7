"""Runs that are killed at random moments, and files that are damaged at random places.

    python -m tests.bench.faults --kills 1000 --inputs 100000 --seed 1

A kill ends the engine, its worker, both, the group or one of the worker's children in the middle of a run or of its
continuation, with any of the signals that end a program; a third of them come at the very moment at which a cell is
printed as finished. `time`, `run` and `fit` take turns. No cell that was finished may be missing from the log, no
output may be a traceback, no process may outlive the engine, and a search that loses a child ends with the answer of
an undisturbed one. The worker of `time` and `run` is scripted, so that it starts in a tenth of a second; everything
else is the program itself. A damaged file (log, record, experiment, trace, snapshot) is either read or refused in one
line; nothing in it is executed, and none takes longer than `LIMIT_S`.

Each kill and each input has a number, and its randomness comes from that number and the seed. `--state FILE` keeps
the counts, so that an interrupted session continues where it stopped.
"""

from __future__ import annotations

import argparse
import atexit
import faulthandler
import gzip
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType

import psutil

from sysbench import api
from sysbench.commands.run import experiment_file
from sysbench.commands.run.experiment import plan
from sysbench.errors import SysbenchError
from sysbench.log import journal
from sysbench.log.events import CellFinished
from tests.cli.running import answered

FIXTURES = Path(__file__).parents[1] / "fixtures"
ROOT = Path(__file__).parents[2]

LIMIT_S = 10.0
"""Longer than this no small file may take."""

CELLS = ",".join(str(16 * number) for number in range(1, 13))
MODEL = ("--d-model", "32", "--layers", "1", "--heads", "2")
TIME = ("time", *MODEL, "--mode", "forward", "--device", "cpu", "--ctx", CELLS)
FIT = (
    *("fit", "--size", "tiny", "--ctx", "128", "--batch", "2", "--on", "24GiB", "--budget", "180MiB"),
    *("--keep", "precision,lora,optimizer,ranks,batch,cross-entropy"),
)
"""Nothing fits, so that the search tries everything that it may."""
EXPERIMENT = "".join(
    f"[[run]]\nname = '{name}'\ncommand = 'time'\nd-model = 32\nlayers = 1\nheads = 2\nmode = 'forward'\n"
    f"device = 'cpu'\nctx = '{cells}'\n"
    for name, cells in (("one", "16-64+16"), ("other", "80-160+16"))
)
KILLED = ("time", "run", "fit")

FATAL = (signal.SIGKILL, signal.SIGSEGV)
SIGNALS = (*FATAL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


# --- kills


def kill(kind: str, directory: Path, chance: random.Random, hit: Counter[str]) -> str | None:
    """Start or continue a run of `kind` in `directory`, and kill it, which `hit` counts; returns what went wrong."""
    words = started_or_continued(kind, directory)
    before = logs_in(directory)
    said = directory / "stderr.txt"
    said.unlink(missing_ok=True)
    engine = os.fork()
    if engine == 0:
        run_in_this_process([*words, "--no-live"], said, is_scripted=kind != "fit")
    number = chance.choice(SIGNALS)
    target = chance.choice(["engine", "worker", "both", "group", *(["child", "children"] * 3 if kind == "fit" else [])])
    wanted = chance.randint(1, 9) if kind != "fit" and chance.random() < 1 / 3 else None
    await_moment(engine, said, wanted, chance.uniform(0, 5 if kind == "fit" else 0.8), target)
    victims = the_processes(engine, target)
    below = the_processes(engine, "below")
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, number)
            hit[f"{kind} {target}"] += 1
    status = ended(engine)
    text = said.read_text(errors="replace")
    was_killed = number in FATAL and target in ("engine", "both", "group")
    problem = problem_of_process(status, text, {0, 1, 130, *([-number] if was_killed else [])}) or problem_of_logs(
        before, logs_in(directory), text
    )
    if problem is None and not all_gone(below, 5):
        problem = "a process outlives the engine"
    if problem is None and victims and target in ("child", "children") and tried(directory) != tried(undisturbed()):
        problem = f"{tried(directory)} combinations were tried, {tried(undisturbed())} without a kill"
    return problem and f"{kind}: {number.name} to {target}: {problem}"


def problem_of_process(status: int | None, text: str, allowed: set[int]) -> str | None:
    if status is None:
        return "it does not end"
    if status not in allowed:
        return f"exit status {status}: {text[-300:]}"
    if "Traceback" in text or "this is a bug" in text:
        return text[-500:]
    return None


def problem_of_logs(before: dict[Path, bytes], after: dict[Path, bytes], text: str) -> str | None:
    if not all(after.get(log, b"").startswith(lines) for log, lines in before.items()):
        return "lines of the log are lost"
    known = sum(lines.count(b'"event":"cell_finished"') for lines in before.values())
    shown = len(re.findall(r"^\d+/\d+ ", text, re.MULTILINE))
    if sum(map(cells_finished, after)) - known < shown:
        return f"{shown} cells were printed as finished, the log has fewer"
    return None


def started_or_continued(kind: str, directory: Path) -> list[str]:
    """The command line that continues what is in the directory, or begins."""
    if kind == "run":
        experiment = next(directory.glob("*/manifest.json"), None)
        if experiment is not None:
            return ["run", "--resume", str(experiment.parent)]
        (directory / "killed.toml").write_text(EXPERIMENT)
        return ["run", str(directory / "killed.toml"), "--out", str(directory)]
    for log, lines in logs_in(directory).items():
        if lines:
            return [kind, "--resume", str(log)]
        log.unlink()  # killed before its first line was whole: there is nothing to continue
    return [*(FIT if kind == "fit" else TIME), "--out", str(directory)]


def logs_in(directory: Path) -> dict[Path, bytes]:
    """The whole lines of every log."""
    return {log: whole_lines(log) for log in sorted(directory.rglob("*.jsonl"))}


def cells_finished(log: Path) -> int:
    return sum(isinstance(event, CellFinished) for event in journal.read(log)) if whole_lines(log) else 0


def tried(directory: Path) -> int | None:
    """How many combinations the last search in the directory tried; None without an answer."""
    records = sorted(directory.glob("*-fit.json"))
    cells = api.load(records[-1]).record.cells if records else []
    return len(cells[0].trials) if cells and cells[0].outcome == "ok" else None


@cache
def undisturbed() -> Path:
    """A directory with a search that nobody kills."""
    directory = Path(tempfile.mkdtemp(prefix="sysbench-faults-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    engine = os.fork()
    if engine == 0:
        run_in_this_process([*FIT, "--out", str(directory), "--no-live"], directory / "stderr.txt", is_scripted=False)
    assert ended(engine) == 0, (directory / "stderr.txt").read_text()
    return directory


def run_in_this_process(words: list[str], said: Path, *, is_scripted: bool) -> None:
    """Be the program, in a forked process that has imported everything; a scripted worker has no torch."""
    from sysbench import __main__
    from sysbench.engine import process, session, supervisor
    from tests.engine.fakes import ScriptedLauncher

    code = 1
    try:
        faulthandler.disable()  # pytest's would print what a SEGV looks like
        os.setpgid(0, 0)
        launcher = ScriptedLauncher()
        for module in (process, session, supervisor) if is_scripted else ():
            setattr(module, "Launcher", lambda: launcher)  # noqa: B010
        sys.argv = ["sysbench", *words]
        for number in SIGNALS[2:]:
            signal.signal(number, signal.default_int_handler)
        descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
        __main__.main()
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:
        code = 130  # before the first line of the program
    except Exception:  # noqa: BLE001
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def whole_lines(log: Path | None) -> bytes:
    content = log.read_bytes() if log is not None and log.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def await_moment(engine: int, said: Path, shown: int | None, after_s: float, target: str) -> None:
    """Wait until there is a target, then so long, or until so many cells have been printed as finished, or the end."""
    while not the_processes(engine, target) and not gone(engine):
        time.sleep(0.005)
    while not said.exists() and not gone(engine):
        time.sleep(0.001)
    deadline_s = time.monotonic() + (after_s if shown is None else 5)
    while time.monotonic() < deadline_s and not gone(engine):
        if shown is not None and said.exists() and said.read_bytes().count(b"\n") > shown:
            return
        time.sleep(0.002)


def the_processes(engine: int, target: str) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(engine)
        workers = [child for child in parent.children() if has_begun(child, parent.cmdline())]
        children = [child.pid for worker in workers for child in worker.children(recursive=True)]
        pids = [worker.pid for worker in workers]
        return {
            "engine": [engine], "worker": pids, "both": [engine, *pids], "group": [-engine], "child": children[-1:],
            "children": children, "below": [*pids, *children],
        }[target]  # fmt: skip
    return [engine]


def has_begun(child: psutil.Process, parents_words: list[str]) -> bool:
    """Whether a child runs its own program: before that it shares its parent's memory, and a core dump ends both."""
    with suppress(psutil.NoSuchProcess):  # one that has just ended, too
        return bool(child.cmdline() != parents_words)
    return False


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    return True


def all_gone(pids: list[int], patience_s: float) -> bool:
    deadline_s = time.monotonic() + patience_s
    while not all(map(gone, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return all(map(gone, pids))


def ended(pid: int) -> int | None:
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def kills(first: int, count: int, seed: int, book: Book, kinds: Sequence[str] = KILLED) -> None:
    base = Path(tempfile.mkdtemp(prefix="sysbench-faults-"))
    directories: dict[str, Path] = {}
    try:
        for number in range(first, count):
            chance = random.Random(f"{seed}:kill:{number}")
            kind = kinds[number % len(kinds)]
            if kind not in directories or chance.random() < (
                0.7 if kind == "fit" else 0.25
            ):  # else the run before is continued
                shutil.rmtree(directories.get(kind, base / "none"), ignore_errors=True)
                directories[kind] = base / f"{kind}-{number}"
                directories[kind].mkdir()
            book.note("kills", number, kill(kind, directories[kind], chance, book.hit))
    finally:
        shutil.rmtree(base, ignore_errors=True)


# --- inputs


VALUES = [
    *(b"NaN", b"Infinity", b"-1", b"0", b"1e400", b"0.5", b"1e18", b"1180591620717411303424"),
    *(b"9" * 309, b'"../../../elsewhere"', b'"evil.py:Model"', b'"\\u202e\\u009b"'),
    *(b"null", b"true", b'"x"', b"[]", b"{}", b'"\\u001b[31m"', b'"\\ud800"'),
]
TOKEN = re.compile(rb'(?<=[:,\[ ])(?:-?\d+(?:\.\d+)?(?:e-?\d+)?|null|true|false|"[^"\\]{0,40}")(?=[,\]}\n])')
PAYLOAD = b"cos\nsystem\n(S'touch %s'\ntR."


def damaged(content: bytes, chance: random.Random, canary: Path) -> bytes:
    """The content, with one to three changes."""
    for _ in range(chance.randint(1, 3)):
        how = chance.randrange(8)
        at = chance.randrange(len(content) + 1)
        length = int(2 ** chance.uniform(0, 10))
        if how <= 3 and (tokens := list(TOKEN.finditer(content))):
            token = chance.choice(tokens)
            content = content[: token.start()] + chance.choice(VALUES) + content[token.end() :]
        elif how == 4:
            content = content[:at] + content[at + length :]
        elif how == 5:
            content = content[:at] + content[at : at + length] + content[at:]
        elif how == 6:
            content = content[:at] + chance.choice([chance.randbytes(3), PAYLOAD % bytes(canary)]) + content[at:]
        else:
            content = content[:at] if chance.random() < 0.3 else content[:at] + chance.randbytes(1) + content[at + 1 :]
    return content


def shown(path: Path) -> object:
    """What the command line says of a log or record; raises for what is neither an answer nor one line."""
    kind = path.name.partition("-")[0]
    ran = answered(kind, "--from", str(path))
    if "defect" in ran.err or ran.code not in (0, 1, 2) or (ran.code == 2 and not ran.complaint.isprintable()):
        raise AssertionError(ran.err)
    return None


def readers() -> list[tuple[str, Path, Callable[[Path], object]]]:
    """Kind of input, a whole file of it, and who reads it."""
    runs = FIXTURES / "runs"
    saved = [path for path in sorted(runs.glob("*-*.json*")) if path.suffix != ".gz" and path.stat().st_size < 45_000]
    found: list[tuple[str, Path, Callable[[Path], object]]] = []
    for path in saved:
        found += [("log" if path.suffix == ".jsonl" else "record", path, api.load)] * 4
        found.append(("shown", path, shown))
    found += [
        ("experiment", path, lambda path: plan(experiment_file.load(str(path)), {}, ("cpu",)))
        for path in (ROOT / "profiles/runs").glob("*.toml")
    ]
    found += [("snapshot", path, api.read_snapshot) for path in (FIXTURES / "snapshots").glob("hard-*.gz")] * 4
    found += [("trace", runs / "trace-cpu.json.gz", api.read_trace)] * 2
    found += [("trace", runs / "trace-nsys.sqlite", api.read_trace)] * 2
    return found


def read(kind: str, path: Path, reader: Callable[[Path], object]) -> str | None:
    """Read one damaged file; returns what went wrong, if anything did."""
    try:
        with limited(LIMIT_S):
            reader(path)
    except SysbenchError as error:
        if error.exit_code != 2:
            return f"{kind}: exit code {error.exit_code}: {error}"
    except TooLongError:
        return f"{kind}: longer than {LIMIT_S:.0f} s"
    except Exception as error:  # noqa: BLE001
        return f"{kind}: {type(error).__name__}: {str(error)[:200]} ({traceback.extract_tb(error.__traceback__)[-1]})"
    return None


class TooLongError(Exception):
    """A file takes longer than it may."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    others = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)
        signal.signal(signal.SIGALRM, before)


def inputs(first: int, count: int, seed: int, book: Book) -> None:
    known = readers()
    contents = {path: path.read_bytes() for _, path, _ in known}
    with tempfile.TemporaryDirectory(prefix="sysbench-faults-") as directory:
        canary = Path(directory, "canary")
        for number in range(first, count):
            chance = random.Random(f"{seed}:input:{number}")
            kind, original, reader = chance.choice(known)
            packed = original.suffix == ".gz"
            plain = gzip.decompress(contents[original]) if packed else contents[original]
            path = Path(directory, original.name.removesuffix(".gz"))
            path.write_bytes(damaged(plain, chance, canary))
            problem = read(kind, path, reader)
            if canary.exists():
                problem = f"{kind}: something in it was executed"
                canary.unlink()
            book.note("inputs", number, f"{original.name}: {problem}" if problem else None)
            path.unlink()


# --- the counts


class Book:
    """What was tried and what went wrong, kept in a file where one is given."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.done = {"kills": 0, "inputs": 0}
        self.problems: list[str] = []
        self.hit: Counter[str] = Counter()
        """Processes that were alive when they were killed."""
        if path is not None and path.exists():
            kept = json.loads(path.read_text())
            self.done, self.problems, self.hit = kept["done"], kept["problems"], Counter(kept["hit"])

    def note(self, what: str, number: int, problem: str | None) -> None:
        self.done[what] = number + 1
        if problem is not None:
            self.problems.append(f"{what} {number}: {problem}")
        if problem is not None or number % 50 == 49:
            self.keep()

    def keep(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps({"done": self.done, "problems": self.problems, "hit": self.hit}, indent=1))


def faults(kill_count: int, input_count: int, seed: int, book: Book) -> None:
    """Everything that `book` does not have yet."""
    try:
        inputs(book.done["inputs"], input_count, seed, book)
        kills(book.done["kills"], kill_count, seed, book)
    finally:
        book.keep()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--inputs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    book = Book(options.state)
    began_s = time.monotonic()
    faults(options.kills, options.inputs, options.seed, book)
    for problem in book.problems:
        print(problem)
    if book.hit:
        print("killed:", ", ".join(f"{count} × {name}" for name, count in sorted(book.hit.items())))
    places = Counter(problem.partition(": ")[2].split(":")[0] for problem in book.problems)
    print(f"{book.done['kills']} kills, {book.done['inputs']} inputs, {len(book.problems)} problems {dict(places)}, "
          f"{time.monotonic() - began_s:.0f} s")  # fmt: skip
    sys.exit(1 if book.problems else 0)


if __name__ == "__main__":
    main()
