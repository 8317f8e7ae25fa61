"""What `nvidia-smi` printed, as a cluster: its table, `nvidia-smi -L`, or its CSV with a column `name`."""

from __future__ import annotations

import re
from collections import Counter

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import read_text

GIVE = "give a cluster file in YAML, what nvidia-smi printed, or name:count"
BYTES_MOST = 1 << 20
LINE = re.compile(r"^GPU \d+: (.+?) \(UUID", re.MULTILINE)
ROW = re.compile(r"^\|\s+\d+\s+((?:NVIDIA|Tesla|Quadro)\b.*?)\s+(?:On|Off|N/A)\s*\|", re.MULTILINE)


def listed_gpus(path: str) -> str:
    """`NAME:COUNT` of the GPUs that a file lists; "" for a file that is not nvidia-smi's. Raises InputFileError."""
    text = read_text(path, GIVE, BYTES_MOST)
    names = LINE.findall(text) or ROW.findall(text) or _column(text)
    if not names:
        return ""
    counts = Counter(name.strip() for name in names)
    if len(counts) > 1:
        said = " and ".join(f"{count} x {name}" for name, count in counts.items())
        raise InputFileError(path, f"lists {said}", "mixed GPUs are said as NAME:COUNT+NAME:COUNT")
    ((name, count),) = counts.items()
    return f"{name}:{count}"


def _column(text: str) -> list[str]:
    """Of `--query-gpu=name,... --format=csv`; a device that is listed each second counts once."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]  # it quotes nothing
    if not rows or "name" not in rows[0]:
        return []
    at = rows[0].index("name")
    ids = next(
        (rows[0].index(one) for one in ("pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid", "index") if one in rows[0]),
        None,
    )
    whole = [row for row in rows[1:] if len(row) == len(rows[0])]
    seen = {row[ids]: row[at] for row in whole} if ids is not None else dict(enumerate(row[at] for row in whole))
    return list(seen.values())
