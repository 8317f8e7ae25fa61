"""`train`: a data-parallel training loop that goes on when ranks die.

A step is committed only when every bucket of its gradients is reduced, so it counts for all or is done again with the
same data: `loss(step, rank, world)` has to take its data from these numbers, and random numbers are seeded by them.
After a death the members of the next view compare how far they are, and the furthest hands its state to those that
are behind and to joiners. A joiner takes the very rank of the dead process, so sums are formed in the same order.
Replicas are alike, so rank 0 alone saves and reads checkpoints. Without a launcher (`python train.py`) the same loop
runs alone.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.process import die_with_parent
from windtunnel.real.survive.live.group import PendingGroup, abort, gathered, handed_over, reduced, store_of
from windtunnel.real.survive.live.place import Place, newest_view, own_place
from windtunnel.real.survive.live.progress import CheckpointSchedule, Progress, saving_of
from windtunnel.real.survive.live.shadow import Recorder, fill_pieces
from windtunnel.real.survive.watch.log import RankLog

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.stateful import Stateful

BUCKET_BYTES = 25 << 20  # as DistributedDataParallel has it
POLL_S = 0.01
WATCH_S = 0.1
Loss = Callable[[int, int, int], "torch.Tensor"]


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    steps: int,
    *,
    others: Mapping[str, Stateful] | None = None,
    seed: int = 0,
    on_step: Callable[[int, float], None] | None = None,
    checkpoints: Path | str | None = None,
    checkpoint_every: int = 100,
) -> list[float]:
    """Run `steps` optimizer steps and return the mean loss of each.

    loss(step, rank, world) gives the scalar loss of one rank's part of the batch. `others`: further objects with a
    state_dict; schedulers of learning rates among them are stepped after each step, on every rank, once even where the
    step is done again. `on_step(step, loss)` is called on rank 0 after each step that it does.
    `checkpoints`: a folder; every `checkpoint_every` steps and the last one are saved there, and a job that starts goes
    on from the newest complete one. A standby that was never needed, and a process that was replaced as planned, end
    here with exit status 0.

    Raises:
        CheckpointError: a checkpoint could not be written.
        InputFileError: the newest checkpoint is damaged, or of another model.
    """
    place = own_place()
    progress = Progress(model, optimizer, others or {})
    saving = saving_of(checkpoints, checkpoint_every, steps)
    if place is None:
        if saving is not None:
            saving.restore(progress)
        while progress.step < steps:
            _commit(progress, _local(progress, loss, 0, 1, seed), 1)
            if saving is not None:
                saving.save_if_due(progress)
            if on_step is not None:
                on_step(progress.step - 1, progress.losses[-1])
        if saving is not None:
            saving.finish()
        return progress.losses
    return _Member(place, progress, loss, steps, seed, on_step, saving).run()


def _local(progress: Progress, loss: Loss, rank: int, world: int, seed: int) -> list[torch.Tensor]:
    """This rank's gradients, rank 0's buffers, and the loss as flat pieces; the last one ends with the loss and a place
    for a vote.

    Buffers, such as the averages of BatchNorm, are put back: `_commit` moves them, to those of rank 0 in every rank.
    """
    import torch

    progress.optimizer.zero_grad(set_to_none=True)
    torch.manual_seed((seed * 1_000_003 + progress.step) * 65_537 + rank)
    buffers = _averages(progress.model)
    before = [buffer.clone() for buffer in buffers]
    value = loss(progress.step, rank, world)
    value.backward()
    parts = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in _trained(progress.model)
    ]
    parts += [buffer.clone() if rank == 0 else torch.zeros_like(buffer) for buffer in buffers]
    for buffer, old in zip(buffers, before, strict=True):
        buffer.copy_(old)
    double = any(part.dtype == torch.float64 for part in parts)
    parts += [value.detach().reshape(1), value.detach().new_zeros(1)]
    flat = torch.cat([part.reshape(-1).to(torch.float64 if double else torch.float32) for part in parts])
    return list(flat.split(BUCKET_BYTES // flat.element_size()))


def _commit(progress: Progress, pieces: list[torch.Tensor], world: int) -> None:
    """Nothing before this changes what a member would hand over."""
    import torch

    flat = torch.cat(pieces)
    at = 0
    for parameter in _trained(progress.model):
        piece = flat[at : at + parameter.numel()] / world
        parameter.grad = piece.view_as(parameter).to(parameter.dtype)
        at += parameter.numel()
    for average in _averages(progress.model):
        average.copy_(flat[at : at + average.numel()].view_as(average))
        at += average.numel()
    progress.optimizer.step()
    progress.losses.append(float(flat[at]) / world)
    for other in progress.others.values():
        if isinstance(other, torch.optim.lr_scheduler.ReduceLROnPlateau):
            other.step(progress.losses[-1])
        elif isinstance(other, torch.optim.lr_scheduler.LRScheduler):
            other.step()
    progress.step += 1


def _averages(model: torch.nn.Module) -> list[torch.Tensor]:
    """Buffers that a forward pass may change: what layers with running statistics keep."""
    layers = [module for module in model.modules() if getattr(module, "track_running_stats", False)]
    return [buffer for layer in layers for buffer in layer.buffers(recurse=False)]


def _trained(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class _Member:
    """One process of the job: first a standby, then perhaps a rank."""

    def __init__(
        self,
        place: Place,
        progress: Progress,
        loss: Loss,
        steps: int,
        seed: int,
        on_step: Callable[[int, float], None] | None,
        saving: CheckpointSchedule | None,
    ) -> None:
        import os

        die_with_parent(os.getppid())
        self.place, self.progress, self.loss, self.steps, self.seed = place, progress, loss, steps, seed
        self.on_step, self.saving = on_step, saving
        self.store = store_of(place)
        self.log = RankLog.create(place.folder / f"{place.name}.log")
        self.log.start_beat()
        self.log.watch_garbage()
        self.has_state = False
        self.generation, self.rank = -1, -1
        self.group: dist.ProcessGroup | None = None
        self.next: PendingGroup | None = None
        self.first_of_generation = True
        self.asked_to_leave: set[tuple[int, int]] = set()

    def run(self) -> list[float]:
        """Until all steps are done.

        No thread of it is left inside torch: at its end Python would stop that thread there, and C++ then aborts.
        """
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,), daemon=True, name="watch")
        watch.start()
        try:
            return self._run()
        finally:
            over.set()
            watch.join()

    def _run(self) -> list[float]:
        self._warm_up()
        self.store.set(f"warm/{self.place.name}", "1")
        if not self._join():
            self.log.end()
            sys.exit(0)
        while not self._all_done():
            if not self._join():  # somebody knows that all steps are done: then this member has done them too
                break
        self._finish_saving()
        self.log.end()
        self.store.set(f"done/{self.place.name}", "1")
        return self.progress.losses

    def _all_done(self) -> bool:
        """Do what steps are left. True once everybody has done all; False where a member is lost before."""
        while self.progress.step < self.steps:
            if not self._step():
                return False
        if gathered(self.group, self.progress.step, self.place.size) is None:
            self._drop()
            return False
        return True

    def _watch(self, over: threading.Event) -> None:
        """A loss that no connection tells of is told by the next view: then nobody waits in the group of this one."""
        store = store_of(self.place)
        with suppress(RuntimeError):  # the launcher has gone
            while not over.wait(WATCH_S):
                group = self.group  # read before the generation, which is never behind the group's
                view = newest_view(store)
                if group is not None and view and not view["planned"] and view["generation"] > self.generation:
                    abort(group)
                del group

    def _drop(self) -> None:
        """A member is lost: nobody shall wait for this one either."""
        abort(self.group)
        self.group = None
        self.store.set(f"broken/{self.generation}", "1")  # if nobody has died for it, the same members meet again

    def _warm_up(self) -> None:
        """A shadow iteration where there is a tape of one, else what a rank can do alone; nothing of it is kept."""
        before = self.progress.to_bytes()
        pieces = _local(self.progress, self.loss, 0, self.place.size, self.seed)
        if self.place.tape.exists():
            fill_pieces(self.place.tape, pieces)
        _commit(self.progress, pieces, self.place.size)
        self.progress.take(before)

    def _step(self) -> bool:
        """One step; False where a member was lost and the step does not count."""
        recorder = None
        if self.generation == 0 and self.first_of_generation and self.rank == 0:
            recorder = Recorder(self.place.tape, self.place.size)
        with self.log.segment("forward and backward"):
            pieces = _local(self.progress, self.loss, self.rank, self.place.size, self.seed)
        self._prepare()
        pieces[-1][-1] = 1.0 if self.next is not None and self.next.over.is_set() and self.next.group else 0.0
        with self.log.collective(f"all of view {self.generation}"):
            whole = reduced(self.group, pieces)
        if not whole:
            self._drop()
            return False
        if recorder is not None:
            recorder.keep(pieces)
            recorder.close()
        everybody_ready = float(pieces[-1][-1]) == self.place.size
        _commit(self.progress, pieces, self.place.size)
        if self.rank == 0:
            if self.first_of_generation:
                self.store.set(f"first/{self.generation}", repr(time.time()))
                self.first_of_generation = False
            if self.saving is not None:
                self.saving.save_if_due(self.progress)
            if self.on_step is not None:
                self.on_step(self.progress.step - 1, self.progress.losses[-1])
        if everybody_ready:
            return self._swap()
        return True

    def _prepare(self) -> None:
        """Begin to build the group of a planned change beside the one that works; ask for one where it is due."""
        for rank, step in self.place.replace:
            if rank == self.rank and self.progress.step >= step and (rank, step) not in self.asked_to_leave:
                self.asked_to_leave.add((rank, step))
                self.store.set(f"leave/{rank}@{step}", self.place.name)
        view = newest_view(self.store)
        planned = view is not None and view["planned"] and view["generation"] > self.generation
        if view is None or not planned or (self.next and self.next.generation == view["generation"]):
            return
        if self.place.name in view["members"]:
            self.next = PendingGroup(self.place, view["generation"], view["members"])
        else:  # the leaver has nothing to build, and is ready at once
            self.next = _Departure(view["generation"])

    def _swap(self) -> bool:
        """All members have the next group and have done this step: go over to it."""
        assert self.next is not None
        began = time.time()
        chosen, self.next = self.next, None
        if isinstance(chosen, _Departure):
            self._finish_saving()
            self.log.end()
            sys.exit(0)
        self.generation, self.rank, self.group = chosen.generation, chosen.rank, chosen.group
        self.log.play(self.rank)
        if not self._agree():
            self._drop()
            return False
        # Whoever was there before tells it: rank 0 may be the one that joined.
        self.store.set(f"swapped/{self.generation}", repr(time.time() - began))
        self.store.set(f"first/{self.generation}", repr(time.time()))
        return True

    def _join(self) -> bool:
        """The group of the next view that stands; False where the job is done or goes on without this process."""
        while True:
            view = newest_view(self.store)
            if view is None or view["generation"] <= self.generation:
                time.sleep(POLL_S)
                continue
            generation, members = view["generation"], view["members"]
            if not members:
                return False
            if self.place.name not in members:
                if self.rank >= 0 and not view["planned"]:  # taken for dead, though alive: its rank is played already
                    sys.exit(0)
                time.sleep(POLL_S)
                continue
            if view["planned"] and self.rank >= 0:  # it comes to nothing: a member is lost
                time.sleep(POLL_S)
                continue
            self.generation, self.next = generation, None
            building = PendingGroup(self.place, generation, members)
            self.group = building.wait(self._superseded)
            if self.group is None:
                self.store.set(f"broken/{generation}", "1")
                continue
            self.rank = building.rank
            self.log.play(self.rank)
            if self._agree():
                self.first_of_generation = True
                return True
            self._drop()

    def _agree(self) -> bool:
        """Compare how far everybody is, and take or give state. False where a member is lost on the way."""
        progress = self.progress
        own_step = progress.step if self.has_state else -1
        steps = gathered(self.group, own_step, self.place.size)
        if steps is None:
            return False
        furthest = max(steps)
        source = steps.index(furthest)
        if furthest < 0 and self.rank == source and self.saving is not None:
            self.saving.restore(progress)
        # Nobody has state at the start: then rank 0's counts, so that all begin alike.
        lacking = [rank for rank, step in enumerate(steps) if rank != source and (step < furthest or furthest < 0)]
        state = progress.to_bytes() if self.rank == source and lacking else b""
        state_or_none = handed_over(self.group, self.rank, source, lacking, state)
        if state_or_none is None:
            return False
        if self.rank in lacking:
            progress.take(state_or_none)
        self.has_state = True
        return True

    def _finish_saving(self) -> None:
        if self.saving is not None:
            self.saving.finish()

    def _superseded(self) -> bool:
        view = newest_view(self.store)
        return view is not None and view["generation"] > self.generation


class _Departure(PendingGroup):
    """The part of a process that is not in the next view."""

    def __init__(self, generation: int) -> None:
        self.generation, self.members, self.rank, self.group = generation, (), -1, True
        self.over = threading.Event()
        self.over.set()
