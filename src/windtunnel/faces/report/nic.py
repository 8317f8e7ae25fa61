"""What there is to see of a data path that is split between host and NIC."""

from __future__ import annotations

from windtunnel.studies.nic import NicResult
from windtunnel.views import Cell, Column, Document, Figure, Figures, Headline, Notes, Number, Table, View


def nic_document(result: NicResult) -> Document:
    """Everything that there is to see."""
    spec, (low, high) = result.spec, result.right_for_skew
    left = result.host_cores / result.host_only_cores if result.host_only_cores else 1.0
    verdict = f"{spec['nic']} leaves the host {result.host_cores:.1f} of {result.host_only_cores:.1f} cores."
    figures = [
        Figure("host cores", Number(result.host_cores, "")),
        Figure("saved", Number(1 - left, "share"), f"{result.host_cores_saved:.1f} cores"),
        Figure("by code alone", Number(result.by_code_cores, ""), "host cores"),
        Figure("by state alone", Number(result.by_state_cores, ""), "host cores"),
        Figure("NIC cores in use", Number(result.nic_use, "share")),
        Figure("traffic of flows on the NIC", Number(result.hot, "share"), f"{result.flows_on_nic:,} flows"),
    ]
    rows: list[list[Cell]] = [
        [share.flows, Number(share.share, "share"), ", ".join(share.on_nic), ", ".join(share.on_host)]
        for share in result.partition
    ]
    columns = [Column("flows"), Column("traffic", "share"), Column("on the NIC"), Column("on the host")]
    views: list[View] = [Headline(verdict), Figures(figures), Table("The split", columns, rows)]
    notes = [f"Right within 5 % while flows send by Zipf's law of {low:g} to {high:g}.", *result.warnings]
    views.append(Notes("To mind", notes))
    return Document("a data path on a NIC", f"{spec['nodes']} operations on {spec['nic']}", views, [], result.source)
