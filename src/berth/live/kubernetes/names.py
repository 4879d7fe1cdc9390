"""The names that users, the scheduler and the nodes' agents share on a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping

GATE = "berth.dev/gate"
"""The scheduling gate of pods that berth steers: kube-scheduler leaves them alone until berth lifts it."""
GATED = "SchedulingGated"
"""The reason of the condition PodScheduled while a pod has a gate."""
OLD_SCHEDULER = "berth"
"""The `schedulerName` of pods made for berth 0.2, which bound them itself."""
DRIVER = "gpu.berth.dev"
"""The DRA driver that publishes the GPUs of a node, and the DeviceClass of the same name."""
RESOURCE = "berth.dev/gpu"
"""A count of GPUs, of each of which the pod gets the part that its annotations say.

The device plugin advertises `SLOTS_PER_GPU` units for each GPU, as many as containers may share it.
"""
SLOTS_PER_GPU = 16
NAMESPACE = "berth-system"
"""Where `berth k8s install` puts everything."""
LEASE = "berth-steerer"
POLICY = "berth.dev/policy"
"""The annotation of the Lease with the policy of the steerer that leads."""
MODE = "berth.dev/mode"
"""And with what it does with its decisions: `place` or `advise`."""
STARTS = "berth.dev/starts"
"""And with what its start intervals have learned."""
TENANTS = "berth-tenants"
"""The ConfigMap that says how many GPUs namespaces have."""
IN_FORCE = "berth.dev/in-force"
"""And its annotation with what of it is in force, as JSON."""
GATING = "berth-gate"
"""The webhook that adds the gate, and all that belongs to it."""
AGENT = "berth-node"
"""The DaemonSet of the nodes' agents."""
METRICS_PORT = 9400

ASKED_MILLI = "berth.dev/gpu-milli"
ASKED_MEM_MIB = "berth.dev/gpu-mem-mib"
"""Compute and memory (MiB) of each GPU in an annotation. They are resources too, by which Kubernetes counts parts of
GPUs: a node has 1000 milli a card and the memory of all cards, and a container asks for all that it takes together."""
MAX_MEM_MIB = "berth.dev/gpu-mem-max-mib"
"""How far its memory of each GPU may grow while it runs, in MiB."""
APPLICATION = "berth.dev/application"
KIND = "berth.dev/kind"
ENOUGH = "berth.dev/enough"
"""What is enough for a pod by its application's profile if it asks for more: `300 milli and 8192 MiB`."""
MODELS = "berth.dev/models"
"""The GPU models that will do, separated by commas."""
GANG = "berth.dev/gang"
"""`NAME/SIZE`: pods of a namespace that start together or not at all. `SIZE` alone: their labels name the gang."""
GROUP_LABELS = {
    "LeaderWorkerSet": ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"),
    "JobSet": ("jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/restart-attempt"),
    "Kubeflow": ("training.kubeflow.org/job-name",),
}
"""The labels by which these controllers tell the groups of their pods apart; a pod has the first at least."""
POD_GROUP_LABELS = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
"""The labels that name a pod's PodGroup of the scheduler plugins, the newer first."""
PLUGINS_GROUP = "scheduling.x-k8s.io"
"""The API group of that PodGroup."""
OWN_GROUP = "scheduling.k8s.io"
"""The API group of Kubernetes' own, which a pod names in its spec."""
HOLD = "berth.dev/hold"
"""The gate of a pod with it is not lifted until it is taken away, or is `false`. Kubernetes lets no one add a
scheduling gate to a pod that there is."""
BURST = "berth.dev/burst"
ESTIMATE = "berth.dev/estimate"
"""How long the pod will run, in seconds (`600`) or with a unit (`2h`)."""
NEW_NODE = "berth.dev/new-node-after"
"""How long the pod waits for room before its gate is lifted, so that an autoscaler may make a node for it (`5m`)."""
RELEASED = "berth.dev/released"
"""Why the pod's gate was lifted without a placement, in words."""
INTERACTIVE = "berth.dev/interactive"
"""`true`: the pod leaves its GPUs while it calls no CUDA and others on its cards wait for memory."""
PLACEMENT = "berth.dev/placement"
"""What berth decided, as JSON, written as the gate is lifted and so there before the kubelet sees the pod:

`{"gpus":[{"index":0,"uuid":"GPU-…" or null,"milli":500,"mem_mib":8192},…],
  "shared":true,"best_effort":false,"policy":"…"}`
"""

PLACED_UID = "berth.dev/placed-uid"
"""The uid of the pod that the placement is for: a pod made from the text of another one has not got its place."""

DECIDED = (PLACEMENT, PLACED_UID, ENOUGH)
"""What is taken away with a pod's part."""

GPU_MEMORY = "berth.dev/gpu-memory"
"""What a running pod has of each GPU's memory, written by the node's agent as JSON (`placements.GpuMemory`)."""
SUSPEND = "berth.dev/suspend"
"""Written by the steerer: `true` has the node's agent take the pod off its GPUs, until it is taken away."""

MEASURED = "berth.dev/measured"
"""What a pod used, written by the node's agent when it has ended, as JSON, by which the scheduler places the next:

`{"peak_mib":8192,"refused":0,"needed_mib":0}`: the most it held on one GPU; how many allocations were refused; and
what it would have held with the largest of those, each in MiB.
"""

LABEL_GPU_COUNT = "berth.dev/gpu-count"
LABEL_GPU_INDICES = "berth.dev/gpu-indices"
"""Which GPUs the device plugin gives, by their index on the node, such as `0-3.6`; see `gpu_labels`. Pods that ask for
`berth.dev/gpu` go there alone. Without it, and with a count, they are 0 to count - 1."""
LABEL_GPUS_AILING = "berth.dev/gpus-ailing"
"""Those of them on which nothing is to start, in the same form; absent or empty where all are well."""
LABEL_GPU_DRAINED = "berth.dev/gpu-drained-"
"""And the index of a GPU: while a node has this label, nothing new starts there. One label a GPU, because two operators
would overwrite each other's in a common one; the agent does not touch them."""
LABEL_GPU_MODEL = "berth.dev/gpu-model"
LABEL_GPU_MEMORY_MIB = "berth.dev/gpu-memory-mib"
GPU_LABELS = (LABEL_GPU_COUNT, LABEL_GPU_INDICES, LABEL_GPUS_AILING, LABEL_GPU_MODEL, LABEL_GPU_MEMORY_MIB)
"""The labels that the agent writes into its node; `LABEL_GPU_DRAINED` is an operator's."""
HOSTNAME = "kubernetes.io/hostname"
CLAIMS_API = "resource.k8s.io/v1"
"""The version of resource claims that is known here; Kubernetes has it from 1.34 on."""

HISTORY_FOLDER = "/var/lib/berth-history"
"""Of the scheduler's pod: what is gathered from the nodes."""
GATHERED = f"history?begin={HISTORY_FOLDER}"
"""The knowledge that grows by it."""

_MADE_ANEW = {
    "Job": re.compile(r"-\d{6,}$"),
    "ReplicaSet": re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5,10}$"),
}
"""What a CronJob and a Deployment add to the names of what they make: minutes, and a hash that spells no word."""


def pod_path(namespace: str, name: str) -> str:
    """The path of a pod at the API server."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def controller_name(kind: str, name: str) -> str:
    """What pods of one controller have in common, also those of the next Job of a CronJob: `Job/train`."""
    made = _MADE_ANEW.get(kind)
    return f"{kind}/{made.sub('', name) if made else name}"


def application_of(namespace: str, annotations: Mapping[str, str], controller: str) -> str:
    """The name under which a pod's profile and run times are learned; empty if nothing says it. Applications of two
    namespaces are two, and a kind is one for all."""
    if not (named := annotations.get(APPLICATION, "")) and (kind := annotations.get(KIND, "")):
        return kind
    return f"{namespace}/{named or controller}" if named or controller else ""
