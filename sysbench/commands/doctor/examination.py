"""One look at this machine. What takes long works in processes of its own while the rest is asked."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from sysbench.commands.doctor import tools
from sysbench.commands.doctor.children import Child, NoAnswerError
from sysbench.engine import launchers as own_python

if TYPE_CHECKING:
    from sysbench.commands.doctor.record import (
        AllocatorSection,
        HostSection,
        NvmlSection,
        Section,
        ToolsSection,
        TorchSection,
    )

    AnySection = TypeVar("AnySection", bound=Section)

TORCH_LIMIT_S = 120.0
"""For importing torch from a cold or distant disk, and for finding its devices."""

NVML_LIMIT_S = 20.0
"""A driver that answers at all has answered by then, also where it first has to wake its GPUs."""


class Examination:
    """Begins when it is made: torch, the driver and the programs are asked at once, and answer when they are read.

    What it is made of is imported late, because nothing should come before the start of what takes longest.
    """

    def __init__(self) -> None:
        with ExitStack() as resources:
            environment = own_python.environment()
            self._torch = Child(own_python.command("sysbench.worker.survey"), TORCH_LIMIT_S, environment)
            resources.callback(self._torch.close)
            self._nvml = Child(own_python.command("sysbench.commands.doctor.gpu_survey"), NVML_LIMIT_S, environment)
            resources.callback(self._nvml.close)
            self._tools = tools.questions()
            for question in self._tools.values():
                resources.callback(question.close)
            self._resources = resources.pop_all()

    def __enter__(self) -> Examination:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.close()

    def host(self) -> HostSection:
        """The machine without its GPUs."""
        from sysbench.commands.doctor import host_survey

        return host_survey.survey()

    def nvml(self) -> NvmlSection:
        """What NVIDIA's driver says."""
        from sysbench.commands.doctor.record import NvmlSection

        return _section(NvmlSection, self._nvml)

    def torch(self) -> TorchSection:
        """What torch says; the last to be known."""
        from sysbench.commands.doctor.record import TorchSection

        return _section(TorchSection, self._torch)

    def tools(self) -> ToolsSection:
        """Programs and files that some options need."""
        from sysbench.commands.doctor.questions import Questions
        from sysbench.commands.doctor.record import Tool, ToolsSection

        questions = Questions()
        found = ToolsSection(
            **{name: Tool(**question.answer()) for name, question in self._tools.items()},
            python_headers=questions.ask("python_headers", tools.python_headers),
            matplotlib=questions.ask("matplotlib", tools.matplotlib_version),
        )
        return found.model_copy(update={"unknown": questions.unknown})

    def allocator(self) -> AllocatorSection:
        """The settings of CUDA's allocator."""
        from sysbench.commands.doctor import questions as allocator_check

        return allocator_check.check()


def _section(kind: type[AnySection], child: Child) -> AnySection:
    """What a child said; an answer that is none leaves everything unknown."""
    try:
        return kind.model_validate_json(child.answer())
    except NoAnswerError as error:
        return kind(unknown={"everything": str(error)})
    except ValueError as error:  # pydantic's too: something else was written into the answer
        return kind(unknown={"everything": f"what was answered makes no sense: {str(error).splitlines()[0]}"})
