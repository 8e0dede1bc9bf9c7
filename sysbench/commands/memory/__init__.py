"""`sysbench memory`."""
