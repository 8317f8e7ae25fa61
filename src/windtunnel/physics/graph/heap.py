"""What a C library's heap makes of a program's tensors on a CPU: which bytes are on pages that are handed out anew.

A page that a process touches for the first time costs a fault, in which the system finds and clears it: on a CPU that
is several times what writing it costs. Which tensors land on such pages is decided by glibc's malloc (malloc/malloc.c;
"Malloc Tunable Parameters" in its manual):

- A request takes the smallest free chunk that is large enough, its rest stays free; else the end of the heap.
- Where the heap ends too early, it grows; but a request of the *mmap threshold* or more gets pages of its own, which
  go back when it is freed. All of them are new.
- The threshold rises to the size of each freed chunk of that kind, from 128 KiB up to 32 MiB; by the time that PyTorch
  has been imported it is at about 1 MiB (seen with PyTorch 2.13).
- A freed chunk merges with its free neighbours. If that leaves twice the threshold free at the heap's end, the end goes
  back to the system; when the heap grows again, those pages are new.

Small objects take the few bytes that aligning a tensor leaves over, and then its chunk neither merges with the next nor
fits a tensor of its own size again: a *crowded* heap. The same program, run twice, shows either. One of them that lives
on at the heap's end keeps all below it, however much is free there: a *pinned* heap, which gives nothing back.

Assumed: one arena (autograd runs a CPU's backward in the caller's thread), every tensor is written from end to end, and
what is below 1 KiB does not matter.
"""

from __future__ import annotations

from bisect import bisect_left, insort

KIB, MIB = 1 << 10, 1 << 20
FIRST_THRESHOLD_BYTES, HIGHEST_THRESHOLD_BYTES = 1 * MIB, 32 * MIB
TOP_PAD_BYTES = 128 * KIB  # that a growing heap takes more, and a trimmed one keeps
HEADER_BYTES = 80  # of a chunk whose tensor is aligned to 64 bytes
REST_BYTES = 96  # that aligning a tensor costs beyond its chunk, and that go back apart from it
PAGE_BYTES = 4096


class Heap:
    """The state of malloc: `allocate`, `free` and `settle` change it.

    `fresh_bytes`: on pages handed out so far. `most_bytes`: the most pages that were held at once.
    """

    def __init__(self, *, crowded: bool = False, pinned: bool = False) -> None:
        self.fresh_bytes = self.most_bytes = 0
        self._rest_bytes = REST_BYTES if crowded else 0
        self._pinned = pinned
        self._rests: list[int] = []
        self.threshold_bytes = FIRST_THRESHOLD_BYTES
        self._trim_bytes = 2 * FIRST_THRESHOLD_BYTES
        self._free: list[tuple[int, int]] = []  # (size, address)
        self._starts: dict[int, int] = {}  # free chunks: address -> size
        self._ends: dict[int, int] = {}  # free chunks: address behind -> address
        self._sizes: dict[int, int] = {}  # chunks in use
        self._top = self._end = 0  # everything from `_top` to `_end` is the free end of the heap
        self._untouched = 0  # no page from here on has been written to
        self._mapped = -1  # addresses of chunks with pages of their own count down
        self._mapped_bytes = 0

    def allocate(self, size_bytes: int) -> int:
        """Allocate a chunk; its name."""
        size = -(-(size_bytes + HEADER_BYTES) // 16) * 16 + self._rest_bytes
        at = bisect_left(self._free, (size, 0))
        if at < len(self._free):
            room, address = self._free[at]
            self._take(address, room)
            if room - size >= 32:
                self._put(address + size, room - size)
            else:
                size = room
        elif self._end - self._top >= size:
            address = self._from_top(size)
        elif size >= self.threshold_bytes:
            address, self._mapped = self._mapped, self._mapped - 1
            self.fresh_bytes += -(-size // PAGE_BYTES) * PAGE_BYTES
            self._mapped_bytes += size
        else:
            self._end = -(-(self._top + size + TOP_PAD_BYTES) // PAGE_BYTES) * PAGE_BYTES
            address = self._from_top(size)
        self._sizes[address] = size
        self.most_bytes = max(self.most_bytes, self._untouched + self._mapped_bytes)
        return address

    def free(self, address: int) -> None:
        """Give a chunk back."""
        size = self._sizes.pop(address)
        if address < 0:
            self._mapped_bytes -= size
            if self.threshold_bytes < size <= HIGHEST_THRESHOLD_BYTES:
                self.threshold_bytes, self._trim_bytes = size, 2 * size
            return
        if self._rest_bytes:
            size -= self._rest_bytes
            self._rests.append(address + size)
        self._release(address, size)

    def settle(self) -> None:
        """What lay between the chunks is gone."""
        rests, self._rests = self._rests, []
        for address in rests:
            self._release(address, self._rest_bytes)

    def _release(self, address: int, size: int) -> None:
        before = self._ends.get(address)
        if before is not None:
            size += self._starts[before]
            self._take(before, self._starts[before])
            address = before
        following = self._starts.get(address + size)
        if following is not None:
            self._take(address + size, following)
            size += following
        if address + size == self._top:
            self._top = address
            if not self._pinned and self._end - self._top >= self._trim_bytes:
                self._end = -(-(self._top + TOP_PAD_BYTES) // PAGE_BYTES) * PAGE_BYTES
                self._untouched = min(self._untouched, self._end)
        else:
            self._put(address, size)

    def _from_top(self, size: int) -> int:
        address = self._top
        self._top += size
        if self._top > self._untouched:
            reached = -(-self._top // PAGE_BYTES) * PAGE_BYTES
            self.fresh_bytes += reached - self._untouched
            self._untouched = reached
        return address

    def _put(self, address: int, size: int) -> None:
        insort(self._free, (size, address))
        self._starts[address], self._ends[address + size] = size, address

    def _take(self, address: int, size: int) -> None:
        del self._free[bisect_left(self._free, (size, address))]
        del self._starts[address], self._ends[address + size]
