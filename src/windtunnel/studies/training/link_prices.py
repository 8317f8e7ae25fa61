"""What a layout's messages cost alone on their links, as in training: collectives, sends to pipeline neighbours."""

from __future__ import annotations

from copy import copy

from windtunnel.physics.cost.communication.collectives import Group, collective, nic_share, tier
from windtunnel.physics.cost.price import Price
from windtunnel.physics.cost.training import TrainingCosts
from windtunnel.physics.model.operations import Transfer
from windtunnel.studies.training.layout import Layout


class LinkPrices:
    """Prices of one layout's messages. Same message, same price."""

    def __init__(self, layout: Layout, costs: TrainingCosts) -> None:
        self.layout, self.costs = layout, costs
        self._sigma = costs.uncertainty
        self._shares_nics = True
        self._transfers: dict[tuple[Transfer, float], tuple[Price, str]] = {}

    def undisturbed(self) -> LinkPrices:
        """The same prices where no message slows what shares a NIC with it."""
        other = copy(self)
        other._shares_nics = False
        return other

    def transfer(self, transfer: Transfer, skew: float = 1.0) -> tuple[Price, str]:
        """A collective alone on its links, its busiest rank with `skew` times the bytes, and its network tier."""
        entry = self._transfers.get((transfer, skew))
        if entry is None:
            group = self.layout.group(transfer.group)
            price = collective(transfer.kind, int(transfer.bytes_total * skew), group, self.layout.cluster)
            if transfer.kind == "all_to_all" and transfer.group == "ep":
                sustained, across = self.costs.sustained, group.domains > 1
                factor = sustained.dispatch_across if across else sustained.dispatch
                if across and self.layout.plan.dispatcher not in (None, "alltoall"):
                    factor = group.domains / (group.domains - 1.0)  # tokens of the own domain count as well
                elif across and self.layout.sends_choices and self.layout.cluster.scale_out.protocol != "efa":
                    factor = self.costs.choices_across
                price = price.fitted(factor, self._sigma["exposed"])
            shared = self.costs.sustained.shared
            if transfer.group in ("dp", "edp", "replica") and shared != 1.0 and tier(group) == "scale_up":
                price = price.fitted(shared, self._sigma["exposed"])
            if transfer.group == "edp" and not self.layout.gathers_in_passes:
                price = self._between_racks(transfer, price)
            if (transfer.kind, transfer.group) == ("all_gather", "tp"):
                price = price.scaled(self._links_left_idle(group))
            entry = self._transfers[transfer, skew] = (price, tier(group))
        return entry

    def _links_left_idle(self, group: Group) -> float:
        """Links to all of a group over those in use where chunks go from neighbour to neighbour beside a product.

        TransformerEngine gathers so (`ring_exchange`, what MLPerf's files of `ub_tp_comm_overlap` set for all gathers):
        without a switch one link each way, where NCCL's rings take all of them. These rings are NVLink's.
        """
        plan, link = self.layout.plan, self.layout.cluster.scale_up
        by_rings = plan.overlap_tp and plan.framework == "megatron" and link.protocol == "nvlink"
        if not by_rings or tier(group) != "scale_up":
            return 1.0
        peer = link.to_one_peer_bytes_per_s
        return max(1.0, min(link.bandwidth_bytes_per_s, (group.size - 1) * peer) / peer)

    def _between_racks(self, transfer: Transfer, price: Price) -> Price:
        """What replicas of experts exchange once a step, as all other groups do, over the NICs of those in a rack."""
        group, cluster = self.layout.group("edp"), self.layout.cluster
        if tier(group) != "scale_out" or group.per_domain == 1 or cluster.scale_up_domain <= cluster.gpus_per_node:
            return price
        size, nics = group.size, group.size / group.domains
        rate = self.costs.replicas_of_nic * nics * cluster.scale_out.bandwidth_bytes_per_s
        seconds = transfer.bytes_total * (size - 1) / size / rate
        return price if seconds <= price.seconds else price.fitted(seconds / price.seconds, self._sigma["exposed"])

    def nic_share(self, transfer: Transfer) -> float:
        """Share of a GPU's NIC that a collective takes while alone."""
        if not self._shares_nics:
            return 0.0
        group = self.layout.group(transfer.group)
        return nic_share(transfer.kind, int(transfer.bytes_total), group, self.layout.cluster)

    def hop(self, bytes_total: float, *, far: bool) -> tuple[Price, str]:
        """A send between pipeline neighbours, inside a scale-up domain or across domains."""
        group = self.layout.group("pp far" if far else "pp")
        price = collective("send_recv", int(bytes_total), group, self.layout.cluster)
        across = tier(group)
        return price.fitted(
            self.costs.sustained.p2p, self._sigma["exposed"]
        ) if across == "scale_out" else price, across
