"""`sysbench doctor`."""
