"""What autograd asks of a CUDA that is not there. Linux, x86-64 or aarch64; tried on PyTorch 2.13 and 2.14.

Autograd's C++ asks three things before it touches a 'cuda' tensor: a *device guard* for the device type (which device
is current, which stream), the *hooks* of CUDA (is it the accelerator of this build), and a thread for each device. A
CPU build has empty places for the first two; a build with CUDA on a machine without a GPU has a guard of one device and
hooks that raise where they are asked of it. Both places are filled here, until exit, with copies of what is there for
'meta' and for CUDA, in whose tables of virtual functions a few that return a constant are exchanged (their places are
the same in PyTorch 2.12 to 2.15):

    guard (c10/core/impl/DeviceGuardImplInterface.h)
        exchangeDevice, getDevice, getStream: "cuda:<current>", the default stream; deviceCount: how many are pretended
    hooks (ATen/detail/CUDAHooksInterface.h)
        isBuilt, isAvailable, hasCUDA: true; hasPrimaryContext: false; deviceCount, getCurrentDevice as the guard's

The guard keeps 'meta' as its type, for which no device thread is started.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from windtunnel.errors import UserError

_CUDA, _META, _TYPES = 1, 14, 24  # of c10::DeviceType
_GUARD = {"exchangeDevice": 1, "getDevice": 2, "getStream": 5, "deviceCount": 15}
_GUARD_FUNCTIONS = 26
_HOOKS = {
    **{"isBuilt": 2, "isAvailable": 3, "hasPrimaryContext": 4, "deviceCount": 6, "getCurrentDevice": 8},
    **{"exchangeDevice": 9, "maybeExchangeDevice": 10, "hasCUDA": 16},
}
_HOOKS_FUNCTIONS = 56


class NoPretendedGpuError(UserError):
    """This machine's processor or system is not one that the pretended device guard was made for."""


@contextmanager
def stand_in_for_cuda(
    current: Callable[[], int], count: int, watch: Callable[[Callable[[int], None]], None]
) -> Iterator[None]:
    """Fill both places; `watch` is handed a function to call with every new current device."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        raise NoPretendedGpuError(
            f"pretended GPUs need Linux on x86-64 or aarch64, and this is {sys.platform} on {platform.machine()}: "
            "capture there, or on the CPU (--device cpu)"
        )
    libraries = os.path.join(os.path.dirname(torch.__file__), "lib")
    c10 = ctypes.CDLL(os.path.join(libraries, "libc10.so"))
    aten = ctypes.CDLL(os.path.join(libraries, "libtorch_cpu.so"))
    registry = (ctypes.c_void_p * _TYPES).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    get_hooks = aten._ZN2at6detail12getCUDAHooksEv
    get_hooks.restype = ctypes.c_void_p
    hooks = ctypes.c_void_p.from_address(get_hooks())

    code = _Constants()
    device = code.word(_CUDA | current() << 8)  # c10::Device: type and index, a byte each
    index, number, yes, no = code.word(current()), code.word(count), code.word(1), code.word(0)

    def on_move(now: int) -> None:
        code.change(device, _CUDA | now << 8)
        code.change(index, now)

    guard_table = _table(
        ctypes.c_void_p.from_address(registry[_META] or 0).value or 0,
        _GUARD_FUNCTIONS,
        {
            **{_GUARD[name]: code.address(device) for name in ("exchangeDevice", "getDevice", "getStream")},
            _GUARD["deviceCount"]: code.address(number),
        },
    )
    hooks_table = _table(
        hooks.value or 0,
        _HOOKS_FUNCTIONS,
        {
            **{_HOOKS[name]: code.address(yes) for name in ("isBuilt", "isAvailable", "hasCUDA")},
            _HOOKS["hasPrimaryContext"]: code.address(no),
            _HOOKS["deviceCount"]: code.address(number),
            **{
                _HOOKS[name]: code.address(index)
                for name in ("getCurrentDevice", "exchangeDevice", "maybeExchangeDevice")
            },
        },
    )
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(guard_table) + 16)
    guard_before, hooks_before = registry[_CUDA], hooks.value
    watch(on_move)
    registry[_CUDA] = ctypes.addressof(guard)
    hooks.value = ctypes.addressof(hooks_table) + 16
    _KEPT.append((guard, guard_table, hooks_table, code))
    try:
        yield
    finally:
        registry[_CUDA] = guard_before
        hooks.value = hooks_before


_KEPT: list[object] = []  # a pointer to a guard may be in a register of PyTorch's long after it left the registry


def _table(functions_at: int, count: int, exchanged: dict[int, int]) -> Any:
    """A copy of a table of virtual functions, with the two words before the first that belong to it."""
    table = (ctypes.c_void_p * (count + 2)).from_buffer_copy(ctypes.string_at(functions_at - 16, (count + 2) * 8))
    for place, address in exchanged.items():
        table[2 + place] = address
    return table


class _Constants:
    """Functions that return a word from memory in the first result register, and zero in the second."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._words = (ctypes.c_uint64 * 16)()
        self._used = 0

    def word(self, value: int) -> int:
        """A new function; its number."""
        number, self._used = self._used, self._used + 1
        self._words[number] = value
        where = ctypes.addressof(self._words) + 8 * number
        if platform.machine() == "x86_64":  # mov rax, where; mov rax, [rax]; xor edx, edx; ret
            code = b"\x48\xb8" + struct.pack("<Q", where) + b"\x48\x8b\x00\x31\xd2\xc3"
        else:  # ldr x8, where; ldr x0, [x8]; mov x1, #0; ret
            code = struct.pack("<4IQ", 0x58000088, 0xF9400100, 0xD2800001, 0xD65F03C0, where)
        self._page[64 * number : 64 * number + len(code)] = code
        return number

    def change(self, number: int, value: int) -> None:
        """What it returns from now on."""
        self._words[number] = value

    def address(self, number: int) -> int:
        """The address of its code."""
        return self._at + 64 * number
