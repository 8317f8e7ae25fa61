"""`python -m windtunnel.survive`: the launcher of `windtunnel.real.survive`, under the name that people type."""

from __future__ import annotations

if __name__ == "__main__":
    import sys

    from windtunnel.real.survive.__main__ import main

    sys.exit(main())
