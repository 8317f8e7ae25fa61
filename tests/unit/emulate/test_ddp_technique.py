"""Which techniques `windtunnel run` puts into a script, and what it says of the others."""

from __future__ import annotations

import pytest

from windtunnel.emulate.ddp_technique import checked
from windtunnel.errors import UserError


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["lina"], "run applies collective_partitioning and sparse_gradients"),
        (["offload:window=2"], "called in the script itself"),
        (["sparse_gradients", "centauri"], "one communication hook"),
        (["sparse_gradients", "dgc"], "given twice"),
        (["centauri:pieces=4"], "chunked linears"),
        (["sparse_gradients:ration=1"], "ration"),
        (["speed"], "speed"),
    ],
)
def test_what_cannot_be_put_into_a_script_is_one_message(texts: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        checked(texts)


def test_what_can() -> None:
    checked([])
    checked(["sparse_gradients:ratio=0.01"])
    checked(["centauri:group=true"])
