"""Pools priced by a catalogue in SkyPilot's columns."""

import pytest

from windtunnel.errors import UserError
from windtunnel.studies.fleet.hybrid.clouds import read_clouds

CATALOGUE = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
big,H100,8.0,192.0,"{'Gpus': [{'Name': 'H100'}]}",80.0,24.0,east,east-1a
small,H100,1.0,24.0,,12.0,,east,east-1b
big,H100,8.0,192.0,,96.0,16.0,west,west-1a
cpu,,,4.0,,0.2,0.05,east,east-1a
old,,0,4.0,,0.1,,east,east-1a
"""


def site(folder, pool):
    (folder / "cloud.csv").write_text(CATALOGUE)
    path = folder / "site.yaml"
    path.write_text(f"gpu: h100\ngpus: 16\npools:\n  - {pool}\n")
    return read_clouds(path, 16).pools[1:]


def test_a_pool_in_each_region_at_the_cheapest_instances_price(tmp_path):
    pools = site(tmp_path, "{catalogue: cloud.csv, accelerator: h100, startup: 3 min}")
    assert [(pool.name, pool.owner, round(pool.price_per_gpu_s * 3600, 6), pool.startup_s) for pool in pools] == [
        ("cloud east", "cloud", 10.0, 180.0),
        ("cloud west", "cloud", 12.0, 180.0),
    ]


def test_no_spot_is_no_spot_price(tmp_path):
    (pool,) = site(tmp_path, "{catalogue: cloud.csv, accelerator: H100, regions: [west], spot: null}")
    assert (round(pool.price_per_gpu_s * 3600, 6), pool.spot_s) == (12.0, None)


def test_spot_has_its_own_price_and_regions_are_chosen(tmp_path):
    (pool,) = site(
        tmp_path, "{name: a, catalogue: cloud.csv, accelerator: H100, regions: [west], spot: {up: 5 h, down: 30 min}}"
    )
    assert (pool.name, round(pool.price_per_gpu_s * 3600, 6)) == ("a west", 2.0)
    assert pool.spot_s == (18000.0, 1800.0)


@pytest.mark.parametrize(
    ("pool", "match"),
    [
        ("{catalogue: cloud.csv, accelerator: B200}", "cloud.csv has a price for H100"),
        ("{catalogue: cloud.csv, accelerator: H100, regions: [north]}", "H100 in east, west"),
        ("{catalogue: cloud.csv}", "accelerator"),
        ("{catalogue: cloud.csv, accelerator: H100, price_per_gpu_hour: 1}", "the catalogue has it"),
        ("{accelerator: H100}", "catalogue"),
        ("{catalogue: other.csv, accelerator: H100}", "other.csv"),
        ("{catalogue: site.yaml, accelerator: H100}", "site.yaml"),
    ],
)
def test_what_the_catalogue_does_not_have_is_one_error(tmp_path, pool, match):
    with pytest.raises(UserError, match=match):
        site(tmp_path, pool)
