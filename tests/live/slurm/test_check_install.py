"""Each fault of a configuration is found, with the line to change; what is installed takes them away."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from berth.live.slurm.check import Site, faults
from berth.live.slurm.install import Plan, diff, plan, shipped
from berth.live.slurm.nodes import SlurmPartition, nodes_of
from berth.live.slurm.requests import Cards
from tests.live.slurm.fake_slurm import NODE, TYPED

GOOD = {
    "SLURM_VERSION": "22.05.8", "GresTypes": "gpu,shard", "JobSubmitPlugins": "lua", "SelectType": "select/cons_tres",
    "SlurmUser": "slurm(64030)", "MinJobAge": "300 sec", "JobRequeue": "1",
    "AccountingStorageTRES": "gres/gpu,gres/shard",
    "AccountingStorageType": "accounting_storage/slurmdbd", "Prolog": "/p", "TaskProlog": "/t", "Epilog": "/e",
}  # fmt: skip
LUA = shipped("job_submit.lua").replace(
    "local BERTH_PARTITIONS = {}", 'local BERTH_PARTITIONS = { ["gpu"] = true }'
)


def site(**changes: object) -> Site:
    nodes = tuple(nodes_of(NODE.format(name="n1", features="(null)", gres=TYPED, used="gpu:0", state="IDLE")))
    scripts = dict.fromkeys(("Prolog", "TaskProlog", "Epilog"), "berth")
    good = Site(GOOD, nodes, (SlurmPartition("gpu", True, ("n1",)),), {"gpu"}, LUA, scripts, "root", 0.0)
    configuration = {**GOOD, **changes.pop("configuration", {})}  # type: ignore[dict-item]
    return replace(good, configuration=configuration, **changes)  # type: ignore[arg-type]


def node(gres: str) -> object:
    return tuple(nodes_of(NODE.format(name="n1", features="(null)", gres=gres, used="gpu:0", state="IDLE")))


def token(expires_s: int) -> str:
    body = base64.urlsafe_b64encode(json.dumps({"exp": expires_s}).encode()).decode().rstrip("=")
    return f"head.{body}.sign"


def test_a_good_site_has_no_fault() -> None:
    assert faults(site(), Cards({"v100": 1000})) == []
    assert faults(site(rest="", token=token(100), now_s=50.0), Cards({"v100": 1000})) == []


@pytest.mark.parametrize(
    ("changes", "stops", "line"),
    [
        ({"configuration": {"SLURM_VERSION": "21.08.5"}}, True, "update Slurm to 22.05 or later"),
        ({"configuration": {"GresTypes": "gpu"}}, False, "slurm.conf: GresTypes=gpu,shard"),
        ({"configuration": {"GresTypes": "(null)"}}, True, "slurm.conf: GresTypes=gpu,shard"),
        ({"configuration": {"JobSubmitPlugins": "throttle"}}, True, "slurm.conf: JobSubmitPlugins=throttle,lua"),
        ({"configuration": {"SelectType": "select/linear"}}, True, "slurm.conf: SelectType=select/cons_tres"),
        ({"configuration": {"MinJobAge": "2 sec"}}, False, "slurm.conf: MinJobAge=300"),
        ({"configuration": {"JobRequeue": "0"}}, False, "slurm.conf: JobRequeue=1"),
        ({"configuration": {"AccountingStorageTRES": "cpu"}}, False,
         "slurm.conf: AccountingStorageTRES=gres/gpu,gres/shard"),
        ({"configuration": {"PriorityWeightJobSize": "5"}}, False, "PriorityWeightJobSize"),
        ({"configuration": {"Epilog": "(null)"}}, False, "slurm.conf: Epilog=/etc/slurm/berth/epilog.sh"),
        ({"scripts": {"Prolog": "#!/bin/sh"}}, False, "/p: at its end, /etc/slurm/berth/prolog.sh"),
        ({"lua": None}, True, "take the one of `berth slurm install --dry-run`"),
        ({"lua": "function slurm_job_submit() end"}, True,
         "job_submit.lua: call berth_submit and berth_modify, as in `berth slurm install --dry-run`"),
        ({"lua": shipped("job_submit.lua")}, True, 'job_submit.lua: local BERTH_PARTITIONS = { ["gpu"] = true }'),
        ({"nodes": node("gpu:v100:2,shard:8")}, False, "slurm.conf: NodeName=n1 … Gres=gpu:v100_0:1,gpu:v100_1:1"),
        ({"nodes": node("gpu:v100_0:1,gpu:v100_1:1")}, False, "slurm.conf: NodeName=n1 … Gres=…,shard:16"),
        ({"nodes": node("gpu:v100_0:1,gpu:v100_1:1,shard:5")}, False, "slurm.conf: NodeName=n1 … shard:4"),
        ({"nodes": node("(null)")}, True, "slurm.conf: NodeName=… Gres=gpu:…"),
        ({"user": "ann"}, True,
         "run berth as root or slurm, or: sacctmgr modify user ann set AdminLevel=Operator"),
        ({"skew_s": -90.0}, False, "run an NTP client, such as chrony, on both"),
        ({"state_fault": "/x cannot be written"}, True, "--state DIR"),
        ({"rest": "it is gone", "token": token(100)}, False,
         "slurmrestd -s openapi/v0.0.38 -a rest_auth/jwt unix:SOCKET"),
        ({"rest": "", "token": token(100), "now_s": 200.0}, False, "export $(scontrol token lifespan=31536000)"),
        ({"rest": ""}, False, "export $(scontrol token lifespan=31536000)"),
    ],
)  # fmt: skip
def test_each_fault_is_found_with_the_line_to_change(
    changes: dict[str, object], stops: bool, line: str
) -> None:
    found = faults(site(**changes), Cards({"v100": 1000}))
    assert [(fault.stops, fault.line) for fault in found] == [(stops, line)]


def test_a_partition_that_is_not_there_is_told_with_those_that_are() -> None:
    found = faults(site(wanted={"gpus"}), Cards())
    assert ("there is no partition gpus; there are gpu", "--partitions") in [(f.what, f.line) for f in found]


SLURM_CONF = """\
ClusterName=c
JobSubmitPlugins=throttle
GresTypes=gpu
Prolog=/site/prolog
NodeName=n1 CPUs=16 Gres=gpu:v100:2 State=UNKNOWN
NodeName=n2 CPUs=16 Gres=gpu:v100:2
"""
GRES_CONF = "".join(f"NodeName={name} Name=gpu Type=v100 File=/dev/nvidia[0-1]\n" for name in ("n1", "n2"))


def installed(**there: str) -> dict[str, str]:
    how = Plan({"gpu"}, frozenset(), {0, 64030}, "/opt/berth/python", "/opt/berth/berth", Path("/state"))
    nodes = tuple(
        nodes_of(NODE.format(name="n1", features="(null)", gres="gpu:v100:2", used="gpu:0", state="IDLE"))
    )
    return plan(how, {name.replace("_", ".", 1): text for name, text in there.items()}, nodes, {"n1"})


def test_what_is_installed_changes_only_the_nodes_that_were_given_to_berth() -> None:
    new = installed(slurm_conf=SLURM_CONF, gres_conf=GRES_CONF)
    assert new["slurm.conf"].splitlines() == [
        "ClusterName=c", "JobSubmitPlugins=throttle,lua", "GresTypes=gpu,shard", "Prolog=/etc/slurm/berth/prolog.sh",
        "NodeName=n1 CPUs=16 Gres=gpu:v100_0:1,gpu:v100_1:1,shard:16 State=UNKNOWN",
        "NodeName=n2 CPUs=16 Gres=gpu:v100:2", "TaskProlog=/etc/slurm/berth/task_prolog.sh",
        "Epilog=/etc/slurm/berth/epilog.sh",
    ]  # fmt: skip
    assert new["gres.conf"].splitlines() == [
        "NodeName=n1 Name=gpu Type=v100_0 File=/dev/nvidia0", "NodeName=n1 Name=gpu Type=v100_1 File=/dev/nvidia1",
        "NodeName=n1 Name=shard Count=16", "NodeName=n2 Name=gpu Type=v100 File=/dev/nvidia[0-1]",
    ]  # fmt: skip
    assert new["cgroup.conf"] == "ConstrainDevices=yes\n"
    assert '"/site/prolog" || exit $?' in new["berth/prolog.sh"]
    assert 'local BERTH_PARTITIONS = { ["gpu"] = true }' in new["job_submit.lua"]
    assert "local BERTH_OPERATORS = { [0] = true, [64030] = true }" in new["job_submit.lua"]
    assert not any(re.search(r"@[A-Z]+@", text) for text in new.values())


def test_what_is_installed_twice_changes_nothing_more() -> None:
    first = installed(slurm_conf=SLURM_CONF, gres_conf=GRES_CONF)
    how = Plan({"gpu"}, frozenset(), {0, 64030}, "/opt/berth/python", "/opt/berth/berth", Path("/state"))
    nodes = tuple(nodes_of(NODE.format(name="n1", features="(null)", gres=TYPED, used="gpu:0", state="IDLE")))
    again = plan(how, first, nodes, {"n1"})
    assert list(diff(first, again)) == []


def test_a_sites_own_plugin_goes_first() -> None:
    own = "".join(f"function slurm_job_{name}(d) return slurm.SUCCESS end\n" for name in ("submit", "modify"))
    how = Plan({"gpu"}, frozenset(), {0}, "python", "berth", Path("/state"))
    new = plan(how, {"job_submit.lua": own}, (), set())
    text = new["job_submit.lua"]
    assert text.startswith(own.rstrip())
    assert text.index("local site_submit") > text.index("function berth_submit")
    assert text.count("function slurm_job_submit") == 2
