"""`sysbench report`."""
