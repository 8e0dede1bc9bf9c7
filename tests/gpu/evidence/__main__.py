"""`python -m tests.gpu.evidence [--out DIRECTORY] [--minutes 8] [--only PART ...] [--rehearse] [--plan]`."""

from __future__ import annotations

import sys

from tests.gpu.evidence.requirements import missing


def main() -> int:
    lacking = missing()
    if lacking:
        print(f"not installed here: {', '.join(lacking)}", file=sys.stderr)
        return 2
    from tests.gpu.evidence import session  # which needs some of these

    return session.main()


if __name__ == "__main__":
    sys.exit(main())
