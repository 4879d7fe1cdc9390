"""Public traces that `berth trace fetch` downloads from their publishers: address, licence, size, checksum.

Only what is known is stated. The sizes and checksums of openb are of the files at the commit that their
addresses name; Philly's are those of the publisher's Git LFS pointer; PAI's checksums are in the publisher's
README. Where there is none, the first download is noted in a lock file and later ones are held against that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from berth.errors import FetchError


@dataclass(frozen=True)
class RemoteFile:
    """One file at its publisher."""

    name: str
    url: str
    size_bytes: int | None = None
    """None where the publisher tells none."""
    sha256: str | None = None
    """None where the publisher tells none."""


@dataclass(frozen=True)
class PublicTrace:
    """A published trace: who may do what with it, and its files."""

    name: str
    summary: str
    publisher: str
    licence: str
    cite: str
    files: tuple[RemoteFile, ...]
    readable: bool
    """Whether berth reads its files as they are."""


_CLUSTERDATA: Final = (
    "https://raw.githubusercontent.com/alibaba/clusterdata/7a6c496e4f4b6ce6150be8f881cb051bf2abff42"
)
_ACME: Final = "https://raw.githubusercontent.com/InternLM/AcmeTrace/6d6ac9cd15f3b01151ac6ba00ecddd9156f0dc73/data/job_trace"
_ASI: Final = "https://tre-clusterdata.oss-cn-hangzhou.aliyuncs.com/cluster-trace-gpu-v2026/data"
_PAI: Final = "https://aliopentrace.oss-cn-beijing.aliyuncs.com/v2020GPUTraces"

_OPENB_FILES: Final = (
    ("node_list_all_node", 52_287, "5a85c2af79c66a1efff8bbcbda430400aae56d8431370d738480967e1a9c6b15"),
    ("node_list_gpu_node", 42_353, "2beca64b4d3dfa342036a34b56a495c6cef9225db836c81f541282cb1df320b5"),
    ("pod_list_cpu0", 499_765, "1bc3fd9ee5c1468ccd018f624d9222746e08d59f963f66b925804734271c0eaa"),
    ("pod_list_cpu037", 518_687, "8ed554026d041b15ff21ddc104d9a21dbd9a93c496262fa23ef7b5be27e220dc"),
    ("pod_list_cpu050", 525_811, "747f43247bffc2b0bb081d7f61f0705ca8d390dafc0b647e642c92f3baf3ba1e"),
    ("pod_list_cpu072", 537_576, "f8a2b031461b54d7b9f06d55473c2371eb3357b78a255c646bdca5e0833a8a2f"),
    ("pod_list_cpu100", 554_709, "bec1c33fbdde61fd463877534ec79b393aec73e1cbb22d55fab9f166ac480982"),
    ("pod_list_cpu200", 622_703, "b7e9d8a1a601da84d6e0b4110b19ef5001be5e4796d33e7b82f166ba95161f87"),
    ("pod_list_cpu235", 651_171, "87bebd4d012faa8305ce1fd82737f51cf03361aac28b75d42e34aa656d7f4ee0"),
    ("pod_list_cpu250", 663_708, "134c21ff96d57533df8a37b67632972884fec9396e77cd0898ddc370cc8e607d"),
    ("pod_list_cpu300", 710_698, "76528825f40ee662cb098b3b6e683c1efd9f87a0c8af7e628df1f32c639636d1"),
    ("pod_list_default", 575_468, "1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8"),
    ("pod_list_gpushare100", 561_220, "12dbc07d6a49bf8641e2275a2ff5bf7be74b5df7d148d531e135b140b95f9a3d"),
    ("pod_list_gpushare20", 574_603, "9be2d0efb52e242c32e23dd184cc5fcc1983478c6c9c02cbb6b4b62925c0ffcd"),
    ("pod_list_gpushare40", 572_662, "d83ce79a4eb6987524bedbb0c65e41aed3a36bf6c1b78b86234c3687a07e1d40"),
    ("pod_list_gpushare60", 566_361, "d31809628128a1f24491086eda4af3e23882b9213d3ef57a56ee2d1af69492fe"),
    ("pod_list_gpushare80", 563_740, "88b6649369ced40d0fde287d2498ea61ff4b05fccba8bdc95daf6042f2f8431e"),
    ("pod_list_gpuspec05", 577_176, "8f1c0ef7e4e511e982bd2818898ba22ee6d273bf5fce124b7ace285b5928cf4e"),
    ("pod_list_gpuspec10", 579_461, "2dc7e4cb9480484f08539720b433a9ec9ab5d76b396f3f7557c53a2ff78a7611"),
    ("pod_list_gpuspec20", 582_612, "6b9b89ab8913c1c074e994e98f548cf1a872fc5f76f2442ca8cd514a478b00a9"),
    ("pod_list_gpuspec25", 584_915, "9d030679a2ccd7e27a7ec9ff15baff34480d22a0012515691fc187e3f35ee68c"),
    ("pod_list_gpuspec33", 587_467, "eca4f746db1e5b25864ad021b55ece3943e101a3ebd4574d09dcb95c46117652"),
    ("pod_list_multigpu20", 271_530, "d9ec6f6c74fb980cc0b81239470c6353fceea077ea9abd610003b604c7cc2b01"),
    ("pod_list_multigpu30", 277_920, "a5e479c6444b1d83eef848159cf00c3cfa13441b2d1e2c113c391b91f1cc5b11"),
    ("pod_list_multigpu40", 286_202, "32c9e8731ca07ef96108aa65f2a289bb9aacb47f642ed9e3789f99b242df60eb"),
    ("pod_list_multigpu50", 297_219, "206f2f5959db30ecb7c44e7f13197c8ec50b7a35558ad3777cc3662ef0fe5373"),
)
_PAI_FILES: Final = (
    ("pai_group_tag_table", None, "722fef30b7fb7aa50dabd79155614b5423a9d65cf45a9b26c590d57725423a14"),
    ("pai_instance_table", None, "1bf1e423a7ce3f8d086699801c362fd56a7182abdb234139e5ebbed97995ca06"),
    ("pai_job_table", None, "5aad7f7caac501136d14ed6a48e40546f825d7b0617a3a4f337e2348fe0a6cb0"),
    ("pai_machine_metric", None, "53ad917193d3b1dd0f3055e723148b1f36c2f81789b014ea2930a7875892eef5"),
    ("pai_machine_spec", 30_449, "cc0d38a4045af1b1af8179de8b1b54b1ddd995e6160d6d061a6b1000f1276c2d"),
    ("pai_sensor_table", None, "9a0b82e8bdf3949281e4ba1423d9b4b34847e52799eecb138966de46da69c7a0"),
    ("pai_task_table", None, "cd1d6dc3215d2a8607ccf6b6dd952b5db776df86926c73259fea7c1499ac40e5"),
)

PUBLIC_TRACES: Final[dict[str, PublicTrace]] = {
    trace.name: trace
    for trace in (
        PublicTrace(
            name="openb",
            summary="Alibaba GPU-sharing cluster 2023: two node lists, 24 pod lists",
            publisher="github.com/alibaba/clusterdata, cluster-trace-gpu-v2023",
            licence="Apache-2.0 where hkust-adsl/kubernetes-scheduler-simulator ships it; none stated here",
            cite="Weng and others, Beware of Fragmentation, USENIX ATC 2023",
            files=tuple(
                RemoteFile(
                    f"openb_{name}.csv",
                    f"{_CLUSTERDATA}/cluster-trace-gpu-v2023/csv/openb_{name}.csv",
                    size,
                    sha256,
                )
                for name, size, sha256 in _OPENB_FILES
            ),
            readable=True,
        ),
        PublicTrace(
            name="philly",
            summary="Microsoft Philly 2017: jobs (JSON), machines, use of GPU, CPU and memory",
            publisher="github.com/msr-fiddle/philly-traces",
            licence="CC-BY-4.0",
            cite="Jeon and others, Analysis of Large-Scale Multi-Tenant GPU Clusters, USENIX ATC 2019",
            files=(
                RemoteFile(
                    "trace-data.tar.gz",
                    "https://media.githubusercontent.com/media/msr-fiddle/philly-traces/master"
                    "/trace-data.tar.gz",
                    1_055_988_361,
                    "2037ccf63a725a02be718b0e1aeee6142c90b7f62d0d849295120e9f6ba13d2c",
                ),
            ),
            readable=False,
        ),
        PublicTrace(
            name="pai",
            summary="Alibaba PAI 2020: jobs, tasks, instances, sensors and machines as seven tables",
            publisher="github.com/alibaba/clusterdata, cluster-trace-gpu-v2020",
            licence="CC-BY-4.0",
            cite="Weng and others, MLaaS in the Wild, NSDI 2022",
            files=tuple(
                RemoteFile(f"{name}.tar.gz", f"{_PAI}/{name}.tar.gz", size, sha256)
                for name, size, sha256 in _PAI_FILES
            ),
            readable=False,
        ),
        PublicTrace(
            name="helios",
            summary="SenseTime Helios 2020: Slurm jobs of four clusters",
            publisher="github.com/S-Lab-System-Group/HeliosData",
            licence="CC-BY-4.0",
            cite="Hu and others, Characterization and Prediction of Deep Learning Workloads, SC 2021",
            files=(
                RemoteFile(
                    "data.zip",
                    "https://github.com/S-Lab-System-Group/HeliosData"
                    "/raw/159f0caeec16600b9b6017862952a36aae01c43f/data.zip",
                ),
            ),
            readable=False,
        ),
        PublicTrace(
            name="acme",
            summary="Shanghai AI Lab's Acme 2023: jobs of Seren and Kalos",
            publisher="github.com/InternLM/AcmeTrace",
            licence="CC-BY-4.0",
            cite="Hu and others, Characterization of Large Language Model Development, NSDI 2024",
            files=tuple(
                RemoteFile(f"trace_{name}.csv", f"{_ACME}/trace_{name}.csv") for name in ("seren", "kalos")
            ),
            readable=True,
        ),
        PublicTrace(
            name="dlrm",
            summary="Alibaba DLRM 2025: instances of 156 inference services",
            publisher="github.com/alibaba/clusterdata, cluster-trace-gpu-v2025",
            licence="none stated",
            cite="Yang and others, GPU-Disaggregated Serving for Deep Learning Recommendation Models, NSDI 2025",
            files=(
                RemoteFile(
                    "disaggregated_DLRM_trace.csv",
                    f"{_CLUSTERDATA}/cluster-trace-gpu-v2025/disaggregated_DLRM_trace.csv",
                    2_118_900,
                    "fb17bc4b3f412d5280f70f04a1bdf2adfc4429d1e61237a5b106e86206414295",
                ),
            ),
            readable=True,
        ),
        PublicTrace(
            name="spot",
            summary="Alibaba spot GPUs 2026: 466,867 jobs of two tiers, 4,278 nodes",
            publisher="github.com/alibaba/clusterdata, cluster-trace-v2026-spot-gpu",
            licence="none stated",
            cite="Duan and others, GFS: A Preemptive Scheduling Framework for GPU Clusters, ASPLOS 2026",
            files=(
                RemoteFile(
                    "node_info_df.csv",
                    f"{_CLUSTERDATA}/cluster-trace-v2026-spot-gpu/node_info_df.csv",
                    78_330,
                    "1aba161961a5a4a1a61aa581383c5e5abe3400b59f8597ba8c4eef7597bc9d18",
                ),
                RemoteFile(
                    "job_info_df.csv",
                    f"{_CLUSTERDATA}/cluster-trace-v2026-spot-gpu/job_info_df.csv",
                ),
            ),
            readable=True,
        ),
        PublicTrace(
            name="asi",
            summary="Alibaba ASI 2026: execution spans of pods, 1.2 GB",
            publisher="github.com/alibaba/clusterdata, cluster-trace-gpu-v2026",
            licence="none stated",
            cite="Alibaba, cluster-trace-gpu-v2026",
            files=(
                RemoteFile(
                    "asi_opensource_job_execution_summary.zip",
                    f"{_ASI}/asi_opensource_job_execution_summary.zip",
                    1_188_295_031,
                ),
            ),
            readable=False,
        ),
        PublicTrace(
            name="asi-hours",
            summary="Alibaba ASI 2026: each pod's use by the hour, 352 GB, and its servers, 3 GB",
            publisher="github.com/alibaba/clusterdata, cluster-trace-gpu-v2026",
            licence="none stated",
            cite="Alibaba, cluster-trace-gpu-v2026",
            files=(
                RemoteFile(
                    "asi_opensource_server_hourly.zip",
                    f"{_ASI}/asi_opensource_server_hourly.zip",
                    3_080_121_387,
                ),
                RemoteFile(
                    "asi_opensource_pod_hourly.zip", f"{_ASI}/asi_opensource_pod_hourly.zip", 351_803_513_445
                ),
            ),
            readable=False,
        ),
    )
}
"""Every trace of the catalogue by its name."""


def public_trace(name: str) -> PublicTrace:
    """The trace of this name; FetchError where the catalogue has none."""
    if name not in PUBLIC_TRACES:
        raise FetchError(f"no public trace '{name}'; there are {', '.join(PUBLIC_TRACES)}")
    return PUBLIC_TRACES[name]
