"""The search of `sysbench fit`: its rules, and the simulations that it steers, side by side in processes."""
