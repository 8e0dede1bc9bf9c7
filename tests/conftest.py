"""Settings for the whole suite."""

import os
import signal

from hypothesis import HealthCheck, settings

# One thread for every worker that the tests start: on a shared machine, threads that wait for each other make a step
# of a millisecond last for seconds, and no test asserts how fast a step is.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell starts in the background ignores Ctrl-C, and hands that on to what the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes to make or to try says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
