"""`sysbench run`."""
