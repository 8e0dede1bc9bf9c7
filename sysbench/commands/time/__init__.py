"""Time forward, backward and the optimizer step, by size, context, precision and more."""

from sysbench.command import Command, InReport

COMMAND = Command(
    package=__name__,
    help=__doc__,
    report=InReport(
        0,
        "Time of a training step",
        (
            "predicted",
            "gpus",
            "summary",
            "ranks",
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
    perform="command:perform",
    headlines="findings:headlines",
    picture="live:TIME",
    lines="live:TimeLines",
    terms="sysbench.commands.report.method:time_terms",
    foreseen="predicted:taken_s",
    compared=("step",),
    in_turns=True,
    usual_tables="tables:usual",
)
