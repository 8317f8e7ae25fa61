"""What several laws share (`small_jobs`) is imported by its own name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
