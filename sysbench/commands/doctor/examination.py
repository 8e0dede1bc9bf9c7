"""Examination of this machine. Child processes answer slow questions while this process answers the others."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from sysbench import bootstrap
from sysbench.commands.doctor import children
from sysbench.commands.doctor.children import ChildProcess, NoAnswerError

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

TORCH_TIMEOUT_S = 120.0
"""Time limit that allows for importing torch from a cold or remote disk, and for finding its devices."""

NVML_TIMEOUT_S = 20.0
"""Time limit that allows for a driver that first has to wake its GPUs."""


class Examination:
    """Examination of this machine. The constructor starts all child processes; their answers are read later.

    Most modules are imported late, so that nothing delays the start of the slowest child.
    """

    def __init__(self) -> None:
        with ExitStack() as resources:
            environment = bootstrap.environment()
            self._torch = ChildProcess(bootstrap.command("sysbench.worker.survey"), TORCH_TIMEOUT_S, environment)
            resources.callback(self._torch.close)
            self._nvml = ChildProcess(
                bootstrap.command("sysbench.commands.doctor.gpu_survey"), NVML_TIMEOUT_S, environment
            )
            resources.callback(self._nvml.close)
            self._tools = children.query_versions()
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
        from sysbench.commands.doctor import host_survey

        return host_survey.survey()

    def nvml(self) -> NvmlSection:
        from sysbench.commands.doctor.record import NvmlSection

        return _parse_section(NvmlSection, self._nvml)

    def torch(self) -> TorchSection:
        from sysbench.commands.doctor.record import TorchSection

        return _parse_section(TorchSection, self._torch)

    def tools(self) -> ToolsSection:
        from sysbench.commands.doctor.questions import Questions
        from sysbench.commands.doctor.record import Tool, ToolsSection
        from sysbench.spec.extras import installed_version

        questions = Questions()
        found = ToolsSection(
            **{name: Tool(**question.answer()) for name, question in self._tools.items()},
            python_headers=questions.ask("python_headers", children.python_headers),
            matplotlib=questions.ask("matplotlib", partial(installed_version, "matplotlib")),
        )
        return found.model_copy(update={"unknown": questions.unknown})

    def allocator(self) -> AllocatorSection:
        from sysbench.commands.doctor.questions import check_allocator_settings

        return check_allocator_settings()


def _parse_section(kind: type[AnySection], child: ChildProcess) -> AnySection:
    """Parse the answer of a child process; if there is no valid answer, all fields are unknown."""
    try:
        return kind.model_validate_json(child.answer())
    except NoAnswerError as error:
        return kind(unknown={"everything": str(error)})
    except ValueError as error:  # includes pydantic's errors: some library may print to stdout
        return kind(unknown={"everything": f"invalid answer: {str(error).splitlines()[0]}"})
