"""The commands, one package each; each package has the same structure and exposes `COMMAND` in its `__init__`."""

PACKAGES = (
    "sysbench.commands.time",
    "sysbench.commands.memory",
    "sysbench.commands.fit",
    "sysbench.commands.check",
    "sysbench.commands.profile",
    "sysbench.commands.attention",
    "sysbench.commands.accum",
    "sysbench.commands.calibrate",
    "sysbench.commands.run",
    "sysbench.commands.report",
    "sysbench.commands.compare",
    "sysbench.commands.loop",
    "sysbench.commands.history",
    "sysbench.commands.gpus",
    "sysbench.commands.models",
    "sysbench.commands.doctor",
)
"""The packages of all commands, in the order in which `sysbench --help` lists them."""
