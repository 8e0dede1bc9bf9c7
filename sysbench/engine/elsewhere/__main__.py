"""`python -m sysbench.engine.elsewhere SHARE DIRECTORY PARENT`: runs the share in a file.

The log of the share is written to the directory. PARENT is the ID of the process that started this one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sysbench import bootstrap
from sysbench.engine import session
from sysbench.engine.elsewhere.share import Share, carried_out
from sysbench.errors import SysbenchError


def main() -> None:
    """Run the share, and exit with the error message if that fails."""
    share, directory, parent = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    bootstrap.exit_with_parent()
    if os.getppid() != parent:
        return  # the parent ended before this process could ask to be killed with it
    try:
        carried_out(Share.model_validate_json(share.read_bytes()), directory, session.run)
    except SysbenchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
