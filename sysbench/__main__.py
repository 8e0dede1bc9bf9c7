"""`python -m sysbench` and the `sysbench` script."""

from sysbench.cli import main

if __name__ == "__main__":
    main()
