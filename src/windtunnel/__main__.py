"""`python -m windtunnel`, for where the script is not on the path."""

from __future__ import annotations

import sys

from windtunnel.faces.cli import main

sys.exit(main())
