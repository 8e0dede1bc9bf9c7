"""The measured process: `python -m sysbench.worker`. Only the engine starts it."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import time

from sysbench import bootstrap


def main() -> None:
    """Import torch, connect, announce this worker, and run commands until the engine disconnects."""
    if bootstrap.ADDRESS_VARIABLE not in os.environ:
        sys.exit("sysbench.worker is started by sysbench; run `sysbench time` instead")
    where = {name: os.environ.pop(name) for name in (bootstrap.ADDRESS_VARIABLE, bootstrap.KEY_VARIABLE)}
    faulthandler.enable()
    bootstrap.exit_with_parent()
    gc.disable()  # imports leave no garbage, but collections took a tenth of their time
    began_s = time.perf_counter()
    import torch  # noqa: F401  Imported here, before everything that needs it, to time the import.

    import_s = time.perf_counter() - began_s
    from sysbench.worker.service import Channel, serve

    gc.freeze()  # imported objects live until exit; traversing them took a sixth of a second per collection
    gc.enable()
    channel = Channel.connect(where)
    orderly = serve(channel, import_s)
    channel.close()
    if not orderly:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
