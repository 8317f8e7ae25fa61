"""Parts that many questions have: a model and a cluster, each as it is named and with what is changed of it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, part


@part
class ModelPart:
    """A model: a word alone is its `base`."""

    word: ClassVar[str] = "base"
    base: Annotated[str, About("Name of a shipped model, path of a config.json, or a captured folder.")]
    layers: Annotated[int | None, About("Layers.", least=1)] = None
    max_sequence_length: Annotated[int | None, About("Longest sequence.", least=1)] = None
    mtp_layers: Annotated[int | None, About("Layers that predict further tokens.", least=0)] = None
    tied_embeddings: Annotated[bool | None, About("Whether input and output embeddings are one matrix.")] = None
    vocab_size: Annotated[int | None, About("Tokens of the vocabulary.", least=1)] = None


@part
class GpuPart:
    """A kind of GPU: a name, and what of it is changed."""

    word: ClassVar[str] = "base"
    base: Annotated[str | None, About("Name of a GPU.")] = None
    name: Annotated[str | None, About("What it is called.")] = None
    vendor: Annotated[str | None, About("Who makes it.")] = None
    generation: Annotated[str | None, About("Its generation.")] = None
    memory_bytes: Annotated[int | None, About("Memory.", names=("memory",), unit="bytes")] = None
    usable_memory_bytes: Annotated[
        int | None, About("Memory that a job can have.", names=("usable_memory",), unit="bytes")
    ] = None
    memory_bandwidth_bytes_per_s: Annotated[
        float | None, About("Bandwidth of its memory.", names=("memory_bandwidth",), unit="bandwidth")
    ] = None
    flops_per_s: Annotated[
        dict[str, float] | None, About("Dense peak of each format.", names=("flops",), unit="flops")
    ] = None
    sm_count: Annotated[int | None, About("Streaming multiprocessors.", unit="count", least=1)] = None
    tdp_w: Annotated[float | None, About("Rated power in watts.", names=("tdp",), least=0)] = None
    kernel_tables: Annotated[str | None, About("GPU whose measured kernels it takes.")] = None
    kernel_scale: Annotated[
        dict[str, float] | None, About("Factors on measured kernels: compute, memory, clock.", least=0)
    ] = None
    sources: Annotated[dict[str, str] | None, About("Where each number comes from.")] = None


@part
class LinkPart:
    """A link of each GPU: a bandwidth alone may stand for it."""

    word: ClassVar[str] = "bandwidth_bytes_per_s"
    name: Annotated[str | None, About("What it is called.")] = None
    bandwidth_bytes_per_s: Annotated[
        float | None, About("Bandwidth per GPU, one direction.", names=("bandwidth",), unit="bandwidth")
    ] = None
    latency_s: Annotated[float | None, About("Latency.", names=("latency",), unit="time")] = None
    protocol: Annotated[str | None, About("Protocol, e.g. infiniband, roce or nvlink.")] = None
    peer_bandwidth_bytes_per_s: Annotated[
        float | None, About("Bandwidth between two GPUs alone.", names=("peer_bandwidth",), unit="bandwidth")
    ] = None
    torus: Annotated[str | None, About("Chips along each axis of a torus, e.g. 16x20x28.")] = None
    cube: Annotated[int | None, About("Chips of an axis of cubes that optical switches join.", unit="count")] = None
    slice: Annotated[str | None, About("Slice of a torus, e.g. 4x8x64 (the most compact).")] = None


@part
class HostPart:
    """The host of a node."""

    pcie_bandwidth_bytes_per_s: Annotated[
        float | None, About("PCIe of one GPU.", names=("pcie",), unit="bandwidth")
    ] = None
    memory_bytes: Annotated[int | None, About("Memory of a GPU's share.", names=("memory",), unit="bytes")] = None
    c2c_bandwidth_bytes_per_s: Annotated[
        float | None, About("Chip-to-chip link of one GPU.", names=("c2c",), unit="bandwidth")
    ] = None
    cpu_speed: Annotated[float | None, About("Speed of its cores, relative.", least=0)] = None


@part
class ClusterPart:
    """A cluster: a word alone is its `base`; the fields are those of a cluster file."""

    word: ClassVar[str] = "base"
    base: Annotated[str | None, About("GPU and count, e.g. h100-sxm:8192, or a cluster file in YAML.")] = None
    name: Annotated[str | None, About("What it is called.")] = None
    gpu: Annotated[GpuPart | None, About("Another GPU by its name, or its numbers.")] = None
    n_gpus: Annotated[int | None, About("GPUs.", names=("gpus",), unit="count", least=1)] = None
    gpus_per_node: Annotated[int | None, About("GPUs of a node.", unit="count", least=1)] = None
    scale_up_domain: Annotated[int | None, About("GPUs that NVLink joins.", unit="count", least=1)] = None
    scale_up: Annotated[LinkPart | None, About("Link inside a node.")] = None
    scale_out: Annotated[LinkPart | None, About("Link between nodes, e.g. 800Gb/s.", names=("nic",))] = None
    host: Annotated[HostPart | None, About("Host of a node.")] = None
    oversubscription: Annotated[float | None, About("Of the fabric above the leaves.", least=0)] = None
    rail_optimised: Annotated[
        bool | None, About("Whether each GPU of a node has a leaf of its own.", names=("rail_optimized",))
    ] = None
    gpus_per_pod: Annotated[int | None, About("GPUs below one pod of the fabric.", unit="count", least=1)] = None
    nvlink_sharp: Annotated[bool | None, About("Whether the switch reduces.")] = None
    calibration: Annotated[dict[str, object] | None, About("What `windtunnel calibrate` measured.")] = None
    sources: Annotated[dict[str, str] | None, About("Where each number comes from.")] = None

    def __post_init__(self) -> None:
        if self.base is None and self.gpu is None:
            raise SpecError("cluster", None, "name one, such as h100-sxm:8192, or give its gpu and gpus")
