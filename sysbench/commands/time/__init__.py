"""`sysbench time`."""

from sysbench.command import Command, InReport

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
    terms="sysbench.commands.report.method:of_time",
    report=InReport(
        0,
        "Time of a training step",
        (
            "predicted",
            "gpus",
            "summary",
            "phases",
            "precision",
            "execution",
            "attention",
            "optimizer",
            "devices",
            "warmup",
            "memory",
        ),
    ),
    foreseen="predicted:taken_s",
    compared=("step",),
    in_turns=True,
    usual_tables="tables:usual",
)
