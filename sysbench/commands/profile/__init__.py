"""`sysbench profile`."""

from sysbench.command import Command

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
    usual_tables="tables:usual",
)
