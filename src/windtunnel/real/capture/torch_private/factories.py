"""PyTorch's factories as they are when this is imported: a script may put its own in their place (DeepSpeed does).

Call them with `device="cpu"`: a script may set another default device.
"""

from __future__ import annotations

import torch

empty, empty_strided, full, tensor, zeros = torch.empty, torch.empty_strided, torch.full, torch.tensor, torch.zeros
