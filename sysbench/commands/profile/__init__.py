"""Show which kernels take the time, by the part of the model that launched them."""

from sysbench.command import Command, ReportLayout

COMMAND = Command(
    package=__name__,
    help=__doc__,
    also_called="trace prof profiler kernels flame nsys nsight",
    report=ReportLayout(
        1,
        "Where the time goes",
        ("summary", "communication", "collectives", "classes", "attention", "device", "kernels"),
        ("tree",),
    ),
    perform="command:perform",
    show="command:show",
    refuse_files="files:validate_output_formats",
    long_table="kernels",
    build_tables="tables:non_empty_tables",
    headlines="findings:findings",
    screen="live:ProfileScreen",
    terms="terms:terms",
    measures="compared:measures",
    step_numbers="compared:step_numbers",
    artefact="trace_file:read",
    expected_duration="fold:estimated_duration_s",
    verdicts=("step",),
    default_tables="tables:default_tables",
)
