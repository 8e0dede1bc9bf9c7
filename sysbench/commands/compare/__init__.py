"""`sysbench compare`."""
