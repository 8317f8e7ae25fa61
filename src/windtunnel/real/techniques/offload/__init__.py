"""A working window of layers on the device: pricing in `window` and `price`, the real twins in `hosted` (and `sharded`)
and `windowed`.

from windtunnel.real.techniques import offload

model = offload.apply(model, window=2)    # in the user's own loop; DistributedDataParallel(model) afterwards

windowed = offload.apply(model, lambda parameters: torch.optim.Adam(parameters, lr=1e-3), window="auto",
                         device_memory="8 GiB")
loss(model(batch)).backward()
windowed.step()

With `process_group=dist.group.WORLD` the ranks' gradients are averaged, in place of DistributedDataParallel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.real.techniques.offload.entry import apply
    from windtunnel.real.techniques.offload.windowed import LayerWindow

__all__ = ["LayerWindow", "apply"]
__getattr__ = lazily(__name__, {"LayerWindow": "windowed", "apply": "entry"})
