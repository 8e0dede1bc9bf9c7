"""The devices on which cells can be measured, as reported by a worker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from sysbench.engine.admission import Admission
from sysbench.engine.conversation import StoppedByUserError
from sysbench.engine.interrupts import catch_interrupts
from sysbench.engine.process import Launcher
from sysbench.engine.sensors.sampler import Sampler
from sysbench.engine.supervisor import Supervisor
from sysbench.log.events import DeviceInfo
from sysbench.spec.run import RunOptions


def list_devices(launcher: Launcher | None = None) -> Sequence[DeviceInfo]:
    """List the devices of this machine, beginning with the one that `auto` selects; takes as long as importing torch.

    A worker is asked because only its answer is reliable: a GPU may be present without a driver, or with a torch that
    was built for another device. The worker is set aside for the next run; call this within `unused_workers_ended`.
    Raises SysbenchError if no worker can be started, and KeyboardInterrupt on Ctrl-C.
    """
    options = RunOptions()
    with closing(Sampler()) as sampler, catch_interrupts() as interrupts:
        admission = Admission(options, sampler.free_bytes)
        supervisor = Supervisor(launcher or Launcher(), sampler, admission, interrupts, options.timeout_s)
        try:
            return supervisor.devices()
        except StoppedByUserError:
            raise KeyboardInterrupt from None
        finally:
            supervisor.stop()
