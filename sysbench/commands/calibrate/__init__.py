"""`sysbench calibrate`."""

from sysbench.command import Command, InReport

COMMAND = Command(
    name="calibrate",
    package=__name__,
    help="Measure the rates of this device and its host that predicted times rest on.",
    files="command:write",
    refuse_files="command:refuse_unwritable",
    plan="tables:plan",
    lines="sysbench.render.dashboard.cell_lines:TitledLines",
    long_table="cases",
    usual_tables="tables:usual",
    report=InReport(5, "Calibration", ("rates",)),
)
