"""What `berth k8s install` puts on a cluster, as `manifests.yaml` has it, filled in by the options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from berth.live.driver.defaults import DEFAULT_POLICY
from berth.live.kubernetes import names
from berth.live.kubernetes.tenants import manifest_of

TEMPLATE = Path(__file__).with_suffix(".yaml")
Manifest = dict[str, Any]
_MARK = re.compile("@([a-zA-Z_]+)@")


@dataclass(frozen=True)
class Install:
    image: str
    """The container image of berth; none is published, and an image of a name that anyone may take is not run as
    root on every node by default."""
    agent_image: str = ""
    """That of the nodes' agents; empty: the same."""
    policy: str = DEFAULT_POLICY
    mode: str = "place"
    knowledge: str = names.GATHERED
    quota: str = ""
    """GPUs of each namespace, such as `team-a=8,team-b=4`; empty: the ConfigMap of tenants stays as it is."""
    borrow: bool = False
    reclaim: bool = False
    replicas: int = 2
    """Steerers: one leads, the others wait for it to fail."""
    fake_gpus: str = ""
    """For a demo on nodes without GPUs, such as `2xA100-80G`."""
    claims: bool = False
    """Give parts of GPUs by claims instead of `berth.dev/gpu`, where the cluster serves `resource.k8s.io/v1`."""
    grow: str = "off"
    """Which pods' memory grows, as `berth k8s node --grow` has it."""
    uncounted: str = "report"
    """What is done about a pod that holds more than its region counts, as `berth k8s node --uncounted` has it."""
    right_size: str = "off"
    """`off`, `advise` or `apply`, as the steerer has it."""
    gathers: bool = True
    """Whether a container in each steerer's pod gathers the nodes' histories into `names.HISTORY_FOLDER`."""
    history_claim: str = ""
    """The PersistentVolumeClaim of that folder; empty: it goes with its pod."""
    tls: tuple[str, str] | None = None
    """Certificate and key (base64) of the webhook that adds the gate; None: a policy of the API server adds it."""


def manifests(install: Install) -> dict[str, list[Manifest]]:
    """The manifests by the name of their file."""
    import yaml

    made = yaml.safe_load(TEMPLATE.read_text("utf-8"))
    words = made.pop("words")
    del made["of-0.2"]
    # With `--right-size apply`, kube-scheduler would count what was asked for, and not what is given.
    parts = "" if install.right_size == "apply" else words["parts"]
    words |= {kind: parts.replace("@kind@", kind) for kind in ("containers", "initContainers")}
    options = replace(install, agent_image=install.agent_image or install.image)
    certificate, key = install.tls or ("", "")
    made = _filled(made, words | vars(options) | {"certificate": certificate, "key": key})
    _steer(made["steerer"][0]["spec"], made["steerer-rights"][3], install)
    (agent,) = made["node"][0]["spec"]["template"]["spec"]["containers"]
    agent["command"] += [
        *(["--fake-gpus", install.fake_gpus] if install.fake_gpus else []),
        *(["--dra", "all"] if install.claims else []),
        *(["--grow", install.grow] if install.grow != "off" else []),
        *(["--uncounted", install.uncounted] if install.uncounted != "report" else []),
    ]
    if install.right_size == "apply":
        made["gate-webhook"][2]["spec"]["template"]["spec"]["containers"][0]["command"].append("--no-parts")
    if install.quota:
        made["tenants"] = [manifest_of(install.quota, borrow=install.borrow, reclaim=install.reclaim)]
    advises, hooked = install.mode == "advise", install.tls is not None
    left_out = {
        "gate": advises or hooked,
        "gate-webhook": advises or not hooked,
        "device-class": not install.claims,
    }
    return {name: each for name, each in made.items() if not left_out.get(name)}


def manifests_of_0_2() -> list[Manifest]:
    """What berth 0.2 installed, as far as it is needed to take it away."""
    import yaml

    found: list[Manifest] = yaml.safe_load(TEMPLATE.read_text("utf-8"))["of-0.2"]
    return found


def _filled(tree: Any, values: Mapping[str, str]) -> Any:
    """A tree of its own, with the values in place of their marks."""
    if isinstance(tree, dict):
        return {key: _filled(each, values) for key, each in tree.items()}
    if isinstance(tree, list):
        return [_filled(each, values) for each in tree]
    if isinstance(tree, str) and _MARK.search(tree):
        return _filled(_MARK.sub(lambda mark: values[mark[1]], tree), values)
    return tree


def _steer(deployment: Manifest, role: Manifest, install: Install) -> None:
    """The steerer's options, and the container in its pod that gathers the nodes' histories, if it does."""
    deployment["replicas"] = install.replicas
    pod = deployment["template"]["spec"]
    steerer = pod["containers"][0]
    steerer["command"] += [
        *(["--right-size", install.right_size] if install.right_size != "off" else []),
    ]
    if install.history_claim:
        pod["volumes"][-1] = {
            "name": "history",
            "persistentVolumeClaim": {"claimName": install.history_claim},
        }
        deployment["strategy"] = {"type": "Recreate"}  # most volumes are on one node at a time
    if not install.gathers:
        del pod["containers"][1], pod["volumes"][-1], steerer["volumeMounts"][-1]
        del pod["securityContext"]["fsGroup"]
        role["rules"] = [rule for rule in role["rules"] if not {"pods", "pods/proxy"} & {*rule["resources"]}]


VALUES = ("image", "policy", "mode", "knowledge", "replicas")
"""The fields of `Install` that are values of the Helm chart."""


_HAS_POLICIES = '(.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")'
_GATES = {
    "gate": f'{{{{- if and {_HAS_POLICIES} (ne .Values.mode "advise") }}}}\n',
    # Helm makes the certificate, once a release.
    "gate-webhook": f"""{{{{- if and (not {_HAS_POLICIES}) (ne .Values.mode "advise") }}}}
{{{{- $there := (lookup "v1" "Secret" .Release.Namespace "berth-gate").data | default dict }}}}
{{{{- $made := genSelfSignedCert "berth-gate" nil (list (printf "berth-gate.%s.svc" .Release.Namespace)) 3650 }}}}
{{{{- $certificate := index $there "tls.crt" | default ($made.Cert | b64enc) }}}}
{{{{- $key := index $there "tls.key" | default ($made.Key | b64enc) }}}}
# helm template asks no cluster, and so makes a new certificate each time; helm upgrade keeps the one that is there.
""",
}
"""What begins the templates of those that add the gate: which of them a cluster has."""


def helm_chart(install: Install, version: str) -> dict[str, str]:
    """The files of a Helm chart, by name: the same manifests with the values left open."""
    marks = replace(install, image="<image>", policy="<policy>", mode="<mode>", knowledge="<knowledge>")
    marks = replace(marks, agent_image="<agentImage>")
    hooked = manifests(replace(marks, tls=("<certificate>", "<key>")))
    files: dict[str, str] = {}
    for name, each in (hooked | manifests(marks)).items():
        if name == "namespace":
            continue  # Helm makes it: helm install --create-namespace
        text = as_yaml(each)
        for value in VALUES:
            text = text.replace(f"<{value}>", f"{{{{ .Values.{value} | quote }}}}")
        text = text.replace("<agentImage>", "{{ .Values.agentImage | default .Values.image | quote }}")
        if name == "steerer":
            text = text.replace(f"replicas: {marks.replicas}", "replicas: {{ .Values.replicas }}")
        text = text.replace(f"namespace: {names.NAMESPACE}", "namespace: {{ .Release.Namespace }}")
        text = text.replace(f":{names.NAMESPACE}:", ":{{ .Release.Namespace }}:")
        if name in _GATES:  # where only advice is given, pods are another's to start
            for mark in ("certificate", "key"):
                text = text.replace(f"<{mark}>", f"{{{{ ${mark} }}}}")
            text = f"{_GATES[name]}{text}{{{{- end }}}}\n"
        files[f"templates/{name}.yaml"] = text
    chart = {
        "apiVersion": "v2",
        "name": "berth",
        "version": version,
        "appVersion": version,
        "description": "Packs, partitions and accounts for shared GPUs",
    }
    values = {**{name: getattr(install, name) for name in VALUES}, "agentImage": install.agent_image}
    return {"Chart.yaml": as_yaml([chart]), "values.yaml": as_yaml([values]), **files}


def as_yaml(documents: list[Manifest]) -> str:
    import yaml

    return "---\n".join(yaml.safe_dump(each, sort_keys=False, width=1000) for each in documents)
