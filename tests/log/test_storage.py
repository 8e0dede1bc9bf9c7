"""A file is written whole or not at all, and where it cannot be written one line says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from sysbench.errors import OutputError
from sysbench.log.storage import ScratchDirectory, refuse_unwritable, write_atomically
from tests.unprivileged import permissions_obeyed


def test_what_was_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    contents = {bytes([letter]) * 200_000 for letter in b"abc"}
    write_atomically(path, min(contents))
    seen: set[bytes] = set()
    stopping = threading.Event()

    def watch() -> None:
        while not stopping.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=watch)
    reader.start()
    for _ in range(20):
        for content in contents:
            write_atomically(path, content)
    stopping.set()
    reader.join()
    assert seen <= contents


def test_permissions_and_links_survive(tmp_path: Path) -> None:
    path, link = tmp_path / "record.json", tmp_path / "latest.json"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_full_device_is_told_in_one_line() -> None:
    with pytest.raises(OutputError) as caught:
        write_atomically(Path("/dev/full"), b"x" * 100)
    assert str(caught.value) == "cannot write /dev/full: no space left on device"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(b"old")
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from sysbench.log.storage import write_atomically\n"
        "from sysbench.errors import OutputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_atomically(Path(sys.argv[1]), b'x' * 5000)\n"
        "except OutputError as error: print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == f"cannot write {path}: file too large"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_named_pipe_is_written_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, b"x" * 100_000)
    reader.join()
    assert received == [b"x" * 100_000]
    assert pipe.is_fifo()


def test_stdout_by_name_is_written_to_whatever_it_is(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from sysbench.log.storage import write_atomically\n"
        "write_atomically(Path('/dev/stdout'), b'{}')"
    )
    piped = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert piped.stdout == b"{}"
    with (tmp_path / "out").open("wb") as file:
        file.write(b"before ")
        file.flush()
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert (tmp_path / "out").read_bytes() == b"before {}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "cannot write {path}: it is a directory"),
        ("missing/record.json", "cannot write {path}: there is no directory {path.parent}"),
        ("file/record.json", "cannot write {path}: there is no directory {path.parent}"),
        ("x" * 256, "cannot write {path}: file name too long"),
        ("locked/file", "cannot write {path}: no permission"),
        ("locked/new", "cannot write {path}: no permission"),
    ],
)
def test_what_cannot_be_written_later_is_refused_now(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "file").write_text("")
    (tmp_path / "locked").chmod(0o500)
    path = tmp_path / name
    with permissions_obeyed():
        with pytest.raises(OutputError) as caught:
            refuse_unwritable(path)
        assert str(caught.value) == message.format(path=path)
        with pytest.raises(OutputError):
            write_atomically(path, b"")


@pytest.mark.parametrize("name", ["new.json", "file", "directory/file-elsewhere", "x" * 250, "x" * 255])
def test_what_is_not_refused_can_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    before = {*tmp_path.iterdir()}
    refuse_unwritable(tmp_path / name)
    assert {*tmp_path.iterdir()} == before
    write_atomically(tmp_path / name, b"whole")
    assert (tmp_path / name).read_bytes() == b"whole"


KILLED = """
import os, signal
from sysbench.log.storage import ScratchDirectory
directory = ScratchDirectory()
print(directory.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_with_a_directory(place: Path) -> Path:
    environment = {**os.environ, "TMPDIR": str(place)}
    ran = subprocess.run([sys.executable, "-c", KILLED], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL
    return Path(ran.stdout.strip())


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = [killed_with_a_directory(tmp_path) for _ in range(2)]
    (left[0] / "trace.json").write_text("{}")
    others = tmp_path / "sysbench-tests-1"
    others.mkdir()
    with ScratchDirectory() as used:
        assert all(each.is_dir() for each in left), "they are too young to be certain"
        long_ago_s = time.time() - 3600
        for each in (*left, others, Path(used)):
            os.utime(each, (long_ago_s, long_ago_s))
        with ScratchDirectory() as second:
            assert not any(each.exists() for each in left)
            assert sorted(tmp_path.iterdir()) == sorted([others, Path(used), Path(second)]), "it is locked, or not ours"
    assert list(tmp_path.iterdir()) == [others]
