"""Import of the user's code in the worker; errors in that code are distinguished from errors in sysbench."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import io
import os
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sysbench.errors import SysbenchError, UnavailableError, message_of, nearest, unknown
from sysbench.frames import PYTHON, owner_here
from sysbench.lab.memory.allocator import is_out_of_memory
from sysbench.log.events import CodeFile

MAX_PRINTED_CHARACTERS = 2000
"""Number of characters that are kept from the output of the user's code."""

_IMPORTED_S: dict[str, float] = {}
"""Duration of each import, by target."""

_Modules = dict[str, tuple[Path, ModuleType]]
_imported: _Modules = {}
"""By name, the modules of the user's code that were imported, with the directory that they were imported from."""

_of_simulations: _Modules = {}
"""Like `_imported`, but those of simulations outside of them, and vice versa."""


class UserCodeError(SysbenchError):
    """The user's code raised an exception; the message names the exception and the line of the code."""


@dataclass(frozen=True)
class LoadedCode:
    """An attribute of an imported module."""

    value: Any
    module: ModuleType
    file: CodeFile


@contextmanager
def modules_of_simulations() -> Iterator[None]:
    """Context manager in which the user's code is imported again, and kept apart from modules that a real device has.

    A module may ask for a GPU when it is imported, and hold tensors of the device that it finds.
    """
    _exchange_modules()
    try:
        yield
    finally:
        _exchange_modules()


def modules_behind(files: Iterable[CodeFile]) -> list[ModuleType]:
    """Return the imported modules of the user's code that these files are, or that they name something of."""
    paths = {file.path for file in files}
    pending = [module for _, module in _imported.values() if getattr(module, "__file__", None) in paths]
    found: list[ModuleType] = []
    while pending:
        module = pending.pop()
        if module in found:
            continue
        found.append(module)
        values = list(vars(module).values())
        names = {
            each.__name__ if isinstance(each, ModuleType) else getattr(each, "__module__", None) for each in values
        }
        pending += [_imported[name][1] for name in names if isinstance(name, str) and name in _imported]
    return found


def _exchange_modules() -> None:
    leaving, coming = dict(_imported), dict(_of_simulations)
    for name, (_, module) in leaving.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    sys.modules.update({name: module for name, (_, module) in coming.items()})
    for modules, found in ((_imported, coming), (_of_simulations, leaving)):
        modules.clear()
        modules.update(found)


def _forget_other_directories(root: Path) -> None:
    """Forget modules from another directory: they are of another program, which may have modules of the same names."""
    for name in [name for name, (directory, _) in _imported.items() if directory != root]:
        _, module = _imported.pop(name)
        if sys.modules.get(name) is module:
            del sys.modules[name]


def load_code(target: str, directory: str, option: str = "--model") -> LoadedCode:
    """Import `target`, either `package.module:attribute` or `path/to/file.py:attribute`, from `directory`."""
    where, _, path = target.rpartition(":")
    root = Path(directory).resolve()
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    _forget_other_directories(root)
    before = set(sys.modules)
    start_s = time.perf_counter()
    with user_code(f"importing {where}"):
        module = _import_file(root / where, option) if where.endswith(".py") else _import_module(where, root, option)
    _IMPORTED_S.setdefault(where, time.perf_counter() - start_s)
    for name in sys.modules.keys() - before:
        path_of = getattr(sys.modules[name], "__file__", None)
        if path_of is not None and Path(path_of).is_relative_to(root) and "site-packages" not in Path(path_of).parts:
            _imported[name] = root, sys.modules[name]
    value: object = module
    for name in path.split("."):
        if not hasattr(value, name):
            package = module.__name__.partition(".")[0]
            defined = [
                each
                for each, member in vars(value).items()
                if callable(member)
                and hasattr(member, "__name__")
                and f"{member.__module__}.".startswith(f"{package}.")
            ]
            raise UnavailableError(f"{option} {target}: {unknown(name, f'in {where}', defined)}")
        value = getattr(value, name)
    if not callable(value):
        raise UnavailableError(f"{option} {target} is {type(value).__name__}, not a class or a function")
    file = getattr(module, "__file__", None)
    return LoadedCode(value, module, code_file(target, None if file is None else Path(file)))


def import_s(files: Iterable[CodeFile]) -> float:
    """Return the total time in seconds that the first imports of these files took in this process."""
    return sum(_IMPORTED_S.get(where, 0.0) for where in {file.target.rpartition(":")[0] for file in files})


def code_file(target: str, path: Path | None) -> CodeFile:
    """Return the path and SHA-256 of a file; raises OSError if the file cannot be read."""
    digest = None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
    return CodeFile(target=target, path=None if path is None else str(path), sha256=digest)


def _import_file(path: Path, option: str) -> ModuleType:
    if not path.is_file():
        raise UnavailableError(f"{option}: there is no file {path}")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _import_module(name: str, root: Path, option: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that their module imports
        package, _, missing = error.name.rpartition(".")
        paths = getattr(sys.modules.get(package), "__path__", None) or [str(root)]
        available = [module.name for module in pkgutil.iter_modules(paths)]
        suggestion = nearest(missing, available)
        hint = f" Did you mean {suggestion}?" if suggestion else " --app-dir names the directory to import from"
        raise UnavailableError(f"{option} {name}: no module {missing} in {paths[0]}.{hint}") from None


class user_code:  # noqa: N801  A context manager, faster than a generator: a step enters two of them while it is timed.
    """Context in which exceptions of the user's code become UserCodeErrors that name its line.

    Out-of-memory errors propagate unchanged. An UnavailableError remains one, with the line added to its message.
    Output goes to `stdout`, if given.
    """

    def __init__(self, action: str, stdout: object = None) -> None:
        self._action = action
        self._process = os.getpid()
        self._stdout = stdout

    def __enter__(self) -> None:
        self._before = sys.stdout
        sys.stdout = self._stdout or self._before

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        sys.stdout = self._before
        if os.getpid() != self._process:
            os._exit(0)  # a process that the user's code has forked must not continue as the worker
        if error is None:
            return
        if isinstance(error, UnavailableError):
            raise UnavailableError(f"{error}{_location_suffix(error)}") from error
        if isinstance(error, SystemExit):
            raise UserCodeError(f"{self._action}: it calls exit(){_location_suffix(error)}") from error
        if isinstance(error, EOFError):
            raise UserCodeError(
                f"{self._action}: it reads from standard input, which is empty{_location_suffix(error)}"
            ) from error
        if isinstance(error, Exception) and not isinstance(error, SysbenchError) and not is_out_of_memory(error):
            frame = _user_frame(error)
            words = message_of(error) or (frame.line if frame is not None else None)  # a bare assert
            name = f"{type(error).__name__}: {words}" if words else type(error).__name__
            raise UserCodeError(f"{self._action}: {name}{_location_suffix(error)}") from error


def _location_suffix(error: BaseException) -> str:
    frame = _user_frame(error)
    return "" if frame is None else f" ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"


def _user_frame(error: BaseException) -> traceback.FrameSummary | None:
    user_frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
        and owner_here(frame.filename).package not in ("torch", "sysbench", PYTHON)
    ]
    return user_frames[-1] if user_frames else None


class Printed(io.TextIOBase):
    """Stream that passes output of the user's code on to standard error, so that it does not mix with results.

    text  the first `MAX_PRINTED_CHARACTERS` characters
    """

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def write(self, text: str) -> int:
        """Write to standard error, and keep the beginning in `text`."""
        self.text = (self.text + text)[:MAX_PRINTED_CHARACTERS]
        return sys.stderr.write(text)

    def redirected(self) -> AbstractContextManager[object]:
        """Redirect standard output to this stream in this context."""
        return redirect_stdout(self)

    def running(self, action: str) -> AbstractContextManager[Any]:
        """Redirect standard output to this stream in this context, and convert exceptions as `user_code` does."""
        return user_code(action, self)


def arguments_for(
    function: Callable[..., object],
    given: Mapping[str, object],
    fallbacks: Mapping[str, object],
    preferred: Mapping[str, object],
    what: str,
    remedy: str = "",
) -> dict[str, object]:
    """Return the keyword arguments with which to call `function`, named `what` in messages, which add `remedy`.

    These are all of `given`, those of `preferred` that the function accepts, and those of `fallbacks` that it requires.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a C function without a signature
        return dict(given)
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    unknown_name = next((name for name in given if name not in named), None)
    if unknown_name is not None and not accepts_any:
        raise UnavailableError(f"--model-arg {unknown_name}: {unknown(unknown_name, f'an argument of {what}', named)}")
    required = [name for name, parameter in named.items() if parameter.default is parameter.empty]
    known = {**fallbacks, **preferred, **given}
    if missing := [name for name in required if name not in known]:
        takes = ", ".join(map(str, named.values()))
        raise UnavailableError(
            f"missing constructor argument{'s' if len(missing) > 1 else ''} {', '.join(missing)} "
            f"of {what}; it takes ({takes}){remedy}"
        )
    return {name: known[name] for name in named if name in required or name in preferred} | dict(given)
