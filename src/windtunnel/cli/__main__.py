"""`python -m windtunnel.cli`, for where the script is not on the path."""

from __future__ import annotations

import sys

from windtunnel.cli.app import main

sys.exit(main())
