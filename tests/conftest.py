"""Settings for the whole suite."""

import os

# One thread for every worker that the tests start: on a shared machine, threads that wait for each other make a step
# of a millisecond last for seconds, and no test asserts how fast a step is.
os.environ.setdefault("OMP_NUM_THREADS", "1")
