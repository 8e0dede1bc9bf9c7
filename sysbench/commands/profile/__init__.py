"""`sysbench profile`."""
