"""A working window of layers on the device, in `hosted` (and `sharded`) and `windowed`; priced in `studies.techniques`.

docs/techniques/offload.md shows how they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.real.techniques.offload.entry import apply
    from windtunnel.real.techniques.offload.windowed import LayerWindow

__all__ = ["LayerWindow", "apply"]
__getattr__ = lazily(__name__, {"LayerWindow": "windowed", "apply": "entry"})
