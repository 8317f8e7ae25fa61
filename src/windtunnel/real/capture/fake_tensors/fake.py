"""Tensors without data for a whole script: shapes, dtypes and devices are real, numbers are not computed.

with fake_tensors("cuda", gpus=8, local_rank=3):
    ...         # torch.randn(4, 4, device="cuda") costs no memory and no GPU
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from windtunnel.real.capture.fake_tensors.pretended_gpu import PretendedGpu


@contextmanager
def fake_tensors(
    device: Literal["cuda", "cpu"] = "cuda",
    *,
    gpu: PretendedGpu | None = None,
    gpus: int = 8,
    local_rank: int = 0,
    note: Callable[[str], None] = lambda text: None,
    missing: Sequence[str] = (),
) -> Iterator[FakeTensorMode]:
    """Every tensor made inside is fake; "cuda" pretends `gpus` GPUs as well, of which `local_rank` is the current one.

    `note` is told of kernels that are taken for others, such as those of packages that are `missing`. `torch.compile`
    runs as eager code inside: its graphs would be compiled for shapes, not for a device.
    Yields PyTorch's fake-tensor mode.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    from windtunnel.real.capture.fake_tensors.pretend_cuda import pretend_cuda
    from windtunnel.real.capture.torch_private import fake_gaps as gaps
    from windtunnel.real.capture.torch_private import fakes as compat
    from windtunnel.real.capture.torch_private.addresses import addresses_looked_at
    from windtunnel.real.capture.torch_private.flex import compiler_rules_kept, flex_attention_in_one_op
    from windtunnel.real.capture.torch_private.missing_fakes import register_missing_fakes
    from windtunnel.real.capture.torch_private.nested import ragged_sizes, strided_as_jagged
    from windtunnel.real.capture.torch_private.stand_ins import stand_ins
    from windtunnel.real.capture.torch_private.triton import kernel_op, triton_kernels_in_one_op

    with ExitStack() as stack:
        stack.enter_context(compiler_rules_kept())
        register_missing_fakes()
        FakeTensorMode.cache_clear()  # for the process; "cuda" may have meant another device before
        if device == "cuda":
            cuda = stack.enter_context(pretend_cuda(gpu, count=gpus, device=local_rank))
            cuda.watch_device(lambda _: FakeTensorMode.cache_clear())
        for prepared in (
            *(compat.eager_compile, compat.uncompiled_internals, compat.numpy_of_fakes, compat.swappable_fakes),
            *(compat.multi_tensor_optimizers, compat.collectives_as_in_a_run),
            *(compat.kernels_of_each_thread, compat.tensors_numbered_in_turn, compat.unrecognised_fakes),
            *(gaps.data_that_moves, gaps.lists_of_fakes, gaps.tensors_of_fakes, gaps.storages_read),
            *(
                gaps.copies_of_fakes,
                gaps.parameters_of_other_classes,
                gaps.parameters_by_their_class,
                gaps.pickles_of_fakes,
                gaps.texts_of_fakes,
                gaps.one_cpu,
                addresses_looked_at,
                ragged_sizes,
                gaps.parts_of_storages,
                gaps.random_dtensors,
                gaps.random_states,
            ),
        ):
            stack.enter_context(prepared())
        stack.enter_context(strided_as_jagged(note))
        stack.enter_context(flex_attention_in_one_op(note))
        stack.enter_context(gaps.factories_of_kernels())
        launch = stack.enter_context(kernel_op())
        stack.enter_context(triton_kernels_in_one_op(launch, note))
        stack.enter_context(stand_ins(missing, launch, note))
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        stack.enter_context(mode)
        if device == "cuda":
            stack.enter_context(compat.gpus_of_threads(mode))
        yield mode
