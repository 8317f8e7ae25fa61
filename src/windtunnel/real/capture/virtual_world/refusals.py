"""What the virtual world refuses, each with what to do about it."""

from __future__ import annotations

from windtunnel.errors import UserError


class WorldError(UserError):
    """The script, or the process it runs in, contradicts the world that it was started as a rank of."""


class UntriedTorchError(UserError):
    """A version of PyTorch whose internals were not looked at."""


class UnsupportedCommunicationError(UserError):
    """A part of `torch.distributed` that has no virtual counterpart."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        super().__init__(f"{what} is not supported among virtual peers; {remedy}")


class NoPeerError(UserError):
    """This rank waits for data that only a peer has, and that peer does not run."""

    def __init__(self, what: str, peer: int, why: str) -> None:
        self.what, self.peer, self.why = what, peer, why
        super().__init__(
            f"{what} needs what rank {peer} would have sent, and {why}; "
            f"run rank {peer} as well (windtunnel capture does so for every stage), or leave this message out"
        )
