"""`sysbench time`."""
