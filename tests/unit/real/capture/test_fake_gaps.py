"""Where fake tensors differ from real ones and scripts notice: they do as the real ones, while they are asked to."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import rank_of  # noqa: E402
from torch import nn  # noqa: E402

from windtunnel.real.capture.fake_tensors.control_flow import Answers  # noqa: E402
from windtunnel.real.capture.fake_tensors.fake import fake_tensors  # noqa: E402
from windtunnel.real.capture.recorder.recorder import Recorder  # noqa: E402
from windtunnel.real.capture.torch_private.distributed import outside_modes  # noqa: E402

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a real GPU needs no pretended one")


@needs_no_gpu
def test_assigning_data_takes_the_device_along() -> None:
    with fake_tensors("cuda", gpus=4, local_rank=2):
        parameter = nn.Parameter(torch.randn(4, 4))
        parameter.data = parameter.data.to("cuda")
        assert parameter.device == torch.device("cuda", 2)
        assert (parameter @ torch.randn(4, 4, device="cuda")).device.index == 2


def test_a_program_does_not_recognise_fakes() -> None:
    """transformers 5 asks so, and goes another way through a model that it takes for traced."""
    real = torch._subclasses.FakeTensor
    with fake_tensors("cpu"):
        from torch._subclasses.fake_tensor import FakeTensor

        ones = torch.ones(2)
        assert not isinstance(ones, torch._subclasses.FakeTensor)
        assert not isinstance(ones, FakeTensor)
        assert isinstance(ones, real)
        assert torch.nn.functional.conv1d(torch.ones(1, 1, 8), torch.ones(1, 1, 3)).shape == (1, 1, 6)
        assert pickle.loads(pickle.dumps(ones)).shape == (2,)
    assert torch._subclasses.FakeTensor is torch._subclasses.fake_tensor.FakeTensor is real


@needs_no_gpu
def test_a_step_of_cuda_graphs_is_marked_where_pytorch_has_none() -> None:
    """`mode="reduce-overhead"` wants it of loops that keep no output; nothing is compiled here."""
    with fake_tensors("cuda"):
        layer = torch.compile(nn.Linear(4, 4, device="cuda"), mode="reduce-overhead")
        torch.compiler.cudagraph_mark_step_begin()
        assert layer(torch.ones(2, 4, device="cuda")).shape == (2, 4)


@needs_no_gpu
def test_what_is_set_on_a_parameter_stays_when_its_module_moves() -> None:
    """Megatron-LM marks shared, sharded and experts' parameters so, and asks before it sums their norms."""
    with fake_tensors("cuda"):
        layer = nn.Linear(4, 4)
        layer.weight.is_sharded = True
        layer.cuda().bfloat16()
        assert layer.weight.is_sharded
        assert not hasattr(layer.bias, "is_sharded")
        assert (layer.weight.device.type, layer.weight.dtype) == ("cuda", torch.bfloat16)


@needs_no_gpu
def test_threads_compute_beside_each_other() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with fake_tensors("cuda"), ThreadPoolExecutor(1) as pool:
            one = torch.ones(3, device="cuda")
            beside = pool.submit(lambda: [torch.stack([one, one]).sum().device.type for _ in range(200)])
            devices = [one.device.type]
            while not beside.done():
                devices += [one.device.type, torch.nn.functional.pad(one, (0, len(devices) % 9)).device.type]
    finally:
        sys.setswitchinterval(before)
    assert {*devices, *beside.result()} == {"cuda"}


def test_threads_that_make_tensors_fake_at_once_get_their_own_shapes() -> None:
    """OLMo-core asks from a thread whether the job is to stop, while its data loader pads rows."""
    with fake_tensors("cpu") as mode:
        describer = mode.fake_tensor_converter.meta_converter.describer

        class Slow(type(describer.lookup_tensor)):  # type: ignore[misc]
            def __setitem__(self, key: object, value: object) -> None:
                super().__setitem__(key, value)
                time.sleep(0.1)  # here the other thread comes

        describer.lookup_tensor = Slow()
        with outside_modes():
            real = [torch.ones(3), torch.ones(5)]

        def padded(row: torch.Tensor) -> tuple[int, ...]:
            with mode:
                return tuple(torch.nn.functional.pad(row, (0, 1)).shape)

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(padded, real)) == [(4,), (6,)]


def test_a_real_tensor_that_is_given_fake_data_becomes_fake() -> None:
    """Files are read by C and Rust, past all modes; FSDP then moves parameters and buffers by their `data`."""
    with fake_tensors("cuda"):
        layer = nn.Linear(4, 4)
        with outside_modes():
            layer.weight, numbers = nn.Parameter(torch.randn(4, 4)), torch.ones(4)
        layer.register_buffer("numbers", numbers)
        with torch.no_grad():
            for tensor in (*layer.parameters(), layer.numbers):
                tensor.data = tensor.to("cuda")
        assert {tensor.device.type for tensor in (*layer.parameters(), layer.numbers)} == {"cuda"}
        assert isinstance(layer.weight, nn.Parameter)
        (layer(torch.ones(2, 4, device="cuda")) * layer.numbers).sum().backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad.device.type == "cuda"


@pytest.mark.parametrize(("count", "reads"), [(3, 9), (5000, 2)])
def test_lists_hold_as_many_numbers_as_tensors(count: int, reads: int) -> None:
    """Few are read one by one; of many one is, and said of all."""
    with fake_tensors("cpu"), Recorder(0, 1, answers=Answers(loss=0.5)) as recorder:
        recorder.begin_step()
        assert torch.randn(count).tolist() == [0.5] * count
        assert torch.randn(2, count).tolist() == [[0.5] * count] * 2
        assert torch.arange(3).tolist() == [0, 1, 2]
        program = recorder.end_step()
    assert sum(op.kind == "sync" for op in program.ops) == reads + 3


def test_a_storage_that_was_read_becomes_a_tensor() -> None:
    """As safetensors makes one of a file that it has mapped; what is made of it has no data."""
    with outside_modes():
        storage = torch.ones(4).untyped_storage()
    with fake_tensors("cuda"):
        tensor = torch.asarray(storage[:8], dtype=torch.uint8).view(torch.float32).reshape(2, 1)
        assert tensor.shape == (2, 1)
        assert tensor.to("cuda").device.type == "cuda"


def test_a_list_of_tensors_becomes_a_tensor() -> None:
    with fake_tensors("cpu"), Recorder(0, 1, answers=Answers(loss=3.0, gradient_norm=0.5)) as recorder:
        recorder.begin_step()
        loss, norm = torch.randn(4).sum(), torch.linalg.vector_norm(torch.randn(4))
        assert torch.tensor([loss, norm]).tolist() == [3.0, 0.5]
        assert torch.tensor([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(2.0)


def test_torch_script_knows_the_function_that_makes_tensors() -> None:
    """torch.distributed.optim compiles several such functions when it is imported."""
    with fake_tensors("cpu"):
        assert torch.jit.script(doubled)(torch.randn(3)).shape == (3,)


def test_a_tensor_in_a_text_is_read() -> None:
    with fake_tensors("cpu"), Recorder(0, 1, answers=Answers(loss=3.0)) as recorder:
        recorder.begin_step()
        assert f"{torch.randn(4).sum():.2f}" == "3.00"
        with pytest.raises(TypeError):
            f"{torch.randn(4):.2f}"
        program = recorder.end_step()
    assert sum(op.kind == "sync" for op in program.ops) == 1


@needs_no_gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_cpu_is_one_whatever_its_number(device: str) -> None:
    with fake_tensors(device):  # type: ignore[arg-type]
        one = torch.ones(2, device="cpu:0") + torch.ones(2).to(torch.device("cpu", 0)) + torch.ones(2)
        assert one.device == torch.device("cpu")


@needs_no_gpu
def test_tensors_from_numbers_are_on_the_current_gpu() -> None:
    with fake_tensors("cuda", gpus=4, local_rank=3):
        assert torch.tensor([1.0, 2.0], device="cuda").device.index == 3


def test_copies_have_storages_values_and_gradients_of_their_own() -> None:
    with fake_tensors("cpu"):
        layer = nn.Linear(3, 2)
        layer(torch.randn(4, 3)).sum().backward()
        layer.register_buffer("count", torch.tensor(7))
        twin = copy.deepcopy(layer)
        assert isinstance(twin.weight, nn.Parameter)
        assert twin.weight.untyped_storage()._cdata != layer.weight.untyped_storage()._cdata
        assert twin.weight.grad is not None
        assert twin.weight.grad is not layer.weight.grad
        assert twin.count.item() == 7
        with pytest.raises(RuntimeError, match="created explicitly"):
            copy.deepcopy(layer(torch.randn(4, 3)))


def test_factories_that_a_script_replaces_are_not_those_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """nanotron builds its model with every `torch.empty` on the GPU in bfloat16."""
    with fake_tensors("cuda", gpus=1), monkeypatch.context() as replaced:
        everywhere = {"device": "cuda", "dtype": torch.bfloat16}
        for name in ("empty", "zeros", "ones", "full"):
            make = functools.partial(
                lambda make, *args, **named: make(*args, **named | everywhere), getattr(torch, name)
            )
            replaced.setattr(torch, name, make)
        counts = torch.arange(0, 8, 2, dtype=torch.int64, device="cuda")
        assert (counts.dtype, counts.shape, torch.arange(3.0, device="cpu").device.type) == (torch.int64, (4,), "cpu")
        assert torch.linspace(0, 1, 5).dtype == torch.float32
        weight = torch.empty(2, 2)
        assert (weight.device.type, weight.dtype) == ("cuda", torch.bfloat16)
        part = torch.tensor(0.0).set_(Shard(weight).untyped_storage()[:4])
        assert (part.shape, part.dtype, part.device.type) == ((1,), torch.float32, "cuda")


class Shard(torch.nn.Parameter):  # type: ignore[misc]
    def __new__(cls, data: Any, requires_grad: bool = True) -> Any:
        made = super().__new__(cls, data, requires_grad)
        made.of = getattr(data, "of", "nobody")
        return made

    def __init__(self, _data: Any, requires_grad: bool = True) -> None:
        super().__init__()
        self.asked = requires_grad

    def mark(self, of: str) -> Any:
        self.of = of
        return self


class Slotted(torch.nn.Parameter):  # type: ignore[misc]
    __slots__ = ("at",)


def test_a_class_of_parameters_stays_one() -> None:
    with fake_tensors("cuda", gpus=1):
        model = torch.nn.Linear(4, 4, bias=False, device="cuda")
        model.weight = Shard(model.weight).mark("me")
        other = copy.deepcopy(model)
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        torch.optim.AdamW(model.parameters()).step()
        for one in (model, other.to(torch.bfloat16)):
            (held,) = one.parameters()
            assert (type(held).__name__, isinstance(held, Shard), held.device.type) == ("Shard", True, "cuda")
        assert (model.weight.grad.shape, model.weight.of, model.weight.asked) == ((4, 4), "me", True)
        assert type(model.weight * 2) is type(torch.ones(1))
        part = model.weight[:2].as_subclass(Slotted)
        part.at = 3
        assert (type(part).__name__, isinstance(part, Slotted), part.at, part.shape) == ("Slotted", True, 3, (2, 4))
        part.sum().backward()
        assert model.weight.grad.shape == (4, 4)
    assert type(Shard(torch.ones(1))) is Shard


def test_a_part_of_a_storage_is_a_view_on_its_device() -> None:
    with fake_tensors("cuda", gpus=1):
        whole = torch.zeros(12, device="cuda")
        storage = whole.untyped_storage()
        for source, shape, offset in ((storage[16:48][0:16], (4,), 4), (storage, (12,), 0)):
            tensor = torch.empty([], dtype=torch.float, device=storage.device)
            tensor.set_(source=source)
            assert (tensor.device, tensor.shape, tensor.storage_offset()) == (whole.device, shape, offset)
            assert tensor.untyped_storage()._cdata == storage._cdata
            assert (tensor.view(2, -1) + whole[:1]).device.type == "cuda"
        tensor.set_(storage, 2, (2, 3))
        assert (tensor.shape, tensor.stride(), tensor.storage_offset()) == ((2, 3), (3, 1), 2)
        with pytest.raises(RuntimeError, match="step"):
            storage[::2]
    whole = torch.zeros(6)
    parts = [torch.empty(0).set_(whole.untyped_storage(), at, (2,)) for at in (2, 0)]  # no views of it
    with fake_tensors("cpu"):
        assert [(part + 1).shape for part in parts] == [(2,), (2,)]  # torch sets the second's storage to the first's


def test_addresses_tell_storages_and_places_in_them_apart() -> None:
    with fake_tensors("cpu"):
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        assert x.data_ptr() != y.data_ptr()
        assert x.view(2, 8).data_ptr() == x.data_ptr()
        assert x[1].data_ptr() - x.data_ptr() == 16
        assert torch.randn(0, 4).data_ptr() == 0


@needs_no_gpu
def test_the_state_of_a_generator_may_be_one_that_was_sent_round() -> None:
    before = torch.Generator
    with fake_tensors("cuda", gpus=1):
        mine = torch.Generator()
        sent = mine.get_state().cuda()
        mine.set_state(sent.cpu())
        torch.set_rng_state(torch.get_rng_state())
        assert isinstance(torch.default_generator, torch.Generator)
        assert torch.randperm(4, generator=mine).shape == (4,)
    assert torch.Generator is before


def test_a_loaded_parameter_that_was_moved_has_an_address_too() -> None:
    loaded = nn.Parameter(torch.ones(3))
    before = loaded.data_ptr()
    with fake_tensors("cuda", gpus=1):
        assert loaded.data_ptr() == before  # real, as the library that reads a file makes it
        loaded.data = torch.ones(3, device="cuda")
        assert loaded.data_ptr() not in (0, before, torch.ones(3, device="cuda").data_ptr())


def test_a_pickled_tensor_comes_back_with_its_shape_and_its_number() -> None:
    with fake_tensors("cuda", gpus=1):
        given = [torch.randn(3, 4, device="cuda").t(), nn.Parameter(torch.ones(2)), torch.tensor(7)]
        matrix, parameter, number = pickle.loads(pickle.dumps(given))
        assert (matrix.shape, matrix.stride(), matrix.device.type) == ((4, 3), (1, 4), "cuda")
        assert isinstance(parameter, nn.Parameter)
        assert int(number) == 7


def test_a_pickle_of_real_tensors_is_on_their_device() -> None:
    """A data set that was kept in a file: batches that are put together of it are recorded."""
    kept = pickle.dumps([torch.arange(6).view(2, 3), nn.Parameter(torch.ones(2)), torch.ones(3, dtype=torch.bool)])
    with fake_tensors("cpu"), Recorder(0, 1, device="cpu") as recorder:
        numbers, parameter, flags = pickle.loads(kept)
        assert [t.device.type for t in (numbers, parameter, flags)] == ["cpu"] * 3
        assert isinstance(parameter, nn.Parameter)
        padded = nn.utils.rnn.pad_sequence([numbers[0], numbers[1]], batch_first=True)
        assert (padded.shape, padded.dtype) == ((2, 3), torch.int64)
    assert [row[0] for row in recorder.rows.rows] == ["aten.full", "aten.copy_", "aten.copy_"]


@pytest.mark.parametrize("option", ["find_unused_parameters", "static_graph"])
def test_ddp_that_looks_for_unused_parameters_steps(option: str) -> None:
    with rank_of(4, 1, fake="cuda") as world, Recorder(1, 4, world) as recorder:
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).cuda(), **{option: True})
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(torch.randn(2, 4, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    calls = [op.communication.kind for op in recorder.program.ops if op.communication]
    assert "all_reduce" in calls


@needs_no_gpu
@pytest.mark.parametrize("used_later", [False, True])
def test_ddp_that_finds_parameters_unused_leaves_their_gradients(used_later: bool) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.seldom = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
            return self.always(x) + (self.seldom(x) if both else 0)

    with rank_of(4, 1, fake="cuda") as world, Recorder(1, 4, world):
        model = nn.parallel.DistributedDataParallel(Two().cuda(), find_unused_parameters=True)
        for step in range(3):
            model.zero_grad()
            model(torch.randn(2, 4, device="cuda"), used_later and step == 1).sum().backward()
            assert model.module.always.weight.grad is not None
            assert (model.module.seldom.weight.grad is not None) == (used_later and step == 1)


@needs_no_gpu
def test_dropout_of_a_dtensor_draws_without_a_generator() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    with rank_of(8, 5, fake="cuda") as world, Recorder(5, 8, world):
        mesh = init_device_mesh("cuda", (8,))
        whole = distribute_tensor(torch.randn(16, 4, device="cuda"), mesh, [Shard(0)])
        assert nn.functional.dropout(whole, 0.5).to_local().shape == (2, 4)


def test_all_is_put_back() -> None:
    before = torch.tensor, torch.Tensor.tolist, torch.Tensor.data_ptr, torch.Tensor.__deepcopy__
    with fake_tensors("cpu"):
        pass
    assert before == (torch.tensor, torch.Tensor.tolist, torch.Tensor.data_ptr, torch.Tensor.__deepcopy__)
    assert torch.randn(3).tolist() != [0.0] * 3


def _synchronised(model: Any) -> Any:
    return torch.nn.parallel.DistributedDataParallel(torch.nn.SyncBatchNorm.convert_sync_batchnorm(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_has_no_fake_form_in_torch_runs_on_pretended_gpus(dtype: Any) -> None:
    """SyncBatchNorm exchanges its statistics and counts, forwards and backwards; fused SGD and Adagrad step."""
    with rank_of(4, 1, fake="cuda") as world, Recorder(1, 4, world) as recorder:
        layers = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        model = _synchronised(layers.cuda())
        for make in (torch.optim.SGD, torch.optim.Adagrad):
            optimizer = make(model.parameters(), lr=0.1, fused=True)
            with torch.autocast("cuda", dtype=dtype, enabled=dtype is not torch.float32):
                out = model(torch.randn(2, 3, 16, 16, device="cuda"))
            assert out.shape == (2, 8, 14, 14)
            out.float().sum().backward()
            assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
            optimizer.step()
    ops = [op.name for op in recorder.program.ops]
    for name in ("batch_norm_gather_stats_with_counts", "batch_norm_backward_elemt", "_fused_adagrad_"):
        assert any(name in op for op in ops)
    assert sum(op.communication is not None for op in recorder.program.ops) >= 3


def test_who_saves_finds_which_tensors_share_memory() -> None:
    """As safetensors asks; a fake storage has no address of its own."""
    with fake_tensors("cpu"):
        one, other = torch.zeros(4), torch.zeros(4)
        address = one.untyped_storage().data_ptr()
        assert address == one[1:].untyped_storage().data_ptr() != 0
        assert other.untyped_storage().data_ptr() not in (0, address)
        assert torch.zeros(0).untyped_storage().data_ptr() == 0


def test_a_parameter_is_made_by_the_class_of_another() -> None:
    """As accelerate puts what it loads in place of a parameter without data."""
    with fake_tensors("cuda"):
        layer = torch.nn.Linear(4, 8, device="meta")
        made = type(layer.weight)(torch.ones(8, 4), requires_grad=False)
        layer._parameters["weight"] = made.to("cuda")
        assert isinstance(made, torch.nn.Parameter)
        assert (layer.weight.device.type, layer.weight.shape, made.requires_grad) == ("cuda", (8, 4), False)


@needs_no_gpu
def test_what_a_thread_puts_on_a_pretended_gpu_is_fake_there() -> None:
    def load() -> list[Any]:
        on_host = torch.ones(3)
        return [on_host, on_host.to("cuda:1", torch.bfloat16), torch.zeros(2, device="cuda")]

    with fake_tensors("cuda", gpus=2), ThreadPoolExecutor(1) as pool:
        made = pool.submit(load).result()
        assert [(str(one.device), one.dtype, one.numel()) for one in made] == [
            ("cpu", torch.float32, 3),
            ("cuda:1", torch.bfloat16, 3),
            ("cuda:0", torch.float32, 2),
        ]
        assert (made[1] + 1).device == made[1].device
    assert torch.equal(made[0], torch.ones(3))  # as before: a thread reads what it has
