"""The measured process: `python -m sysbench.worker`. Only the engine starts it."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import time

from sysbench import meeting


def main() -> None:
    """Import torch, connect, announce this worker, and run commands until the engine disconnects."""
    if meeting.ADDRESS_VARIABLE not in os.environ:
        sys.exit("sysbench.worker is started by sysbench; run `sysbench time` instead")
    where = {name: os.environ.pop(name) for name in (meeting.ADDRESS_VARIABLE, meeting.KEY_VARIABLE)}
    faulthandler.enable()
    meeting.die_with_the_parent()
    gc.disable()  # imports leave no garbage; collecting it took a tenth of their time
    began_s = time.perf_counter()
    import torch  # noqa: F401  Imported here, and before all that needs it, so that the time it takes can be told.

    import_s = time.perf_counter() - began_s
    from sysbench.worker.service import Channel, serve

    gc.freeze()  # objects from imports live until exit: traversing them took every collection a sixth of a second
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
