"""Show which kernels take the time, by the part of the model that launched them."""

from sysbench.command import Command, InReport

COMMAND = Command(
    package=__name__,
    help=__doc__,
    report=InReport(
        1,
        "Where the time goes",
        (
            *("summary", "communication", "collectives", "arrivals"),
            *("phases", "classes", "attention", "device", "precision", "kernels"),
        ),
        ("tree",),
    ),
    perform="command:perform",
    show="command:show",
    refuse_files="files:refuse_other_endings",
    long_table="kernels",
    fillable="tables:fillable",
    headlines="findings:headlines",
    picture="live:PROFILE",
    lines="live:ProfileLines",
    terms="sysbench.commands.report.method:profile_terms",
    foreseen="fold:taken_s",
    compared=("step",),
    usual_tables="tables:usual",
)
