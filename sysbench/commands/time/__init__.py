"""Time forward, backward and the optimizer step, by size, context, precision and more."""

from sysbench.command import Command, ReportLayout

COMMAND = Command(
    package=__name__,
    help=__doc__,
    report=ReportLayout(
        0,
        "Time of a training step",
        (
            "predicted",
            "gpus",
            "choices",
            "scaling",
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
    screen="live:TimeScreen",
    terms="sysbench.commands.report.method:time_terms",
    expected_duration="predicted:taken_s",
    compared=("step",),
    can_alternate=True,
    default_tables="tables:usual",
)
