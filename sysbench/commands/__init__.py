"""The commands: one package each, all alike; `COMMAND` in its `__init__` is the interface."""

PACKAGES = (
    "sysbench.commands.time",
    "sysbench.commands.memory",
    "sysbench.commands.profile",
    "sysbench.commands.attention",
    "sysbench.commands.accum",
    "sysbench.commands.calibrate",
    "sysbench.commands.run",
    "sysbench.commands.report",
    "sysbench.commands.compare",
    "sysbench.commands.loop",
    "sysbench.commands.history",
    "sysbench.commands.doctor",
)
"""The packages of all commands, in the order in which `sysbench --help` lists them."""
