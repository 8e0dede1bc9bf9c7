"""`sysbench time`."""

from sysbench.command import Command

COMMAND = Command(
    name="time",
    package=__name__,
    help="Time forward, backward and the optimizer step, by size, context, precision and more.",
    spec="spec:TimeSpec",
    cell="spec:TimeCell",
    options="spec:TimeOptions",
    record="record:TimeRecord",
    headlines="findings:headlines",
    picture="live:TIME",
    lines="live:TimeLines",
    usual_tables="tables:usual",
)
