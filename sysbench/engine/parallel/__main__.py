"""`python -m sysbench.engine.parallel SHARD DIRECTORY PARENT`: runs the shard in a file.

The log of the shard is written to the directory. PARENT is the ID of the process that started this one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sysbench import bootstrap
from sysbench.engine import session
from sysbench.engine.parallel.pools import Shard, run_shard
from sysbench.errors import SysbenchError


def main() -> None:
    """Run the shard, and exit with the error message if that fails."""
    shard, directory, parent = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    bootstrap.exit_with_parent()
    if os.getppid() != parent:
        return  # the parent ended before this process could ask to be killed with it
    try:
        run_shard(Shard.model_validate_json(shard.read_bytes()), directory, session.run)
    except SysbenchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
