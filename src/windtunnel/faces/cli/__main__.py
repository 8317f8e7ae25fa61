"""`python -m windtunnel.faces.cli`, for where the script is not on the path."""

from __future__ import annotations

import sys

from windtunnel.faces.cli.app import main

sys.exit(main())
