"""`sysbench accum`."""
