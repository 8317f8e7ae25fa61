"""Object collectives: what peers hold is what this rank holds, as pickled copies, unless a mailbox brings the real
thing.

torch sends objects as two rounds of tensors whose sizes one must read; here they are answered as Python calls, at a
cost that does not depend on fake tensors, and noted as control traffic.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from types import FrameType
from typing import TYPE_CHECKING, Any

from windtunnel.real.capture.fake_tensors.control_flow import is_script
from windtunnel.real.capture.replacements import Replacements
from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.virtual_world.collectives import Answers
from windtunnel.real.capture.virtual_world.groups import Group
from windtunnel.real.capture.virtual_world.initialisation import replace_public
from windtunnel.real.capture.virtual_world.messages import Messages
from windtunnel.real.capture.virtual_world.protocol import AnsweringWorld
from windtunnel.real.capture.virtual_world.refusals import WorldError
from windtunnel.studies.programs.rank_classes.proxies import proxies_among

if TYPE_CHECKING:
    import torch

    from windtunnel.studies.programs.communication import Communication

COPIED_BYTES = 16 << 20  # of gathered objects each peer's is a copy of its own up to this; beyond, peers share one

CALLS = (
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
)


def install(world: AnsweringWorld, answers: Answers, messages: Messages, patches: Replacements) -> None:
    """Replace torch's object collectives while the world is open."""
    calls = ObjectCalls(world, answers, messages)
    for name in CALLS:
        replace_public(patches, name, _while_open(world, name, getattr(calls, name)))


def _while_open(
    world: AnsweringWorld, name: str, mine: Callable[..., object]
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """`mine` is given the group, if this rank is in it, and torch's other arguments by their names."""

    def make(original: Callable[..., object]) -> Callable[..., object]:
        arguments_of, parameters = signature(original), signature(mine).parameters
        takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())

        def call(*args: object, **kwargs: object) -> object:
            if not world.is_open:
                return original(*args, **kwargs)
            bound = arguments_of.bind(*args, **kwargs)
            bound.apply_defaults()
            group, c10d = bound.arguments.pop("group"), compat.c10d()
            if c10d._rank_not_in_group(group):
                c10d._warn_not_in_group(name)
                return -1 if name == "recv_object_list" else None
            ours = world.group_of(group if group is not None else c10d._get_default_group())
            # Other versions of torch have arguments more, such as `weights_only`: they say how, not what.
            return mine(
                ours, **{key: value for key, value in bound.arguments.items() if takes_any or key in parameters}
            )

        return call

    return make


class ObjectCalls:
    """torch's functions, by their names and arguments; `ours` is the group."""

    def __init__(self, world: AnsweringWorld, answers: Answers, messages: Messages) -> None:
        self._world, self._answers, self._messages = world, answers, messages

    def all_gather_object(self, ours: Group, object_list: list[object], obj: object) -> None:
        """Every member's object, on every member."""
        self._gathered(ours, "all_gather", obj, object_list, root=-1)

    def gather_object(
        self, ours: Group, obj: object, object_gather_list: list[object] | None, dst: int | None, group_dst: int | None
    ) -> None:
        """Every member's object, on one."""
        root = self._position(ours, dst, group_dst, default=0)
        if root == ours.position and not object_gather_list:
            raise ValueError("Argument ``gather_list`` must be specified on destination rank.")
        self._gathered(ours, "gather", obj, object_gather_list if root == ours.position else None, root)

    def broadcast_object_list(
        self, ours: Group, object_list: list[object], src: int | None, group_src: int | None, **_: object
    ) -> None:
        """One member's objects, on every member. Without its rank they stay what they are here, if that is anything."""
        root = self._position(ours, src, group_src, default=0)
        data = dumps(object_list)
        self._call(ours, "broadcast", len(data), root)
        sender = ours.members[root]
        key = self._messages.key(ours, sender, sender, "broadcast")
        if root == ours.position:
            if ours.size > 1:
                self._messages.post(key, data)
        elif (
            self._messages.any_can_run
            or self._messages.named_among((sender,))
            or any(map(_is_placeholder, object_list))
        ):
            if self._messages.is_open:
                object_list[:] = loads(self._messages.get(key, "broadcast_object_list", sender))
            else:
                self._note(f"broadcast_object_list: the objects of rank {sender} are not known, None stayed None")

    def scatter_object_list(
        self,
        ours: Group,
        scatter_object_output_list: list[object],
        scatter_object_input_list: list[object] | None,
        src: int | None,
        group_src: int | None,
    ) -> None:
        """One object of one member's list, on each member."""
        root = self._position(ours, src, group_src, default=0)
        if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
            raise ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
        inputs, messages, sender = scatter_object_input_list, self._messages, ours.members[root]
        if root == ours.position:
            if inputs is None:
                raise ValueError("source rank must provide non-None scatter_object_input_list")
            if len(inputs) != ours.size:
                raise WorldError(f"scatter_object_list: {len(inputs)} objects for a group of {ours.size} ranks")
            parts = [dumps(part) for part in inputs]
            self._call(ours, "scatter", sum(map(len, parts)), root)
            if ours.size > 1:  # one message, as nobody knows yet who will ask for it
                messages.post(messages.key(ours, sender, sender, "scatter"), pickle.dumps(parts))
            scatter_object_output_list[0] = loads(parts[root])
            return
        self._call(ours, "scatter", 0, root)
        if messages.is_open:
            key = messages.key(ours, sender, sender, "scatter")
            theirs = pickle.loads(messages.get(key, "scatter_object_list", sender))
            scatter_object_output_list[0] = loads(theirs[ours.position])
        else:
            self._note(f"scatter_object_list: the objects of rank {sender} are not known, the output stayed as it was")

    def send_object_list(
        self, ours: Group, object_list: list[object], dst: int | None, group_dst: int | None, **_: object
    ) -> None:
        """Objects to one member, if it runs."""
        receiver = self._other(ours, dst, group_dst, "Destination")
        data = dumps(object_list)
        self._call(ours, "send", len(data), receiver)
        messages, to = self._messages, ours.members[receiver]
        if messages.is_open:
            messages.post(messages.key(ours, self._world.rank, to, "objects"), data)

    def recv_object_list(
        self, ours: Group, object_list: list[object], src: int | None, group_src: int | None, **_: object
    ) -> int:
        """Objects from one member: only it knows them. Returns its global rank."""
        sender = ours.members[self._other(ours, src, group_src, "Source")]
        messages = self._messages
        key = messages.key(ours, sender, self._world.rank, "objects")
        due = self._world.begin(call := self._ask(ours, "recv", 0, ours.members.index(sender)))
        received = loads(messages.get(key, f"recv_object_list on group {ours.name!r}", sender))
        object_list[: len(received)] = received
        self._world.wait_for(call, due)
        return sender

    def _gathered(self, group: Group, kind: str, obj: object, output: list[object] | None, root: int) -> None:
        data = dumps(obj)
        self._call(group, kind, len(data) * group.size, root)
        messages, rank = self._messages, self._world.rank
        running = messages.can_say(group)
        if running and (root < 0 or group.members[root] != rank):
            receivers = running if root < 0 else [group.members[root]]
            for receiver in receivers:
                messages.post(messages.key(group, rank, receiver, kind), data)
        if output is None:
            return
        if len(data) * group.size <= COPIED_BYTES:
            output[: group.size] = [loads(data) for _ in range(group.size)]
        else:
            output[: group.size] = [loads(data)] * group.size
        whole = None if running else part_in_hand(group, obj)
        if whole is not None:
            output[: group.size] = whole
            self._note(
                "lengths of parts of a tensor are gathered as objects: those of ranks that do not run are made up,"
                " so that all add up to the tensor"
            )
        for sender in running:
            theirs = messages.get(messages.key(group, sender, rank, kind), f"{kind} of objects", sender)
            output[group.members.index(sender)] = loads(theirs)
        if running:
            self._as_the_running(group, output, [rank, *running])

    @staticmethod
    def _as_the_running(group: Group, output: list[object], running: list[int]) -> None:
        """What ranks hold that do not run: a copy of what the one holds that they are like, the same on all members."""
        proxies = proxies_among(group.members, running)
        pickles = [dumps(output[place]) for place in proxies.real]
        for number, places in enumerate(proxies.like):
            copied = len(pickles[number]) * group.size <= COPIED_BYTES
            for place in places:
                output[place] = loads(pickles[number]) if copied else output[proxies.real[number]]

    def _call(self, group: Group, kind: str, size: int, position: int) -> None:
        call = self._ask(group, kind, size, position)
        self._world.wait_for(call, self._world.begin(call))

    def _ask(self, group: Group, kind: str, size: int, position: int) -> Communication:
        return self._answers.ask(group, kind, size, (), position=position, is_async=False, control=True)

    @staticmethod
    def _position(group: Group, rank: int | None, position: int | None, default: int | None = None) -> int:
        if rank is None and position is None:
            rank = default
        return int(compat.c10d()._canonicalize_group_rank(group.handle, rank, position))

    def _other(self, group: Group, rank: int | None, position: int | None, which: str) -> int:
        other = self._position(group, rank, position)
        if other == group.position:
            raise ValueError(f"{which} rank must not be the same as the rank of the current process.")
        return other

    def _note(self, text: str) -> None:
        if text not in self._world.notes:
            self._world.notes.append(text)


def part_in_hand(group: Group, obj: object) -> list[object] | None:
    """What each member gathers where one gives the shape of its part of a DTensor: all parts add up to the whole.

    Which members hold the rest, nobody here knows: the next ones do, and as much as this one, or what is left.
    """
    if type(obj) is not list or not obj or not all(type(length) is int for length in obj):
        return None
    place, size = group.position, group.size
    for tensor in _dtensors_of_callers():
        for dimension, placement in enumerate(tensor.placements):
            along = getattr(placement, "dim", None)
            if along is None or tuple(obj) != tuple(tensor._local_tensor.shape):
                continue
            if tensor.device_mesh.get_group(dimension).group_name != group.name:
                continue
            left = int(tensor.shape[along]) - obj[along]
            most = max(obj[along], -(-left // max(size - 1, 1)))
            lengths = {place: obj[along]}
            for other in range(place + 1, place + size):
                lengths[other % size] = min(most, left)
                left -= lengths[other % size]
            return [[*obj[:along], lengths[at], *obj[along + 1 :]] for at in range(size)]
    return None


def _dtensors_of_callers() -> Iterator[Any]:
    """Those that the functions of the script that are running have in hand, the innermost first."""
    from torch.distributed.tensor import DTensor

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            yield from (value for value in frame.f_locals.values() if isinstance(value, DTensor))
        frame = frame.f_back


def _is_placeholder(entry: object) -> bool:
    return entry is None or (isinstance(entry, (str, bytes, int, float, list, tuple, dict, set)) and not entry)


class _Pickler(pickle.Pickler):
    """Tensors without data travel as their shapes."""

    def reducer_override(self, obj: object) -> Any:
        import torch

        if isinstance(obj, torch.Tensor) and (isinstance(obj, compat.fake_tensor_class()) or obj.device.type == "meta"):
            with compat.outside_modes():
                return _empty, (tuple(obj.shape), tuple(obj.stride()), obj.dtype, str(obj.device), obj.requires_grad)
        return NotImplemented


def _empty(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: str, requires_grad: bool
) -> object:
    """Under fake tensors a fake one."""
    from windtunnel.real.capture.torch_private import factories as plain

    return plain.empty_strided(shape, stride, dtype=dtype, device=device).requires_grad_(requires_grad)


def dumps(obj: object) -> bytes:
    """Pickle, tensors without data included."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(obj)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    """The objects of pickled data."""
    return pickle.loads(data)
