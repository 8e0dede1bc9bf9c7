"""Measure the device and host rates that predictions are based on."""

from sysbench.command import Command, ReportLayout

COMMAND = Command(
    package=__name__,
    help=__doc__,
    also_called="rates calibration bandwidth",
    figures=None,
    report=ReportLayout(5, "Calibration"),
    perform="command:perform",
    files="command:write",
    refuse_files="command:refuse_unwritable",
    show="command:show",
    plan="tables:plan",
    findings="tables:of_run",
    long_table="rates",
)
