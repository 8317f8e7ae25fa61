"""What the recorder writes down on one process: alike on real and on fake tensors, and without a trace in the run."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import Decoder, batch, loss_of, recorded, train  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode, flop_registry  # noqa: E402

from windtunnel.real.capture.fake_tensors.control_flow import Answers  # noqa: E402
from windtunnel.real.capture.recorder.recorder import Recorder  # noqa: E402
from windtunnel.studies.programs.program import RankProgram  # noqa: E402


def decoder(checkpointed: bool = False) -> Decoder:
    torch.manual_seed(0)
    model = Decoder()
    if checkpointed:
        for i, layer in enumerate(model.layers):
            model.layers[i] = checkpoint_wrapper(layer)
    return model


@pytest.mark.parametrize("checkpointed", [False, True])
def test_fake_tensors_give_the_ops_of_the_real_run(checkpointed: bool) -> None:
    def job(device: str) -> None:
        train(decoder(checkpointed), clip=True)

    real, fake = recorded(job).program, recorded(job, fake="cpu").program
    assert len(real.ops) > 200
    assert real.ops == fake.ops
    assert real.memory == fake.memory
    assert real.resident == fake.resident


def test_views_that_are_written_in_place_go_back_as_on_plain_tensors() -> None:
    def job(device: str) -> None:
        weight = torch.nn.Parameter(torch.ones(4, 6, device=device))
        optimizer = torch.optim.SGD([weight], 0.1)
        mask = torch.ones(1, 2, 6, 6, dtype=torch.bool, device=device).triu(1)
        for _ in range(2):
            scores = (torch.ones(12, 4, device=device) @ weight).view(1, 2, 6, 6)  # as attention of Megatron-LM
            scores.masked_fill_(mask, -10000.0)
            turned = (weight * 2).t()
            turned.mul_(3).add_(1)
            with torch.no_grad():
                weight.view(-1).mul_(0.5)
            (scores.softmax(-1).sum() + turned.sin().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()

    real, fake = recorded(job).program, recorded(job, fake="cpu").program
    assert Counter(op.name for op in real.ops)["aten.new_zeros"] == 2
    assert real.ops == fake.ops
    assert real.memory == fake.memory


def test_a_thread_reads_what_it_is_told() -> None:
    def job(device: str) -> None:
        lost = torch.ones(3, device=device).sum()
        with ThreadPoolExecutor(1) as pool:
            told.append(pool.submit(lost.item).result())
        lost = torch.randn(3, device=device).sum()
        with ThreadPoolExecutor(1) as pool:
            told.append(pool.submit(float, lost).result())

    told: list[float] = []
    recorded(job, fake="cpu", answers=Answers(loss=1.5))
    assert told == [3.0, 1.5]


def test_recording_leaves_the_run_as_it_was() -> None:
    def losses(device: str) -> None:
        seen.append(train(decoder(), 3, clip=True))

    seen: list[list[float]] = []
    losses("cpu")
    recorded(losses)
    assert seen[0] == seen[1]


def test_flops_are_those_of_pytorchs_counter() -> None:
    model = decoder()
    with FlopCounterMode(display=False) as counter:
        tokens = batch()
        loss_of(model(tokens), tokens).backward()
    forward_and_backward = [op for op in recorded(lambda _: train(model)).program.ops if op.phase != "optimizer"]
    counted = sum(op.flops for op in forward_and_backward)
    # the attention kernel of the CPU is one of those that PyTorch's registry lacks, before 2.15
    attention = sum(op.flops for op in forward_and_backward if "for_cpu" in op.name)
    assert attention > 0
    is_counted = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu in flop_registry
    assert counted - (0 if is_counted else attention) == counter.get_total_flops()


def test_a_backward_op_is_of_the_module_whose_forward_it_undoes() -> None:
    ops = recorded(lambda _: train(decoder())).program.ops
    products = [op for op in ops if op.name == "aten.mm"]
    forward = Counter(op.module for op in products if op.phase == "forward")
    backward = Counter(op.module for op in products if op.phase == "backward")
    assert forward["layers.1.attention.wq"] == 1
    assert backward == {module: 2 * count for module, count in forward.items()}
    assert all(op.phase == "optimizer" for op in ops if "addcdiv" in op.name)


def test_zero_bubble_halves_of_a_backward_keep_their_modules() -> None:
    model = decoder()

    def job(_: str) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parameters = list(model.parameters())
        for _ in range(2):
            tokens = batch()
            hidden = model.embedding(tokens).detach().requires_grad_()
            out = model.layers[0](hidden)
            torch.autograd.grad(out.sum(), hidden, retain_graph=True)
            gradients = torch.autograd.grad(out.sum(), list(model.layers[0].parameters()))
            for p, g in zip(model.layers[0].parameters(), gradients, strict=True):
                p.grad = g
            optimizer.step()
            optimizer.zero_grad()
        del parameters

    ops = recorded(job).program.ops
    modules = {op.module for op in ops if op.phase == "backward" and op.name == "aten.mm"}
    assert {"attention.wq", "up", "down"} <= {m.removeprefix("layers.0.") for m in modules}


def test_what_a_checkpoint_repeats_is_marked_and_equals_the_forward_pass() -> None:
    ops = recorded(lambda _: train(decoder(checkpointed=True))).program.ops
    again = [op for op in ops if op.recompute]
    inside = [op for op in ops if op.phase == "forward" and op.module.startswith("layers.")]
    assert {op.phase for op in again} == {"backward"}
    assert Counter((op.name, op.module) for op in again) <= Counter((op.name, op.module) for op in inside)
    assert len(again) > 0.8 * len(inside)  # it stops early: the last output is not needed
    assert not any(op.recompute for op in recorded(lambda _: train(decoder())).program.ops)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_function_without_modules_is_repeated_too(reentrant: bool) -> None:
    weight = torch.nn.Parameter(torch.randn(8, 8))

    def job(_: str) -> None:
        optimizer = torch.optim.SGD([weight], lr=0.1)
        x = torch.randn(4, 8, requires_grad=True)
        recorder.begin_step()
        checkpoint(lambda t: torch.tanh(t @ weight).sum(), x, use_reentrant=reentrant).backward()
        optimizer.step()
        programs.append(recorder.end_step())

    programs: list[Any] = []
    with Recorder(0, 1) as recorder:
        job("cpu")
    assert "aten.mm" in {op.name for op in programs[0].ops if op.recompute}
    assert "aten.tanh_backward" not in {op.name for op in programs[0].ops if op.recompute}


def test_micro_batches_are_counted_and_carried_into_backward() -> None:
    ops = recorded(lambda _: train(decoder(), accumulate=3)).program.ops
    for phase in ("forward", "backward"):
        counts = Counter(op.micro_batch for op in ops if op.phase == phase and op.name == "aten.mm")
        assert set(counts) == {0, 1, 2}
        assert len(set(counts.values())) == 1


def test_several_optimizers_make_one_step() -> None:
    def job(_: str) -> None:
        model = decoder()
        halves = [list(model.layers.parameters()), [*model.embedding.parameters(), *model.head.parameters()]]
        optimizers = [torch.optim.SGD(part, lr=0.1) for part in halves]
        for _ in range(3):
            tokens = batch()
            loss_of(model(tokens), tokens).backward()
            for optimizer in optimizers:
                optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad()

    seen = []
    recorder = recorded(job, keep="all", on_step=seen.append)
    assert len(recorder.programs) == len(seen) == 3
    steady = recorder.programs[1].ops
    assert steady == recorder.programs[2].ops
    assert sum(op.phase == "optimizer" for op in steady) >= 2


def test_an_optimizer_that_steps_before_the_first_forward_pass_makes_no_step() -> None:
    """Loading a checkpoint makes the state of optimizers by stepping them; two that step are one step as before."""

    def steps(made: bool) -> list[int]:
        told.clear()
        with Recorder(0, 1, keep="all", first=3, on_step=told.append) as recorder:
            layers = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]
            optimizers = [torch.optim.SGD(layer.parameters(), momentum=0.9) for layer in layers]
            for layer, optimizer in zip(layers, optimizers, strict=True):
                for parameter in layer.parameters() if made else ():
                    parameter.grad = torch.zeros_like(parameter)
                    optimizer.step()
                optimizer.zero_grad()
            for _ in range(3):
                layers[1](layers[0](torch.ones(4, 8))).sum().backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        assert [len(program.ops) for program in told] == [len(program.ops) for program in recorder.programs]
        return [sum(op.phase == "backward" for op in program.ops) for program in recorder.programs]

    told: list[RankProgram] = []
    assert len(steps(True)) == 1
    assert steps(True) == steps(False)


def test_an_optimizer_written_by_hand_makes_steps_of_all_its_micro_batches() -> None:
    model = decoder()

    def job(device: str) -> None:
        for _ in range(3):
            for _ in range(2):
                tokens = batch()
                loss_of(model(tokens), tokens).backward()
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.1)
                parameter.grad = None

    recorder = recorded(job)
    assert recorder.steps == 3
    ops = recorder.program.ops
    assert {op.micro_batch for op in ops if op.phase == "backward"} == {0, 1}
    assert ops[-1].name == "aten.add_"
    assert recorder.program.facts["parameters"] == sum(p.numel() for p in model.parameters())


def test_a_wrapper_of_an_optimizer_that_is_no_whole_optimizer_itself_steps_by_the_one_it_holds() -> None:
    model = decoder()

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner  # and nothing of the class above

        def step(self, closure: None = None) -> None:
            self.inner.step()

    def job(device: str) -> None:
        optimizer = Wrapper(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            tokens = batch()
            loss_of(model(tokens), tokens).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.999)
            optimizer.step()
            model.zero_grad()

    assert recorded(job).steps == 3


def test_on_step_may_end_the_script() -> None:
    class Enough(BaseException):
        pass

    def stop(program: Any) -> None:
        if program.facts["step"] == 1:
            raise Enough

    with pytest.raises(Enough):
        recorded(lambda _: train(decoder(), 50), on_step=stop)


def test_a_read_depends_on_the_last_writer_through_views_and_in_place() -> None:
    with Recorder(0, 1) as recorder:
        recorder.begin_step()
        x = torch.ones(4, 4)
        x[0].view(2, 2).add_(1.0)  # through two views
        y = x.t() * 2
        torch.mul(y, 3, out=x)
        z = x + y
        program = recorder.end_step()
    names = [op.name for op in program.ops]
    assert names == ["aten.ones", "aten.add_", "aten.mul", "aten.mul", "aten.add"]
    assert [op.after for op in program.ops] == [(), (0,), (1,), (1, 2), (2, 3)]
    assert z.shape == (4, 4)


def test_answers_are_told_and_listed_with_the_line() -> None:
    def job(device: str) -> None:
        model = decoder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = batch()
        loss = loss_of(model(tokens), tokens)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        told.extend((loss.item(), norm.item(), bool(torch.isfinite(loss)), bool(torch.isnan(loss).any())))
        told.append(torch.tensor(7).item())
        optimizer.step()

    told: list[Any] = []
    program = recorded(job, fake="cpu", answers=Answers(loss=9.5, gradient_norm=0.25)).program
    assert told == [9.5, 0.25, True, False, 7]  # what is known is not made up
    assert [answer.told for answer in program.answers] == ["9.5", "0.25", "True", "False"]
    assert all("test_recorder.py:" in answer.where for answer in program.answers)


def test_bytes_of_lookups_are_those_of_the_rows() -> None:
    with Recorder(0, 1) as recorder:
        recorder.begin_step()
        table = torch.zeros(1000, 8)
        table[torch.tensor([1, 2, 3])]
        torch.nn.functional.embedding(torch.tensor([[4, 5]]), table)
        table.copy_(torch.ones(1000, 8))
        program = recorder.end_step()
    moved = {op.name: (op.bytes_read, op.bytes_written) for op in program.ops}
    assert moved["aten.index"] == (3 * 8 * 4 + 3 * 8, 3 * 8 * 4)
    assert moved["aten.embedding"] == (2 * 8 * 4 + 2 * 8, 2 * 8 * 4)
    assert moved["aten.copy_"] == (32000, 32000)
