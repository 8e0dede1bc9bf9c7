"""Tests of `sysbench fit`."""
