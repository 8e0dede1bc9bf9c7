"""Time forward, backward and the optimizer step, by size, context, precision and more."""

from sysbench.command import Command, ReportLayout

COMMAND = Command(
    package=__name__,
    help=__doc__,
    also_called="bench benchmark measure step speed train predict latency throughput",
    report=ReportLayout(
        0,
        "Time of a training step",
        (
            "predicted",
            "gpus",
            "choices",
            "scaling",
            "training",
            "summary",
            "ranks",
            "device",
            "precision",
            "execution",
            "attention",
            "optimizer",
        ),
    ),
    perform="command:perform",
    headlines="findings:headlines",
    screen="live:TimeScreen",
    terms="terms:terms",
    measures="compared:measures",
    step_numbers="compared:step_numbers",
    completed_together="record:share_ceilings",
    expected_duration="predicted:taken_s",
    verdicts=("step",),
    can_alternate=True,
    default_tables="tables:usual",
)
