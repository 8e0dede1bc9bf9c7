"""`sysbench calibrate`."""

from sysbench.command import Command, InReport

COMMAND = Command(
    name="calibrate",
    package=__name__,
    help="Measure the rates of this device and its host that predicted times rest on.",
    spec="spec:CalibrateSpec",
    cell="spec:CalibrateCell",
    options="spec:CalibrateOptions",
    plan="tables:plan",
    record="record:CalibrateRecord",
    lines="live:CalibrateLines",
    long_table="cases",
    usual_tables="tables:usual",
    report=InReport(5, "Calibration", ("rates",)),
)
