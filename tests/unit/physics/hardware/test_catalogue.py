from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from every_case import over
from hypothesis import given
from hypothesis import strategies as st

import windtunnel.physics.hardware
from windtunnel.errors import InputFileError, SpecError, UnknownNameError, UserError
from windtunnel.physics.hardware import Cluster, Gpu, cluster_names, cluster_with, get_gpu, gpu_names, parse_cluster
from windtunnel.physics.hardware.catalogue import _aliases, _raw
from windtunnel.physics.hardware.spec import keys_of, short_keys

DATED = re.compile(r".{8,}, \d{4}(-\d{2}(-\d{2})?)?")

# ---- every entry


@over("name", gpu_names())
def test_every_number_of_a_gpu_has_a_source_with_a_date(name: str) -> None:
    gpu = get_gpu(name)
    skip = {"name", "vendor", "generation", "sources", "kernel_scale", "kernel_tables"}
    needed = {item.name for item in dataclasses.fields(gpu)} - skip
    needed |= {"kernel_scale"} if gpu.kernel_scale != (1.0, 1.0, 1.0) else set()
    needed |= {"kernel_tables"} if gpu.kernel_tables else set()
    assert set(gpu.sources) >= needed
    assert all(DATED.fullmatch(text) for text in gpu.sources.values()), gpu.sources


@over("name", cluster_names())
def test_every_number_of_a_node_type_has_a_source_with_a_date(name: str) -> None:
    cluster = parse_cluster(f"{name}:4")
    needed = {"gpus_per_node", "scale_up_domain", "oversubscription"}
    for part in ("scale_up", "scale_out", "host"):
        values = getattr(cluster, part).to_dict().items()
        needed |= {f"{part}.{key}" for key, value in values if isinstance(value, (int, float))}
    assert needed - set(cluster.sources) == set()
    assert all(DATED.fullmatch(cluster.sources[key]) for key in needed)


@over("name", gpu_names())
def test_numbers_of_a_gpu_are_of_the_right_order(name: str) -> None:
    gpu = get_gpu(name)
    assert gpu.name == name
    assert 0.9 < gpu.usable_memory_bytes / gpu.memory_bytes <= 1.0
    assert 16e9 < gpu.memory_bytes < 1e12
    assert 0.25e12 < gpu.memory_bandwidth_bytes_per_s < 50e12
    fastest = gpu.peak_flops("fp16" if gpu.generation == "volta" else "bf16")  # V100's tensor cores know no bf16
    assert 50e12 < fastest < 20e15
    assert 20 < fastest / gpu.memory_bandwidth_bytes_per_s < 1000  # FLOP per byte at the ridge
    assert 50 < gpu.tdp_w < 3000
    cluster = parse_cluster(f"{name}:8")
    assert cluster.gpu == gpu
    fast, slow = cluster.scale_up.bandwidth_bytes_per_s, cluster.scale_out.bandwidth_bytes_per_s
    assert slow < fast < gpu.memory_bandwidth_bytes_per_s
    assert 1e-7 < cluster.scale_up.latency_s <= cluster.scale_out.latency_s < 1e-4


TABLES = {"a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300", "l40s", "rtx_pro_6000_server"}
UNTIMED = {  # NVIDIA GPUs that aiconfigurator-core has not timed, nor their chip
    *("v100-32gb-sxm", "v100-16gb-sxm", "vr200", "t4"),
    *("a10", "a10g", "a40", "rtx-a4000", "rtx-a5000", "rtx-a6000", "rtx-3090", "rtx-3090-ti"),
}


@over("name", gpu_names())
def test_kernel_tables_are_ones_that_exist_and_nvidia_has_them(name: str) -> None:
    gpu = get_gpu(name)
    timed = gpu.vendor == "nvidia" and name not in UNTIMED
    assert gpu.kernel_tables in TABLES if timed else gpu.kernel_tables is None


def test_a_newer_gpu_is_faster() -> None:
    line = [get_gpu(name) for name in ("a100", "h100", "b200", "gb200")]
    for older, newer in pairwise(line):
        assert newer.peak_flops("bf16") > older.peak_flops("bf16")
        assert newer.memory_bandwidth_bytes_per_s > older.memory_bandwidth_bytes_per_s
        assert newer.memory_bytes >= older.memory_bytes


def test_aliases_name_one_thing_each() -> None:
    for kind, names in (("gpus", gpu_names()), ("clusters", cluster_names())):
        rows = [_raw(kind, name) for name in names]
        written = [alias for row in rows for key in ("aliases", "instances") for alias in row.get(key, ())]
        assert len(written) == len(set(written)) == len(_aliases(kind))
        assert not set(written) & set(names)
    assert not ({*gpu_names(), *_aliases("gpus")} & {*cluster_names(), *_aliases("clusters")})


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100-SXM", "h100-sxm"),
        ("h100", "h100-sxm"),
        (" H100 SXM ", "h100-sxm"),
        ("h100_sxm", "h100-sxm"),
        ("H100-SXM-96GB-HBM2e-500W", "h100-sxm-96gb-hbm2e-500w"),
        ("A100-SXM", "a100-80gb-sxm"),
        ("A100-SXM-80GB", "a100-80gb-sxm"),
        ("A100-40GB-SXM", "a100-40gb-sxm"),
        ("H200-SXM", "h200-sxm"),
        ("H200-NVL", "h200-nvl"),
        ("H800-SXM", "h800-sxm"),
        ("B200-SXM", "b200-sxm"),
        ("b300", "b300-sxm"),
        ("GB200", "gb200"),
        ("GB300", "gb300"),
        ("L40S", "l40s"),
        ("MI300X", "mi300x"),
        ("MI325X", "mi325x"),
        ("MI355X", "mi355x"),
        ("TPU-v5p", "tpu-v5p"),
        ("TPU-v6e", "tpu-v6e"),
        ("Gaudi2", "gaudi2"),
    ],
)
def test_spellings_of_published_tables(spelling: str, name: str) -> None:
    assert get_gpu(spelling).name == name
    assert parse_cluster(f"{spelling}:8").gpu.name == name


@pytest.mark.parametrize(
    ("instance", "gpu", "protocol", "gigabits"),
    [
        ("p5.48xlarge", "h100-sxm", "efa", 400),
        ("p5en.48xlarge", "h200-sxm", "efa", 400),
        ("p4d.24xlarge", "a100-40gb-sxm", "efa", 50),
        ("p6-b300.48xlarge", "b300-sxm", "efa", 800),
        ("a3-megagpu-8g", "h100-sxm", "tcpxo", 200),
        ("A4X-HighGPU-4g", "gb200", "roce", 400),
        ("Standard_ND96isr_H100_v5", "h100-sxm", "infiniband", 400),
        ("BM.GPU.A100-v2.8", "a100-80gb-sxm", "roce", 200),
    ],
)
def test_a_cloud_rents_whole_instances(instance: str, gpu: str, protocol: str, gigabits: int) -> None:
    cluster = parse_cluster(f"3 x {instance}")
    each = cluster.gpus_per_node
    assert cluster.n_gpus == 3 * each
    assert cluster == parse_cluster(f"{instance}:{3 * each}")
    assert (cluster.gpu.name, cluster.scale_out.protocol) == (gpu, protocol)
    assert cluster.scale_out.bandwidth_bytes_per_s == gigabits * 1e9 / 8
    with pytest.raises(SpecError, match=re.escape(f"an instance has {each}: give {instance}:{each * (each + 1)}")):
        parse_cluster(f"{instance}:{each + 1}")


def test_names_as_people_write_them() -> None:
    assert parse_cluster("rtx4090:8") == parse_cluster("rtx-4090:8")
    assert parse_cluster("8 h100") == parse_cluster("8xh100") == parse_cluster("h100:8")


def test_known_values() -> None:
    h100 = parse_cluster("h100:8192")
    assert (h100.scale_up.bandwidth_bytes_per_s, h100.scale_out.bandwidth_bytes_per_s) == (450e9, 50e9)
    assert h100.nvlink_sharp
    assert not parse_cluster("a100:8").nvlink_sharp
    assert parse_cluster("h800:8").scale_up.bandwidth_bytes_per_s == 200e9
    assert parse_cluster("gb200:144").scale_up_domain == 72
    assert parse_cluster("aws-p5:64").scale_out.protocol == "efa"
    assert parse_cluster("aws-p5:64").gpu == h100.gpu
    assert parse_cluster("mi300x:8").scale_up.to_one_peer_bytes_per_s == 64e9
    assert get_gpu("a100-40gb-sxm").kernel_scale.memory == pytest.approx(1.555 / 2.039, abs=1e-3)


# ---- files and mappings


def _file(folder: Path, text: str) -> Path:
    path = folder / "ours.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    text = """
    gpu: {base: h100-sxm, memory_bandwidth: 1.675 TB/s, memory: 40 GiB}
    gpus: 64
    gpus_per_node: 4
    nic: 200 Gb/s
    oversubscription: 2
    rail_optimised: no
    """
    path = _file(tmp_path, text)
    ours = parse_cluster(path)
    assert ours.name == "ours"
    assert (ours.n_gpus, ours.gpus_per_node, ours.scale_up_domain, ours.n_nodes) == (64, 4, 4, 16)
    assert ours.scale_out.bandwidth_bytes_per_s == 25e9
    assert ours.scale_out.protocol == "infiniband"
    assert "NDR" not in ours.scale_out.name
    assert (ours.oversubscription, ours.rail_optimised) == (2.0, False)
    assert ours.gpu.name == "h100-sxm-custom"
    assert ours.gpu.kernel_scale == (1.0, 0.5, 1.0)
    assert ours.gpu.usable_memory_bytes < ours.gpu.memory_bytes
    assert ours.gpu.sources["memory_bandwidth_bytes_per_s"] == f"given in {path}"
    assert ours.sources["scale_out.bandwidth_bytes_per_s"] == f"given in {path}"
    assert ours.sources["scale_out.latency_s"] == parse_cluster("h100:8").sources["scale_out.latency_s"]
    assert parse_cluster(f"{path}:128") == cluster_with(ours, n_gpus=128)


def test_a_gpu_of_ones_own_from_nothing(tmp_path: Path) -> None:
    text = """
    name: tomorrow
    gpus: 16
    gpus_per_node: 16
    scale_up_domain: 16
    scale_up: {bandwidth: 2 TB/s, latency: 1 us, protocol: nvlink}
    scale_out: {bandwidth: 1.6 Tb/s, latency: 2 us}
    host: {pcie: 128 GB/s, memory: 4 TiB}
    gpu:
      name: x1
      memory: 512 GiB
      memory_bandwidth: 20 TB/s
      flops: {bf16: 8 PFLOP/s, fp8: 16 PFLOP/s}
      sm_count: 200
      tdp: 2000
    """
    ours = parse_cluster(_file(tmp_path, text))
    assert (ours.name, ours.gpu.name, ours.gpu.kernel_tables) == ("tomorrow", "x1", None)
    assert ours.scale_out.bandwidth_bytes_per_s == 200e9


BAD_FILES = [
    ("gpu: h100\ngpus: 8\nnics: 8", "nics", "did you mean nic"),
    ("gpu: h100\ngpus: 12", "gpus", "8 or 16"),
    ("gpu: h100", "gpus", "how many"),
    ("gpus: 8", "gpu", "name of a GPU"),
    ("gpu: [h100, a100]\ngpus: 8", "gpu", "mixed GPU types are for predict and plan only"),
    ("gpu: {base: h100, memry: 1 GiB}\ngpus: 8", "gpu.memry", "did you mean memory"),
    ("gpu: {base: h100, memory: 80 Gb}\ngpus: 8", "gpu.memory", "bits"),
    ("gpu: {base: h100, flops: {bf17: 1 TFLOP/s}}\ngpus: 8", "gpu.flops.bf17", "must be one of"),
    ("gpu: {base: h100, flops: {bf16: fast}}\ngpus: 8", "gpu.flops.bf16", "TFLOP/s"),
    ("gpu: {base: h100, flops: 3}\ngpus: 8", "gpu.flops", "give a mapping"),
    ("gpu: {base: h100, usable_memory: 90 GiB}\ngpus: 8", "gpu.usable_memory", "exceed"),
    ("gpu: {memory: 80 GiB}\ngpus: 8\nbase: hgx-h100", "gpu.memory_bandwidth", "is not given"),
    ("gpu: h100\ngpus: 8\nnic: 0 Gb/s", "nic.bandwidth_bytes_per_s", "above zero"),
    ("gpu: h100\ngpus: 8\nnic: 400 Gb/s\nscale_out: 400 Gb/s", "scale_out", "same as nic"),
    ("gpu: h100\ngpus: 8\nnic: {latency: 3 lightyears}", "nic.latency", "3 us"),
    ("gpu: h100\ngpus: 8\nhost: fast", "host", "key: value"),
    ("gpu: h100\ngpus: 8\nrail_optimised: perhaps", "rail_optimised", "true or false"),
    ("gpu: h100\ngpus: 99999999999", "gpus", "not meant"),
    ("gpu: h100\ngpus: 8\nname: [a]", "name", "give text"),
]


@pytest.mark.parametrize(("text", "field", "remedy"), BAD_FILES)
def test_a_mistake_in_a_file_names_file_field_and_remedy(tmp_path: Path, text: str, field: str, remedy: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        parse_cluster(path)
    assert caught.value.field == field
    assert remedy in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no"),
        ("- a\n- b", "holds no"),
        ("gpu: h100\ngpu: a100", "line 2: 'gpu' is given twice"),
        ("gpu: [h100", "line"),
        ("a: &x {b: *x}", "refers to what it is part of"),
        ("<<: {a: b}", "plain word"),
        ("? [a]\n: b", "plain word"),
        ("gpu: \x07", "not allowed"),
        ("[" * 5000, "nested deeper than 64"),
        ("[" * 200_000, "nested deeper than 64"),
        ("gpu: *nothing", "undefined alias"),
        ("x: y\n" * 1_000_000, "larger than"),
    ],
    ids=lambda text: text[:20],
)
def test_a_file_that_is_no_form_is_one_clear_message(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputFileError, match=re.escape(problem)):
        parse_cluster(_file(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "raw.yaml").write_bytes(b"gpu: \xff\xfe")
    for path in (tmp_path / "raw.yaml", tmp_path / "none.yaml", tmp_path, "no/such/place:8", "x" * 5000 + ".yaml"):
        with pytest.raises(InputFileError):
            parse_cluster(path)
    with pytest.raises(InputFileError):
        parse_cluster("nul\0.yaml")


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("h100-sxm", SpecError, "say how many GPUs, such as h100-sxm:64"),
        ("h100-sxm:", SpecError, "number of GPUs"),
        ("h100-sxm:-8", SpecError, "number of GPUs"),
        ("h100-sxm:8k", SpecError, "number of GPUs"),
        ("h100-sxm:12", SpecError, "8 or 16"),
        ("h100-sxm:0", SpecError, "number of GPUs"),
        ("h100-sxm:9999999999", SpecError, "not meant"),
        ("h100:8,a100:8", SpecError, "mixed GPU types are for predict and plan only"),
        ("h100:8+a100:8", SpecError, "mixed GPU types are for predict and plan only"),
        ("", SpecError, "name:count"),
        ("hgx-a101:8", UnknownNameError, "hgx-a100"),
        ("zzz:8", UnknownNameError, "known: "),
        (":8", UnknownNameError, "GPU or cluster ''"),
    ],
)
def test_a_mistake_in_a_shorthand(text: str, kind: type[UserError], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        parse_cluster(text)


# ---- whatever is thrown at it

NAMES = st.sampled_from(["h100", "h100-sxm", "gb200", "aws-p5", "hgx-a100", "v100", "", "ours.yaml", "/"])
COUNTS = st.one_of(st.integers(-10, 10**12).map(str), st.text(max_size=6))


@given(st.one_of(st.text(), st.tuples(NAMES, st.sampled_from([":", "", "::", ","]), COUNTS).map("".join)))
def test_any_text_is_a_cluster_or_a_user_error(text: str) -> None:
    _try(text)


def _keys(kind: type) -> Iterator[str]:
    yield from keys_of(kind)
    yield from short_keys(kind)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["h100", "hgx-h100", "400 Gb/s", "3 us", "80 GiB", "8", "nvlink", "bf16", "1 TFLOP/s", "hopper"]),
)
KEYS = st.one_of(
    st.sampled_from(sorted({*_keys(Cluster), *_keys(Gpu), "bandwidth", "latency", "pcie", "compute", "bf16"})),
    st.text(max_size=4),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))
MAPPINGS = st.dictionaries(st.one_of(KEYS, st.integers(), st.none()), VALUES, max_size=6)
NEARLY = st.builds(lambda over: {"gpu": "h100", "gpus": 64, **over}, MAPPINGS)


@given(st.one_of(MAPPINGS, NEARLY))
def test_any_mapping_is_a_cluster_or_a_user_error(mapping: Mapping[Any, Any]) -> None:
    _try(mapping)


YAML_BITS = st.sampled_from(
    [
        *"[]{}:,-&*!|>%@`'\"#?~ \n",
        "  ",
        "gpu",
        "gpus",
        ": ",
        "\n",
        "h100",
        "8",
        "base",
        "hgx-h100",
        "&a ",
        "*a",
        "!!python",
        "\t",
    ]
)


@given(st.one_of(st.text(), st.lists(YAML_BITS, max_size=30).map("".join)))
def test_any_file_is_a_cluster_or_a_user_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    _try(path)


def _try(spec: Any) -> None:
    try:
        cluster = parse_cluster(spec)
    except UserError:
        return
    assert isinstance(cluster, Cluster)
    assert cluster.n_gpus >= 1
    assert parse_cluster(cluster.to_dict()) == cluster


def test_importing_hardware_loads_no_parser() -> None:
    code = (
        "import sys, windtunnel.physics.hardware; print([m for m in ('pydantic', 'yaml', 'numpy') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_the_catalogue_is_in_the_package() -> None:
    folder = Path(windtunnel.physics.hardware.__file__).parent / "catalogue"
    assert {path.stem for path in (folder / "gpus").iterdir()} == set(gpu_names())


def test_a_gpu_that_the_catalogue_lacks_is_said_to_be_unknown() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'No-Such-GPU'.*describe one of your own"):
        get_gpu("No-Such-GPU")


NOT_TIMED_HERE = (
    "vr200", "h20", "h20-3e", "tpu-v7x", "trainium2", "trainium3", "gaudi3", "ascend-910c",
)  # fmt: skip


@over("name", NOT_TIMED_HERE)
def test_an_entry_that_rests_on_no_measurement_says_of_each_number_what_it_is(name: str) -> None:
    cluster = parse_cluster(f"{name}:8")
    for text in (*cluster.gpu.sources.values(), *cluster.sources.values()):
        assert re.match(r"(measured|marketed|inferred|assumed): ", text), text
    assert any(text.startswith("marketed") for text in cluster.gpu.sources.values())
