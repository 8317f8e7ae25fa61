"""Which techniques `windtunnel run` puts into a script, and what it says of the others."""

from __future__ import annotations

import pytest

from windtunnel.errors import LayoutError, UserError
from windtunnel.real.capture.arguments import Launch
from windtunnel.real.emulate.ddp_technique import applied, checked, none_behind_the_script
from windtunnel.real.emulate.run import Emulation, emulate_ranks


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["lina"], "run applies collective_partitioning and sparse_gradients"),
        (["offload:window=2"], "called in the script itself, from windtunnel.real.techniques$"),
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


@pytest.mark.parametrize("words", [("--technique", "sparse_gradients:ratio=0.01"), ("--technique=Centauri",)])
def test_a_technique_behind_the_script_is_not_left_out_without_a_word(words: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="before the script"):
        none_behind_the_script(("--config", "x", *words, "--more"))


def test_a_script_may_have_techniques_of_its_own() -> None:
    none_behind_the_script(())
    none_behind_the_script(("--technique", "beam-search", "--techniques", "sparse_gradients", "--technique"))


def test_a_run_without_torch_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.real.emulate.run.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"run needs PyTorch; install it with: pip install 'windtunnel\[torch\]'"):
        emulate_ranks(Emulation(Launch("train.py", (), False, 2, 2), 0, "h100-sxm:2"))


@pytest.mark.extras
def test_a_script_without_a_place_for_it_is_refused_at_its_first_step() -> None:
    torch = pytest.importorskip("torch")
    init = torch.nn.parallel.DistributedDataParallel.__init__
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
    with pytest.raises(LayoutError, match="no DistributedDataParallel"), applied("sparse_gradients", 1):
        optimizer.step()
    with pytest.raises(LayoutError, match="no DistributedDataParallel"), applied("sparse_gradients", 1):
        pass
    optimizer.step()  # as before
    assert torch.nn.parallel.DistributedDataParallel.__init__ is init
