"""Believable memory snapshots without a GPU: a Transformer's training steps on the model of the allocator.

The result is a dict as `torch.cuda.memory._snapshot()` returns it. Sizes, order and lifetimes are those of a real
step: parameters, then activations that pile up in forward and are released in backward while gradients appear, then
the optimizer with its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sysbench.simulate.allocator import CachingAllocator

MIB = 1 << 20
START_US = 1_700_000_000_000_000

Frames = list[dict[str, Any]]


@dataclass(frozen=True)
class Model:
    """Dimensions of the model and of its input."""

    layers: int = 4
    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    vocab: int = 10_000
    batch: int = 4
    ctx: int = 256


@dataclass
class Recorder:
    """Writes down what happens, as torch would; `described` adds what only sysbench knows."""

    described: bool
    allocator: CachingAllocator = field(default_factory=lambda: CachingAllocator(1 << 40, record=True))
    known: dict[int, dict[str, str]] = field(default_factory=dict)
    """What sysbench knows of an allocation, by the place of its event."""
    live: dict[int, tuple[int, dict[str, str]]] = field(default_factory=dict)
    """By address: the size, and what sysbench knows."""
    begin: int = 0
    """Events before this one are forgotten."""

    def allocate(self, size: int, category: str, module: str, frames: Frames) -> int:
        address = self.allocator.allocate(size, frames=frames).address
        known = {"category": category, "user_metadata": module} if self.described else {}
        self.known[len(self.allocator.events) - 1] = known
        self.live[address] = size, known
        return address

    def release(self, address: int) -> None:
        del self.live[address]
        self.allocator.free(address)

    def forget(self) -> None:
        """Begin the trace here."""
        self.begin = len(self.allocator.events)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.allocator.annotate(name, "START")
        yield
        self.allocator.annotate(name, "END")

    def snapshot(self) -> dict[str, Any]:
        content = self.allocator.snapshot()
        device, trace = 0, content["device_traces"][0]
        for place, entry in enumerate(trace):
            entry |= {"time_us": START_US + 7 * place, **self.known.get(place, {})}
            # A tuple of its own each time, as torch makes them; and what autograd releases has no stack.
            entry["pool_id"] = (device, 0)
            entry["frames"] = [] if entry["action"].startswith("free") else entry["frames"]
        marks = [mark for mark in content["external_annotations"] if self.described and mark["time_us"] >= self.begin]
        content["external_annotations"] = [mark | {"time_us": START_US + 7 * mark["time_us"] - 1} for mark in marks]
        content["device_traces"] = [trace[self.begin :]]
        for block in (block for segment in content["segments"] for block in segment["blocks"]):
            block |= self.live[block["address"]][1] if block["state"] == "active_allocated" else {}
        if self.described:
            content["sysbench"] = {"source": "simulated", "device_name": "NVIDIA A100-SXM4-80GB"}
        return content


_FRAMES: dict[tuple[str, int, str], dict[str, Any]] = {}


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    """One dict per distinct frame, as torch makes them."""
    return _FRAMES.setdefault((filename, line, name), {"filename": filename, "line": line, "name": name})


_CALL = frame("/site-packages/torch/nn/modules/module.py", 1779, "_call_impl")
_MAIN = [frame("/home/me/train.py", 212, "train"), frame("/home/me/train.py", 260, "<module>")]
_MODEL = [frame("/home/me/transformer.py", 190, "forward"), _CALL, frame("/home/me/train.py", 88, "step"), *_MAIN]
_BLOCK_FRAMES = [_CALL, frame("/home/me/transformer.py", 141, "forward"), _CALL, *_MODEL]
_ENGINE = [
    frame("/site-packages/torch/autograd/graph.py", 865, "_engine_run_backward"),
    frame("/site-packages/torch/autograd/__init__.py", 354, "backward"),
    frame("/site-packages/torch/_tensor.py", 625, "backward"),
    frame("/home/me/train.py", 93, "step"),
    *_MAIN,
]
_ADAM = [
    frame("/site-packages/torch/optim/adamw.py", 161, "step"),
    frame("/site-packages/torch/optim/optimizer.py", 527, "wrapper"),
    frame("/home/me/train.py", 97, "step"),
    *_MAIN,
]
_INIT = [frame("/home/me/transformer.py", 31, "__init__"), frame("/home/me/train.py", 55, "build"), *_MAIN]
_BATCH = [frame("/home/me/train.py", 70, "get_batch"), frame("/home/me/train.py", 85, "step"), *_MAIN]
_LOSS = [frame("/home/me/loss.py", 20, "cross_entropy"), frame("/home/me/train.py", 90, "step"), *_MAIN]


@dataclass
class Training:
    """A model in training, one step after the other."""

    model: Model
    recorder: Recorder
    backward_stacks: bool = True
    parameters: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)
    state: dict[str, int] = field(default_factory=dict)

    def build(self) -> None:
        for name, size in self._parameter_sizes().items():
            self.parameters[name] = self.recorder.allocate(size, "parameters", name.rpartition(".")[0], _INIT)

    def step(self) -> None:
        recorder, model = self.recorder, self.model
        with recorder.phase("zero_grad"):
            for address in self.gradients.values():
                recorder.release(address)
            self.gradients.clear()
        tokens = [recorder.allocate(8 * model.batch * model.ctx, "inputs", "", _BATCH) for _ in range(2)]
        with recorder.phase("forward"):
            saved = self._forward()
        with recorder.phase("loss"):
            logits = model.batch * model.ctx * model.vocab * 4
            saved.append((recorder.allocate(logits, "activations", "", _LOSS), "loss"))
        with recorder.phase("backward"):
            self._backward(saved)
        with recorder.phase("optimizer"):
            self._optimize()
        for address in tokens:
            recorder.release(address)

    def _forward(self) -> list[tuple[int, str]]:
        model, saved = self.model, []
        stream = 4 * model.batch * model.ctx * model.d_model
        hidden = 4 * model.batch * model.ctx * model.d_ff
        scores = 4 * model.batch * model.heads * model.ctx * model.ctx
        saved.append((self._activation(stream, "embedding", 30, "embedding"), "embedding"))
        for layer in range(model.layers):
            for part, lines in _PARTS.items():
                for line, name, kind, lives in lines:
                    size = {"stream": stream, "hidden": hidden, "scores": scores}[kind]
                    module = f"layers.{layer}.{part}"
                    address = self._activation(size, module, line, name, "activations" if lives else "temporaries")
                    if lives:
                        saved.append((address, module))
                    else:
                        self.recorder.release(address)
        logits = 4 * model.batch * model.ctx * model.vocab
        saved.append((self._activation(logits, "lm_head", 40, "linear"), "lm_head"))
        return saved

    def _activation(self, size: int, module: str, line: int, name: str, category: str = "activations") -> int:
        part = module.rpartition(".")[2]
        frames = _stack(part, line, name)
        return self.recorder.allocate(size, category, module, frames)

    def _backward(self, saved: list[tuple[int, str]]) -> None:
        sizes = self._parameter_sizes()
        waiting: dict[str, list[str]] = {}
        for name in sizes:
            waiting.setdefault(name.rpartition(".")[0], []).append(name)
        frames = _ENGINE if self.backward_stacks else []
        for address, module in reversed(saved):
            size = self.recorder.live[address][0]
            temporary = self.recorder.allocate(size, "temporaries", module, frames)
            for name in waiting.pop(module, []):
                self.gradients[name] = self.recorder.allocate(sizes[name], "gradients", module, frames)
            self.recorder.release(address)
            self.recorder.release(temporary)
        for module, names in waiting.items():
            for name in names:
                self.gradients[name] = self.recorder.allocate(sizes[name], "gradients", module, frames)

    def _optimize(self) -> None:
        first = not self.state
        for name, size in self._parameter_sizes().items():
            if first:
                for moment in ("exp_avg", "exp_avg_sq"):
                    self.state[f"{name}.{moment}"] = self.recorder.allocate(
                        size, "optimizer state", name.rpartition(".")[0], _ADAM
                    )
        largest = max(self._parameter_sizes().values())
        self.recorder.release(self.recorder.allocate(largest, "temporaries", "", _ADAM))

    def _parameter_sizes(self) -> dict[str, int]:
        model = self.model
        sizes = {"embedding.weight": 4 * model.vocab * model.d_model}
        for layer in range(model.layers):
            for name in ("q", "k", "v", "o"):
                sizes[f"layers.{layer}.attn.{name}"] = 4 * model.d_model**2
            for name in ("w1", "w2", "w3"):
                sizes[f"layers.{layer}.ffn.{name}"] = 4 * model.d_model * model.d_ff
            for name in ("norm1", "norm2"):
                sizes[f"layers.{layer}.{name}.weight"] = 4 * model.d_model
        return sizes | {"lm_head.weight": 4 * model.vocab * model.d_model}


_PARTS: dict[str, list[tuple[int, str, str, bool]]] = {
    "norm1": [(60, "rms_norm", "stream", False), (61, "rms_norm", "stream", True)],
    "attn": [
        (80, "linear", "stream", True),
        (81, "linear", "stream", True),
        (82, "linear", "stream", True),
        (84, "rotate", "stream", False),
        (86, "scaled_dot_product", "scores", False),
        (88, "scaled_dot_product", "scores", True),
        (90, "scaled_dot_product", "stream", True),
        (92, "linear", "stream", True),
    ],
    "norm2": [(60, "rms_norm", "stream", False), (61, "rms_norm", "stream", True)],
    "ffn": [
        (110, "linear", "hidden", True),
        (111, "linear", "hidden", True),
        (112, "silu", "hidden", True),
        (113, "mul", "hidden", True),
        (114, "linear", "stream", True),
    ],
}

_STACKS: dict[tuple[str, int, str], Frames] = {}


def _stack(part: str, line: int, name: str) -> Frames:
    key = (part, line, name)
    if key not in _STACKS:
        _STACKS[key] = [
            frame("/home/me/transformer.py", line, name),
            frame("/home/me/transformer.py", line - 5, "forward"),
            *_BLOCK_FRAMES,
        ]
    return _STACKS[key]


def training_snapshot(
    model: Model | None = None,
    steps: int = 1,
    *,
    described: bool = True,
    backward_stacks: bool = True,
    record_from_step: int = 0,
) -> dict[str, Any]:
    """Some training steps as a snapshot.

    Without `described` it is anyone's snapshot; without `backward_stacks` it looks as it does where autograd runs
    on threads of its own; with `record_from_step` the trace starts in steady state, with everything there already.
    """
    training = Training(model or Model(), Recorder(described), backward_stacks)
    training.build()
    for step in range(steps):
        if record_from_step and step == record_from_step:
            training.recorder.forget()
        training.step()
    return training.recorder.snapshot()
