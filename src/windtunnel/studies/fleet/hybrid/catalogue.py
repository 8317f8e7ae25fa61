"""Pools out of a price list of clouds, in the columns of SkyPilot's catalogue: one adaptor for unlike providers.

    InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,...      dollars an hour, of a whole instance

A pool `{catalogue: aws.csv, accelerator: A100-80GB, regions: [us-east-1, us-west-2]}` is a pool in each of the regions,
at the price of a GPU of the cheapest instance there that has it; with `spot` at its spot price. A region that does not
sell it is an error. The lists lie in skypilot-org/skypilot-catalog (Apache-2.0), one file a cloud; none is shipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from windtunnel.errors import SpecError
from windtunnel.files.table import read_table

NEEDS = ("AcceleratorName", "AcceleratorCount", "Price", "Region")
CATALOGUE_TERMS = {"catalogue", "accelerator", "regions"}


def pools_of(terms: Mapping[str, object], folder: Path, where: str) -> Iterator[dict[str, object]]:
    """Pools with names and prices, from one that names a catalogue. Raises UserError."""
    own = {key: value for key, value in terms.items() if key in CATALOGUE_TERMS}
    others = {key: value for key, value in terms.items() if key not in CATALOGUE_TERMS}
    if not isinstance(own.get("catalogue"), str):
        raise SpecError("catalogue", own.get("catalogue"), "name the file of prices, such as aws.csv", where)
    path = folder / str(own["catalogue"])
    accelerator, spot = own.get("accelerator"), others.get("spot") is not None
    if not isinstance(accelerator, str):
        raise SpecError("accelerator", accelerator, "say which, as the catalogue names it, such as H100", where)
    if "price_per_gpu_hour" in others:
        raise SpecError("price_per_gpu_hour", others["price_per_gpu_hour"], "leave it out: the catalogue has it", where)
    regions = own.get("regions", [])
    if not isinstance(regions, list) or not all(isinstance(region, str) for region in regions):
        raise SpecError("regions", regions, "list names, or leave it out for all", where)
    prices, names = prices_of(path, accelerator, "SpotPrice" if spot else "Price")
    if not prices:
        known = ", ".join(sorted(names)[:12])
        raise SpecError("accelerator", accelerator, f"{path.name} has a price for {known or 'none'}", where)
    for region in regions or sorted(prices):
        if region not in prices:
            sold = ", ".join(sorted(prices)[:12])
            raise SpecError("regions", region, f"{path.name} has {accelerator} in {sold}", where)
        owner = str(others.get("name", path.stem))
        yield {"owner": owner, **others, "name": f"{owner} {region}", "price_per_gpu_hour": prices[region]}


def prices_of(path: Path, accelerator: str, column: str) -> tuple[dict[str, float], set[str]]:
    """Dollars of a GPU-hour by region, the cheapest instance of each; and the accelerators that have a price."""
    table = read_table(path)
    missing = [name for name in (*NEEDS, column) if not table.has(name)]
    if missing:
        raise SpecError("catalogue", str(path), f"it has no column {', '.join(missing)}; give one of SkyPilot's files")
    prices: dict[str, float] = {}
    names = set()
    texts, numbers = table.texts, table.numbers
    columns = texts("AcceleratorName"), texts("Region"), numbers(column).tolist(), numbers("AcceleratorCount").tolist()
    for name, region, hourly, count in zip(*columns, strict=True):
        if not (hourly > 0 and count > 0):  # not sold so, or no accelerator
            continue
        price = hourly / count
        names.add(name)
        if name.lower() == accelerator.lower():
            prices[region] = min(prices.get(region, math.inf), price)
    return prices, names
