"""`sysbench attention`."""
