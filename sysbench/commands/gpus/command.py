"""`sysbench gpus`: the known GPUs, or one of them with the source of each number."""

from __future__ import annotations

from sysbench.commands import showing
from sysbench.commands.gpus.spec import GpusSpec
from sysbench.spec.command_options import Given, command_options, validated


@command_options(GpusSpec)
def gpus(given: Given) -> None:
    """List the known GPUs with memory, peaks and rates, and where each number is from.

    These are the names that --simulate takes, including those of GPUs calibrated with sysbench calibrate.
    """
    spec = validated(GpusSpec, given)
    from sysbench.commands.gpus import tables
    from sysbench.spec import hardware

    sheet = tables.gpu_list(hardware.available()) if spec.name is None else tables.gpu(hardware.by_name(spec.name))
    showing.show_sheet(sheet, spec, spec.columns)
