"""The `sysbench profile` command."""

from sysbench.command import Command, InReport

COMMAND = Command(
    name="profile",
    package=__name__,
    help="See which kernels take the time, by the part of the model that launched them.",
    spec="spec:ProfileSpec",
    cell="spec:ProfileCell",
    options="spec:ProfileOptions",
    record="record:ProfileRecord",
    long_table="kernels",
    fillable="tables:fillable",
    headlines="findings:headlines",
    picture="live:PROFILE",
    lines="live:ProfileLines",
    terms="sysbench.commands.report.method:of_profile",
    report=InReport(
        1,
        "Where the time goes",
        ("summary", "phases", "classes", "attention", "device", "precision", "kernels"),
        ("tree",),
    ),
    compared=("step",),
    usual_tables="tables:usual",
)
