"""How much of strangers' memory snapshots is put in the right category.

    python -m tests.bench.categories [--models 5]

Steps are simulated, so that the category of every allocation is known; then the marks are taken out and the categories
inferred. Each run is recorded as torch would record it in three ways (C++ and Python stacks, Python stacks, stacks of
allocations alone), from its beginning and in its last step. Training loops are recorded from the middle of training,
over two steps and over one. Shares are of bytes: of those at the peak, by block for runs and by category for loops
(blocks that were there before the recording are interchangeable), and of all that were ever allocated.
"""

from __future__ import annotations

import argparse
import statistics

from tests.snapshot.strangers import KINDS, MODELS, PROTOCOLS, guess, known
from tests.snapshot.training_loops import LOOPS, recorded

PROMISED_SHARE = 0.998


def main() -> None:
    """Print a line for each configuration, and the least and the median share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=len(MODELS), help="how many of the models")
    at_peak, overall = [], []
    for changes in MODELS[: parser.parse_args().models]:
        for protocol in PROTOCOLS:
            run = known(protocol, **changes)
            for window, first in run.windows():
                for kind in KINDS:
                    found = guess(run, kind, first)
                    at_peak.append(found.right_at_peak())
                    overall.append(found.right_overall())
                    shares = f"at the peak {at_peak[-1]:7.2%}   of all {overall[-1]:7.2%}"
                    print(f"{run.label:48} {window:10} {kind:7} {shares}", flush=True)
    for loop in LOOPS:
        run, starts = recorded(loop)
        for steps, first in zip(range(len(starts), 0, -1), starts, strict=True):
            for kind in KINDS:
                found = guess(run, kind, first)
                at_peak.append(found.right_totals_at_peak())
                overall.append(found.right_overall())
                shares = f"at the peak {at_peak[-1]:7.2%}   of all {overall[-1]:7.2%}"
                print(f"{run.label:48} {steps} step{'s' * (steps > 1):4} {kind:7} {shares}", flush=True)
    for what, shares in (("at the peak", at_peak), ("of all", overall)):
        print(f"{len(shares)} configurations, {what}: least {min(shares):.2%}, median {statistics.median(shares):.2%}")
    print(f"promised: {PROMISED_SHARE:.1%} at the peak; {'kept' if min(at_peak) >= PROMISED_SHARE else 'BROKEN'}")


if __name__ == "__main__":
    main()
