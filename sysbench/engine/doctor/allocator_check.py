"""The settings of CUDA's caching allocator, read as torch will read them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from sysbench.doctor_record import AllocatorSection
from sysbench.simulate.allocator_settings import ENVIRONMENT_VARIABLES, AllocatorSettings, NotSimulatedError


def check(environment: Mapping[str, str] = os.environ) -> AllocatorSection:
    """What the environment asks of the allocator, and what is wrong with it. Never raises."""
    given = {name: environment[name] for name in ENVIRONMENT_VARIABLES if name in environment}
    if not given:
        return AllocatorSection()
    (variable, text), *others = given.items()
    problem = not_simulated = None
    try:
        AllocatorSettings.parse(text)
    except NotSimulatedError as error:
        not_simulated = str(error)
    except ValueError as error:
        problem = str(error)
    overridden = next((f"{name}={other}" for name, other in others if other != text), None)
    return AllocatorSection(
        variable=variable, text=text, problem=problem, not_simulated=not_simulated, overridden=overridden
    )
