"""An encoder of images or of sound beside a text model: a model of its own, and what makes tokens of its patches."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.physics.model.architecture import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """An encoder of images or of sound beside a text model, and what makes tokens of its patches.

    `encoder`: its layers; `more_weights` are the product that takes a patch in. `patches`: of an image at the config's
    size (of a clip: rows that layers see), 0 where images come in any; `registers`: rows that the encoder adds to an
    image's own. `merge`: patches that become one token. `projector`: inputs and outputs of each product over such a
    token, `projector_more`: what else is learned there.
    """

    encoder: Model
    patches: int
    registers: int
    merge: int
    projector: tuple[tuple[int, int], ...]
    projector_more: int

    @property
    def projector_parameters(self) -> int:
        """Parameters of what makes tokens of patches."""
        return sum(k * n for k, n in self.projector) + self.projector_more

    @property
    def parameters(self) -> int:
        """All parameters of the tower."""
        return self.encoder.parameters + self.projector_parameters

    def forward_flops(self, patches: int) -> tuple[float, float]:
        """Model FLOPs of one image's forward pass: of the encoder, and of the projector."""
        rows = patches + self.registers
        joined = 2.0 * patches / self.merge * sum(k * n for k, n in self.projector)
        return rows * self.encoder.forward_flops_per_token(rows, "full"), joined
