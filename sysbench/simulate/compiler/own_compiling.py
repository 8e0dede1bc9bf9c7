"""User code that compiles itself: a simulation runs it eagerly, and knows where it asked for the compiler.

The wrappers that `torch.compile` returns stay, since user code may look into them; torch's own stance makes them call
what they wrap. FlexAttention is the exception: only its compiled kernels can train at length, so these are simulated.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator, ExitStack, contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from weakref import WeakKeyDictionary

import torch

from sysbench.frames import PYTHON, owner_here
from sysbench.simulate.cuda.attention import flex_attention_operator

_DYNAMO = "torch._dynamo"
_FLEX = "torch.nn.attention.flex_attention"

_at_import: WeakKeyDictionary[ModuleType, dict[str, None]] = WeakKeyDictionary()
"""Places in the code of modules that compiled functions when they were imported, perhaps for an earlier cell."""

_original: Callable[..., object] = torch.compile


class CompiledParts:
    """Places in user code that ask for the compiler, in order: `gpt.py:31`."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._set_stance = torch.compiler.set_stance
        self._places: dict[str, None] = {}
        self._is_eager = False

    def places(self, modules: Iterable[ModuleType]) -> list[str]:
        """Return the places so far, with those where `modules` compiled functions when they were imported."""
        earlier = [place for module in modules for place in _at_import.get(module, ())]
        return list(dict.fromkeys([*earlier, *self._places]))

    def run_eagerly(self) -> None:
        """Have compiled functions run eagerly until the end of the simulation."""
        if not self._is_eager:
            self._is_eager = True
            self._stack.enter_context(self._set_stance("force_eager"))
        if _FLEX in sys.modules:
            _simulate_flex_attention()

    def add(self, frame: FrameType | None) -> None:
        """Note the place in user code that this frame belongs to or was called from; torch's own code is none."""
        while frame is not None and (
            frame.f_code.co_filename == __file__ or owner_here(frame.f_code.co_filename).package == "torch"
        ):
            if frame.f_globals.get("__name__") == _FLEX:
                return
            frame = frame.f_back
        if frame is None or owner_here(frame.f_code.co_filename).package in ("sysbench", PYTHON):
            return
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        self._places[place] = None
        module = sys.modules.get(str(frame.f_globals.get("__name__")))
        if module is not None and frame.f_code.co_name == "<module>":
            _at_import.setdefault(module, {})[place] = None


_current: CompiledParts | None = None


def _compile(model: object = None, *args: object, **options: object) -> object:
    """Do what `torch.compile` does; during a simulation, its result runs eagerly, and the place is noted.

    User code may keep this function beyond the simulation in which it was imported.
    """
    if model is None and not args:
        return lambda decorated: _compile(decorated, **options)
    if _current is not None:
        _current.run_eagerly()
    compiled = _original(model, *args, **options)
    if _current is not None and not (compiled is model or _is_disabled()):
        _current.add(sys._getframe(1))
    return compiled


def _is_disabled() -> bool:
    """Return whether the environment disables the compiler, so that the code runs eagerly on a GPU, too."""
    import torch._dynamo.config as config  # which `torch.compile` has imported

    return bool(config.disable)


class _KeptStance(ContextDecorator):
    """What user code gets that sets another stance, which a simulation ignores."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _simulate_flex_attention() -> None:
    """Have simulated tensors, and only these, reach simulated kernels in place of torch's written-out FlexAttention."""
    from torch._higher_order_ops.flex_attention import flex_attention

    key = torch._C.DispatchKey.AutogradMeta
    if key not in flex_attention.py_kernels:
        flex_attention.py_impl(key)(flex_attention_operator)


@contextmanager
def compiling_nothing() -> Iterator[CompiledParts]:
    """Context manager in which what user code compiles runs eagerly; yields the places that ask for it.

    On exit, torch compiles again as before.
    """
    global _current, _original
    with ExitStack() as stack:
        parts = CompiledParts(stack)
        if _DYNAMO in sys.modules:
            parts.run_eagerly()
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")  # its kernels are simulated
        _original = torch.compile
        for module, name, stand_in in ((torch, "compile", _compile), (torch.compiler, "set_stance", _KeptStance)):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, stand_in)
        _current = parts
        try:
            yield parts
        finally:
            _current = None
