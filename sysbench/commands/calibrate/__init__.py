"""Measure the rates of this device and its host that predicted times rest on."""

from sysbench.command import Command, InReport

COMMAND = Command(
    package=__name__,
    help=__doc__,
    report=InReport(5, "Calibration", ("rates",)),
    files="command:write",
    refuse_files="command:refuse_unwritable",
    show="command:show",
    plan="tables:plan",
    lines="sysbench.render.dashboard.cell_lines:TitledLines",
    long_table="cases",
    usual_tables="tables:usual",
)
