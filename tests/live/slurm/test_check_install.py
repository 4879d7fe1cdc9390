"""Each fault of a configuration is found, with the line to change; what is installed takes them away."""

from __future__ import annotations

import base64
import ctypes.util
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import SettingError
from berth.live.slurm.check import SlurmSetup, faults, read_setup
from berth.live.slurm.controller import Controller
from berth.live.slurm.install import OWN_FILES, Plan, diff, plan, shipped
from berth.live.slurm.installed import (
    as_before,
    check_first,
    put,
    read_text,
    remove,
    strangers,
    texts_of,
    undone,
)
from berth.live.slurm.nodes import SlurmPartition, nodes_of
from berth.live.slurm.requests import Cards
from berth.live.slurm.site_files import lines_of
from tests.live.slurm.fake_slurm import NODE, TYPED, FakeSlurm

GOOD = {
    "SLURM_VERSION": "22.05.8", "GresTypes": "gpu,shard", "JobSubmitPlugins": "lua", "SelectType": "select/cons_tres",
    "SlurmUser": "slurm(64030)", "MinJobAge": "300 sec", "JobRequeue": "1",
    "AccountingStorageTRES": "gres/gpu,gres/shard",
    "AccountingStorageType": "accounting_storage/slurmdbd", "Prolog": "/p", "TaskProlog": "/t", "Epilog": "/e",
}  # fmt: skip
LUA = shipped("berth.lua").replace(
    "local BERTH_PARTITIONS = {}", 'local BERTH_PARTITIONS = { ["gpu"] = true }'
)


def setup(**changes: object) -> SlurmSetup:
    nodes = tuple(nodes_of(NODE.format(name="n1", features="(null)", gres=TYPED, used="gpu:0", state="IDLE")))
    scripts = dict.fromkeys(("Prolog", "TaskProlog", "Epilog"), "berth")
    good = SlurmSetup(GOOD, nodes, (SlurmPartition("gpu", True, ("n1",)),), {"gpu"}, LUA, scripts, "root")
    configuration = {**GOOD, **changes.pop("configuration", {})}  # type: ignore[dict-item]
    return replace(good, configuration=configuration, **changes)  # type: ignore[arg-type]


def node(gres: str, state: str = "IDLE") -> object:
    return tuple(nodes_of(NODE.format(name="n1", features="(null)", gres=gres, used="gpu:0", state=state)))


def token(expires_s: int) -> str:
    body = base64.urlsafe_b64encode(json.dumps({"exp": expires_s}).encode()).decode().rstrip("=")
    return f"head.{body}.sign"


def test_a_good_site_has_no_fault() -> None:
    assert faults(setup(), Cards({"v100": 1000})) == []
    assert faults(setup(rest="", token=token(100), now_s=50.0), Cards({"v100": 1000})) == []


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
        ({"configuration": {"PriorityWeightJobSize": "5"}}, False,
         "slurm.conf: PriorityWeightJobSize=0, or accept that held jobs ignore it"),
        ({"configuration": {"SchedulerParameters": "defer,bf_continue"}}, False,
         "slurm.conf: SchedulerParameters without defer"),
        ({"configuration": {"Epilog": "(null)"}}, False, "slurm.conf: Epilog=/etc/slurm/berth/epilog.sh"),
        ({"scripts": {"Prolog": "#!/bin/sh"}}, False, "/p: at its end, /etc/slurm/berth/prolog.sh"),
        ({"scripts": {"Prolog": "#!/bin/sh", "TaskProlog": "berth"}}, True,
         "/p: at its end, /etc/slurm/berth/prolog.sh"),
        ({"configuration": {"Prolog": "(null)"}}, True, "slurm.conf: Prolog=/etc/slurm/berth/prolog.sh"),
        ({"lua": None}, True, "take the one of `berth slurm install`"),
        ({"lua": "function slurm_job_submit() end"}, True,
         "job_submit.lua: the lines between BEGIN berth and END berth, as in `berth slurm install`"),
        ({"lua": shipped("berth.lua")}, True, 'berth.lua: local BERTH_PARTITIONS = { ["gpu"] = true }'),
        ({"qos": {"gpu"}}, True, 'berth.lua: local BERTH_QOS = { ["gpu"] = true }'),
        ({"nodes": node("gpu:v100:2,shard:8")}, False, "slurm.conf: NodeName=n1 … Gres=gpu:v100_0:1,gpu:v100_1:1"),
        ({"nodes": node("gpu:v100_0:1,gpu:v100_1:1")}, False, "slurm.conf: NodeName=n1 … Gres=…,shard:16"),
        ({"nodes": node("gpu:v100_0:1,gpu:v100_1:1,shard:5")}, False, "slurm.conf: NodeName=n1 … shard:4"),
        ({"untyped_shards": ["n1"]}, False,
         "berth slurm install --apply, and restart slurmctld and slurmd; it gives none to GPUs with different"
         " numbers of shards"),
        ({"nodes": node("gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:0,shard:v100_1:4")}, False,
         "scontrol update NodeName=n1 State=DRAIN Reason=shards; once its jobs have ended restart slurmctld, and:"
         " scontrol update NodeName=n1 State=RESUME"),
        ({"nodes": node("(null)")}, True, "slurm.conf: NodeName=… Gres=gpu:…"),
        ({"nodes": node(TYPED, "UNKNOWN*")}, True,
         "on n1: systemctl status slurmd, and slurmd -G, which reads its GPUs"),
        ({"nodes": node(TYPED, "IDLE+DRAIN")}, True,
         "scontrol update NodeName=n1 State=RESUME, once its reason is gone"),
        ({"user": "ann"}, True,
         "run berth as root or slurm, or: sacctmgr modify user ann set AdminLevel=Operator"),
        ({"state_fault": "/x cannot be written"}, True, "--state DIR"),
        ({"rest": "it is gone", "token": token(100)}, False,
         "slurmrestd -s openapi/v0.0.38 -a rest_auth/jwt unix:SOCKET"),
        ({"configuration": {"SLURM_VERSION": "26.11.1"}}, False,
         "try `place` on a test partition first, and see docs/compatibility.md"),
        ({"rest": "", "token": token(100), "now_s": 200.0}, False, "export $(scontrol token lifespan=31536000)"),
        ({"rest": ""}, False, "export $(scontrol token lifespan=31536000)"),
    ],
)  # fmt: skip
def test_each_fault_is_found_with_the_line_to_change(
    changes: dict[str, object], stops: bool, line: str
) -> None:
    found = faults(setup(**changes), Cards({"v100": 1000}))
    assert [(fault.stops, fault.line) for fault in found] == [(stops, line)]


@pytest.mark.parametrize(
    ("slurm", "words"),
    [
        ("23.02.7", "-s openapi/v0.0.39 -a"),
        ("23.11.6", "-s openapi/slurmctld -d v0.0.40 -a"),
        ("25.05.1", "-s openapi/slurmctld -d v0.0.43 -a"),
        ("25.11.0", "-s openapi/slurmctld -d v0.0.44 -a"),
        ("26.05.5", "-s openapi/slurmctld -d v0.0.45 -a"),
    ],
)
def test_how_slurmrestd_is_started_goes_by_the_version_of_slurm(slurm: str, words: str) -> None:
    there = setup(configuration={"SLURM_VERSION": slurm}, rest="it is gone", token=token(100))
    lines = [fault.line for fault in faults(there, Cards({"v100": 1000}))]
    assert f"slurmrestd {words} rest_auth/jwt unix:SOCKET" in lines


def test_a_partition_that_is_not_there_is_told_with_those_that_are() -> None:
    found = faults(setup(wanted={"gpus"}), Cards())
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


HOW = Plan({"gpu"}, frozenset(), {0, 64030}, "/opt/berth/python", "/opt/berth/berth", Path("/state"))


def installed(**there: str) -> dict[str, str]:
    texts = {name.replace("_conf", ".conf").replace("_lua", ".lua"): text for name, text in there.items()}
    return plan(HOW, texts, node("gpu:v100:2"), {"n1"}).files  # type: ignore[arg-type]


def test_what_is_installed_changes_only_the_nodes_that_were_given_to_berth() -> None:
    new = installed(slurm_conf=SLURM_CONF, gres_conf=GRES_CONF)
    assert new["slurm.conf"].splitlines() == [
        "ClusterName=c", "JobSubmitPlugins=throttle,lua", "GresTypes=gpu,shard", "Prolog=/etc/slurm/berth/prolog.sh",
        "NodeName=n1 CPUs=16 Gres=gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:8,shard:v100_1:8 Feature=v100 State=UNKNOWN",
        "NodeName=n2 CPUs=16 Gres=gpu:v100:2", "TaskProlog=/etc/slurm/berth/task_prolog.sh",
        "Epilog=/etc/slurm/berth/epilog.sh", "MailProg=/etc/slurm/berth/mail.sh",
        "SchedulerParameters=batch_sched_delay=1",
    ]  # fmt: skip
    assert new["gres.conf"].splitlines() == [
        "NodeName=n1 Name=gpu Type=v100_0 File=/dev/nvidia0", "NodeName=n1 Name=gpu Type=v100_1 File=/dev/nvidia1",
        "NodeName=n1 Name=shard Type=v100_0 Count=8 File=/dev/nvidia0",
        "NodeName=n1 Name=shard Type=v100_1 Count=8 File=/dev/nvidia1",
        "NodeName=n2 Name=gpu Type=v100 File=/dev/nvidia[0-1]",
    ]  # fmt: skip
    assert new["cgroup.conf"] == "ConstrainDevices=yes\n"
    assert (
        'for script in /site/prolog; do [ ! -x "$script" ] || "$script" || exit $?; done'
        in new["berth/prolog.sh"]
    )
    assert 'local BERTH_PARTITIONS = { ["gpu"] = true }' in new["berth/berth.lua"]
    assert 'local BERTH_TYPES = { ["v100"] = true }' in new["berth/berth.lua"]
    assert "local BERTH_OPERATORS = { [0] = true, [64030] = true }" in new["berth/berth.lua"]
    assert not any(re.search(r"@[A-Z]+@", text) for text in new.values())


@pytest.mark.parametrize(
    ("before", "after"),
    [("bf_continue", "bf_continue,batch_sched_delay=1"), ("batch_sched_delay=20,defer", "batch_sched_delay=20,defer")],
)  # fmt: skip
def test_what_a_site_says_of_its_scheduler_stays(before: str, after: str) -> None:
    text = SLURM_CONF + f"SchedulerParameters={before}\n"
    new = installed(slurm_conf=text, gres_conf=GRES_CONF)["slurm.conf"].splitlines()
    assert [line for line in new if line.startswith("Scheduler")] == [f"SchedulerParameters={after}"]


def test_what_is_installed_twice_changes_nothing_more() -> None:
    for own in ("", SITE_LUA):
        first = installed(slurm_conf=SLURM_CONF, gres_conf=GRES_CONF, job_submit_lua=own)
        again = plan(HOW, first, node(TYPED), {"n1"}).files  # type: ignore[arg-type]
        assert list(diff(first, again)) == []


@pytest.mark.parametrize("script", ["/etc/slurm/berth-site/prolog.sh", "/etc/slurm/berth_prolog.sh"])
def test_a_sites_script_whose_path_begins_like_berths_folder_runs_first(script: str) -> None:
    text = SLURM_CONF.replace("/site/prolog", script)
    assert f"for script in {script};" in installed(slurm_conf=text, gres_conf=GRES_CONF)["berth/prolog.sh"]


def test_a_folder_that_others_use_is_not_taken_and_none_of_their_files_is_removed(tmp_path: Path) -> None:
    conf, own = tmp_path / "etc", tmp_path / "berth"
    own.mkdir()
    (own / "before.new").mkdir()
    (own / "epilog.sh").write_text("# berth's Epilog, of an install that was killed\n")
    assert strangers(own, OWN_FILES) == []
    (own / "prolog.sh").write_text("the site's own\n")
    (own / "keep.txt").write_text("theirs\n")
    assert strangers(own, OWN_FILES) == ["keep.txt", "prolog.sh"]
    (own / "prolog.sh").unlink()
    put(conf, own, {"slurm.conf": "old\n"}, {"slurm.conf": "new\n", "berth/prolog.sh": "new\n"})
    uninstall(own)
    assert (conf / "slurm.conf").read_text() == "old\n"
    assert [path.name for path in own.iterdir()] == ["keep.txt"]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--folder", "berth", "a path from the root"),
        ("--folder", "/etc/a b", "a path from the root"),
        ("--set", "A", "such as NAME=VALUE"),
        ("--set", "1x=2", "such as NAME=VALUE"),
        ("--set", "a;id=2", "such as NAME=VALUE"),
    ],
)
def test_what_slurms_files_or_scripts_could_not_have_is_refused(option: str, value: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        CliRunner().invoke(
            app, ["slurm", "install", "--partitions", "gpu", option, value], catch_exceptions=False
        )


@pytest.mark.parametrize(
    ("table", "taken"),
    [
        ('["gpu"] = true', True),
        ("['gpu']=true", True),
        ("other = true, gpu = true", True),
        ('["long-gpu"] = true', False),
        ('["gpu-long"] = true', False),
        ('["gpu.b"] = true', False),
    ],
)
def test_a_partition_is_taken_only_by_its_whole_name(table: str, taken: bool) -> None:
    lua = LUA.replace('["gpu"] = true', table)
    assert (faults(setup(lua=lua), Cards({"v100": 1000})) == []) == taken


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("#A=1 \\\nB=2\n", ["", "B=2"]),
        ("A=1 # C:\\\nB=2\n", ["A=1", "B=2"]),
        ("A=1 \\\n  B=2 \\\n C=3 # x\nD=4", ["A=1  B=2  C=3", "D=4"]),
        ("A=x\\#y \\\n B=2\n", ["A=x\\#y  B=2"]),
        ("A=x\\\\\nB=2\n\n", ["A=x\\\\", "B=2", ""]),
        ("", []),
    ],
)
def test_a_line_goes_on_behind_a_backslash_that_is_no_comments(text: str, contents: list[str]) -> None:
    lines = lines_of(text)
    assert [line.content for line in lines] == contents
    assert "".join(line.text for line in lines) == text


def test_an_uninstall_keeps_what_the_site_has_changed_since() -> None:
    before, after = ["a\n", "b\n", "c\n"], ["a\n", "B\n", "B2\n", "c\n", "d\n"]
    assert undone(before, after, after) == before
    assert undone(before, after, ["new\n", *after, "e\n"]) == ["new\n", *before, "e\n"]
    assert undone(before, after, ["a\n", "B\n", "other\n", "c\n", "d\n"]) is None
    assert undone(["a\n", "b\n"], ["a\n"], ["a\n", "e\n"]) == ["a\n", "b\n", "e\n"]
    assert undone([], ["all\n"], ["all\n"]) == []


def test_what_was_put_is_taken_away_byte_for_byte(tmp_path: Path) -> None:
    conf, own = tmp_path / "etc", tmp_path / "etc" / "berth"
    conf.mkdir()
    bytes_ = SLURM_CONF.encode() + b"# Gr\xfc\xdfe\r\n"
    (conf / "real.conf").write_bytes(bytes_)
    (conf / "slurm.conf").symlink_to("real.conf")
    there = {"slurm.conf": read_text(conf / "slurm.conf") or "", "gres.conf": GRES_CONF}
    new = installed(slurm_conf=there["slurm.conf"], gres_conf=GRES_CONF)
    (conf / "gres.conf").write_text(GRES_CONF)
    put(conf, own, {name: there[name] for name in new if name in there}, new)
    assert read_text(conf / "slurm.conf") == new["slurm.conf"] != there["slurm.conf"]
    assert as_before(texts_of(conf, own), own) == there
    assert remove(conf, own, as_before(texts_of(conf, own), own), OWN_FILES) == [
        "cgroup.conf", "gres.conf", "job_submit.lua", "slurm.conf",
    ]  # fmt: skip
    assert {path.name for path in conf.iterdir()} == {"slurm.conf", "real.conf", "gres.conf"}
    assert ((conf / "slurm.conf").is_symlink(), (conf / "real.conf").read_bytes()) == (True, bytes_)


def test_a_second_install_that_is_cut_off_is_taken_back_as_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf, own = tmp_path / "site", tmp_path / "berth"
    conf.mkdir()
    old, new = {"slurm.conf": "old\n"}, {"slurm.conf": "new\n"}
    put(conf, own, old, new)

    def cut_off(path: Path, target: Path) -> Path:
        if target == own / "before":
            raise KeyboardInterrupt
        return whole(path, target)

    whole = Path.replace
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", cut_off)
        with pytest.raises(KeyboardInterrupt):
            put(conf, own, old, new)
    uninstall(own)
    assert (conf / "slurm.conf").read_text() == "old\n"


@pytest.mark.parametrize(("name", "fault"), [("new/state", ""), ("file", "{} cannot be written"),
                                             ("file/state", "{} cannot be written")])  # fmt: skip
def test_a_folder_of_the_state_that_cannot_be_made_is_a_fault_and_none_is_made(
    tmp_path: Path, name: str, fault: str
) -> None:
    (tmp_path / "file").touch()
    state = tmp_path / name
    found = read_setup(Controller(FakeSlurm()), set(), state, None)
    assert (found.state_fault, [path.name for path in tmp_path.iterdir()]) == (fault.format(state), ["file"])


def test_an_uninstall_finds_slurm_conf_where_it_was_or_keeps_what_there_was_before(tmp_path: Path) -> None:
    conf, own = tmp_path / "site", tmp_path / "berth"
    old, new = {"slurm.conf": "old\n"}, {"slurm.conf": "new\n", "cgroup.conf": "new\n"}
    put(conf, own, old, new)
    (conf / "slurm.conf").rename(conf / "moved.conf")
    with pytest.raises(SettingError, match=r"slurm\.conf cannot be read.*nothing was changed"):
        uninstall(own)
    assert (own / "before" / "slurm.conf").read_text() == "old\n"
    (conf / "moved.conf").rename(conf / "slurm.conf")
    uninstall(own)
    assert {path.name: path.read_text() for path in conf.iterdir()} == old
    assert not own.exists()


def test_an_install_that_was_killed_between_two_files_is_taken_back(tmp_path: Path) -> None:
    conf, own = tmp_path / "etc", tmp_path / "berth"
    conf.mkdir()
    old = {"slurm.conf": "old\n", "gres.conf": "old\n"}
    put(conf, own, old, {"slurm.conf": "new\n", "gres.conf": "new\n", "cgroup.conf": "new\n"})
    for what in ("conf", "before", "after"):
        (own / what).rename(own / f"{what}.new")
    (conf / "gres.conf").write_text("old\n")
    (conf / "cgroup.conf").rename(conf / ".cgroup.conf.berth-new")
    (own / ".prolog.sh.berth-new").write_text("new\n")
    uninstall(own)
    assert {path.name: path.read_text() for path in conf.iterdir()} == old
    assert not own.exists()


def test_an_uninstall_leaves_no_job_that_is_held_for_berth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf, own, slurm = tmp_path / "etc", tmp_path / "berth", FakeSlurm()
    put(conf, own, {"slurm.conf": "old\n"}, {"slurm.conf": "new\n"})
    monkeypatch.setattr("berth.cli.slurm.Controller", lambda: Controller(slurm))
    slurm.held("7")
    with pytest.raises(SettingError, match=r"1 jobs are held for berth, 7 first.*watchdog\.sh 0"):
        uninstall(own)
    assert (conf / "slurm.conf").read_text() == "new\n"
    slurm.jobs["7"]["admin_comment"] = ""
    uninstall(own)
    assert (conf / "slurm.conf").read_text() == "old\n"


def uninstall(own: Path) -> None:
    CliRunner().invoke(app, ["slurm", "uninstall", "--folder", str(own)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("slurm.conf", "Prolog={own}/prolog.sh"),
        ("nodes.conf", "MailProg={own}/mail.sh"),
        ("job_submit.lua", 'dofile("{own}/berth.lua")'),
    ],
)
def test_an_install_over_lines_of_unknown_origin_is_refused(tmp_path: Path, name: str, line: str) -> None:
    """Such as those of a version that kept nothing."""
    ours = {"berth/prolog.sh": f"exec {tmp_path}/x\n"}
    check_first({**ours, name: f"#{line.format(own=tmp_path)}\n"}, tmp_path)
    there = {**ours, name: f"ClusterName=c\n{line.format(own=tmp_path)}\n"}
    with pytest.raises(SettingError, match=f"{name} has berth's line .*take berth's lines out"):
        check_first(there, tmp_path)
    put(tmp_path / "etc", tmp_path, {}, {"slurm.conf": "new"})
    check_first(there, tmp_path)


def test_an_install_that_cannot_be_written_leaves_every_file(tmp_path: Path) -> None:
    """Also those that an uninstall needs."""
    conf, own = tmp_path, tmp_path / "berth"
    (conf / "slurm.conf").write_text("old")
    put(conf, own, {"slurm.conf": "old"}, {"slurm.conf": "first"})
    (conf / "gres.conf").mkdir()
    with pytest.raises(OSError, match=r"gres\.conf"):
        put(conf, own, {"slurm.conf": "old"}, {"slurm.conf": "new", "gres.conf": "new", "berth/x.sh": "new"})
    assert {str(path.relative_to(conf)): path.read_text() for path in conf.rglob("*") if path.is_file()} == {
        "slurm.conf": "first",
        "berth/conf": f"{conf}\n",
        "berth/before/slurm.conf": "old",
        "berth/after/slurm.conf": "first",
    }
    assert [path.name for path in conf.rglob("*new*")] == []


@pytest.mark.parametrize(
    ("conf", "gres", "wanted_conf", "wanted_gres"),
    [
        ("NodeName=n[1-3] Port=[5-7] NodeAddr=a,b,c Gres=gpu:v100:2\n",
         "NodeName=n[1-3] Name=gpu Type=v100 File=/d[0-1]\n",
         ["NodeName=n1 Port=[5] NodeAddr=a Gres=gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:8,shard:v100_1:8 Feature=v100",
          "NodeName=n2,n3 Port=[6,7] NodeAddr=b,c Gres=gpu:v100:2"],
         ["NodeName=n2,n3 Name=gpu Type=v100 File=/d[0-1]", "NodeName=n1 Name=gpu Type=v100_0 File=/d0",
          "NodeName=n1 Name=gpu Type=v100_1 File=/d1", "NodeName=n1 Name=shard Type=v100_0 Count=8 File=/d0",
          "NodeName=n1 Name=shard Type=v100_1 Count=8 File=/d1"]),
        ("NodeName=DEFAULT Gres=gpu:v100:2,shard:8 Feature=fast\nNodeName=n1\n",
         "Name=gpu File=/d0 Cores=0\nName=gpu File=/d1 Cores=1 # mine\nName=shard Count=8\n",
         ["NodeName=DEFAULT Gres=gpu:v100:2,shard:8 Feature=fast",
          "NodeName=n1 Gres=gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:4,shard:v100_1:4 Feature=fast,v100"],
         ["Name=gpu Type=v100_0 File=/d0 Cores=0", "Name=gpu Type=v100_1 File=/d1 Cores=1 # mine",
          "Name=shard Type=v100_0 Count=4 File=/d0", "Name=shard Type=v100_1 Count=4 File=/d1"]),
        ("NodeName=n[1-2] \\\n Gres=gpu:v100:2 # rack 7\n",
         "NodeName=n[1-2] Name=gpu Type=v100 File=/d[0-1] # bought\n",
         ["NodeName=n1  Gres=gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:8,shard:v100_1:8 Feature=v100 # rack 7",
          "NodeName=n2  Gres=gpu:v100:2"],
         ["NodeName=n2 Name=gpu Type=v100 File=/d[0-1] # bought", "NodeName=n1 Name=gpu Type=v100_0 File=/d0",
          "NodeName=n1 Name=gpu Type=v100_1 File=/d1", "NodeName=n1 Name=shard Type=v100_0 Count=8 File=/d0",
          "NodeName=n1 Name=shard Type=v100_1 Count=8 File=/d1"]),
        ("NodeName=n[1-2] Gres=gpu:v100:2,shard:8\n",
         "NodeName=n[1-2] Name=gpu Type=v100 File=/d[0-1]\nNodeName=n[1-2] Name=shard Count=8 # ours\n",
         ["NodeName=n1 Gres=gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:4,shard:v100_1:4 Feature=v100",
          "NodeName=n2 Gres=gpu:v100:2,shard:8"],
         ["NodeName=n2 Name=gpu Type=v100 File=/d[0-1]", "NodeName=n1 Name=gpu Type=v100_0 File=/d0",
          "NodeName=n1 Name=gpu Type=v100_1 File=/d1", "NodeName=n1 Name=shard Type=v100_0 Count=4 File=/d0",
          "NodeName=n1 Name=shard Type=v100_1 Count=4 File=/d1", "NodeName=n2 Name=shard Count=8 # ours"]),
        ("NodeName=n1 Gres=gpu:v100:2,shard:8\n",
         "Name=gpu Type=v100 File=/d[0-1]\nName=shard Count=2 File=/d0\nName=shard Count=6 File=/d1\n",
         ["NodeName=n1 Gres=gpu:v100_0:1,gpu:v100_1:1,shard:8 Feature=v100"],
         ["Name=gpu Type=v100_0 File=/d0", "Name=gpu Type=v100_1 File=/d1", "Name=shard Count=2 File=/d0",
          "Name=shard Count=6 File=/d1"]),
        ("NodeName=n1 Gres=gpu:v100:2,shard:v100:8\n",
         "Name=gpu Type=v100 File=/d[0-1]\nName=shard Type=v100 Count=8\n",
         ["NodeName=n1 Gres=gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:4,shard:v100_1:4 Feature=v100"],
         ["Name=gpu Type=v100_0 File=/d0", "Name=gpu Type=v100_1 File=/d1", "Name=shard Type=v100_0 Count=4 File=/d0",
          "Name=shard Type=v100_1 Count=4 File=/d1"]),
        ('NodeName = n1 Gres = gpu:v100:2 Reason="a = b"\n',
         "NodeName = n1 Name = gpu Type= v100 File =/d[0-1]\n",
         ['NodeName=n1 Gres=gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:8,shard:v100_1:8 Feature=v100 Reason="a = b"'],
         ["NodeName=n1 Name=gpu Type=v100_0 File=/d0", "NodeName=n1 Name=gpu Type=v100_1 File=/d1",
          "NodeName=n1 Name=shard Type=v100_0 Count=8 File=/d0",
          "NodeName=n1 Name=shard Type=v100_1 Count=8 File=/d1"]),
        ("NodeName=n1 Gres=gpu:v100:2,shard:2K\n",
         "Name=gpu Type=v100 File=/d[0-1]\nName=shard Count=1K File=/d0\nName=shard Count=1K File=/d1\n",
         ["NodeName=n1 Gres=gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:1024,shard:v100_1:1024 Feature=v100"],
         ["Name=gpu Type=v100_0 File=/d0", "Name=gpu Type=v100_1 File=/d1",
          "Name=shard Type=v100_0 Count=1024 File=/d0", "Name=shard Type=v100_1 Count=1024 File=/d1"]),
        ("NodeName=n1 Gres=gpu:2,mps:200\n",
         "AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu MultipleFiles=/a,/b Type=1g\n"
         "NodeName=n1 Name=gpu MultipleFiles=/c,/d Type=1g\n",
         ["NodeName=n1 Gres=gpu:1g_0:1,gpu:1g_1:1,mps:200 Feature=1g"],
         ["AutoDetect=nvml", "NodeName=n1 Name=gpu Type=1g_0 MultipleFiles=/a,/b AutoDetect=off",
          "NodeName=n1 Name=gpu Type=1g_1 MultipleFiles=/c,/d"]),
    ],
)  # fmt: skip
def test_only_the_lines_of_berths_nodes_change_whatever_a_site_writes(
    conf: str, gres: str, wanted_conf: list[str], wanted_gres: list[str]
) -> None:
    new = installed(slurm_conf=conf, gres_conf=gres)
    assert new["slurm.conf"].splitlines()[: len(wanted_conf)] == wanted_conf
    assert new["gres.conf"].splitlines() == wanted_gres


SITE_LUA = """\
local told = 0
function slurm_job_submit(job_desc, part_list, uid)
   told = told + 1
   if job_desc.name == "bad" then
      return slurm.ERROR
   end
   return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, uid)
   return slurm.SUCCESS
end
slurm.log_info("initialized")
return slurm.SUCCESS
"""


def lua(folder: Path, site: str, calls: str) -> str:
    """What a script prints that calls the functions of job_submit.lua, as installed over a site's own."""
    how = replace(HOW, folder=str(folder), qos={"fast"})
    there = {"job_submit.lua": site, "slurm.conf": SLURM_CONF, "gres.conf": GRES_CONF}
    new = plan(how, there, node("gpu:v100:2"), {"n1"}).files  # type: ignore[arg-type]
    again = plan(how, new, node(TYPED), {"n1"}).files  # type: ignore[arg-type]
    (folder / "berth.lua").write_text(again["berth/berth.lua"])
    (folder / "job_submit.lua").write_text(again["job_submit.lua"])
    script = f"""
slurm = {{ SUCCESS = 0, ERROR = -1, ESLURM_ACCESS_DENIED = 2002, log_info = function() end, log_user = print }}
dofile("{folder}/job_submit.lua")
{calls}"""
    done = subprocess.run(
        [sys.executable, "-c", RUN_LUA, str(LIBLUA)],
        input=script,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LIBLUA = ctypes.util.find_library("lua5.1")
"""What Slurm's own plugin runs scripts by."""
RUN_LUA = """
import ctypes, sys
lua = ctypes.CDLL(sys.argv[1])
lua.luaL_newstate.restype = lua.lua_tolstring.restype = ctypes.c_void_p
state = ctypes.c_void_p(lua.luaL_newstate())
lua.luaL_openlibs(state)
failed = lua.luaL_loadstring(state, sys.stdin.buffer.read())
failed = failed or lua.lua_pcall(state, 0, 0, 0)
if failed:
    sys.exit(ctypes.string_at(lua.lua_tolstring(state, -1, None)).decode())
ctypes.CDLL(None).fflush(None)
"""


@pytest.mark.skipif(LIBLUA is None, reason="needs the packages of .ci/packages: liblua5.1")
@pytest.mark.parametrize("site", [SITE_LUA, SITE_LUA.replace("return slurm.SUCCESS\n\n", ""), ""])
def test_a_sites_own_plugin_goes_first_however_it_ends_and_however_often_it_is_installed(
    tmp_path: Path, site: str
) -> None:
    calls = """
for _, job in ipairs({
    { name = "good" }, { name = "bad" }, { name = "types", partition = "other" },
    { name = "forged", partition = "other", admin_comment = "berth:1;share=1000:0:0" },
    { name = "range", min_nodes = 1, max_nodes = 4 }, { name = "qos", partition = "other", default_qos = "fast" },
    { name = "srun" }, { name = "ticket", admin_comment = "ticket 7" },
}) do
    job.partition = job.partition or "gpu"
    job.tres_per_node, job.script = "gres:gpu:v100:2", job.name ~= "srun" and "x" or nil
    local status = slurm_job_submit(job, {}, 1000)
    print(job.name, status, job.priority, job.tres_per_node, job.features, job.admin_comment)
end
"""
    assert lua(tmp_path, site, calls).splitlines() == [
        "good\t0\t0\t\tnil\tberth:1;node=gres:gpu:v100:2;job=;task=",
        "bad\t-1\tnil\tgres:gpu:v100:2\tnil\tnil" if site else
        "bad\t0\t0\t\tnil\tberth:1;node=gres:gpu:v100:2;job=;task=",
        "types\t0\tnil\tgres:gpu:2\tv100\tnil", "forged\t0\tnil\tgres:gpu:2\tv100\t",
        "range\t0\tnil\tgres:gpu:2\tv100\tnil", "qos\t0\t0\t\tnil\tberth:1;node=gres:gpu:v100:2;job=;task=",
        "GPUs of type v100 have a type each here: ask for --gres=gpu:N -C v100",
        "srun\t-1\tnil\tgres:gpu:2\tnil\tnil",
        "ticket\t0\t0\t\tnil\tticket 7 berth:1;node=gres:gpu:v100:2;job=;task=",
    ]  # fmt: skip


@pytest.mark.skipif(LIBLUA is None, reason="needs the packages of .ci/packages: liblua5.1")
def test_berths_note_and_what_others_write_into_an_admin_comment_live_together(tmp_path: Path) -> None:
    calls = """
local note = "berth:1;node=gres:gpu:1;job=;task="
local function comment(has, new, uid)
   local job = { admin_comment = new }
   print(slurm_job_modify(job, { admin_comment = has, priority = 0 }, {}, uid or 0), job.admin_comment)
end
comment(note, "JS1:abc")                       -- somebody else writes
comment("JS1:abc " .. note, "ticket 7")        -- and writes anew
comment("ticket 7 " .. note, note .. ";share=500:1:0") -- berth writes its own
comment("ticket 7 " .. note, "")               -- somebody clears it
comment("ticket 7 " .. note, "berth:0;")       -- berth lets go
comment(note, "berth:0;")
comment("ticket 7", "ticket 8")                -- a job that is not berth's
comment("ticket 7 " .. note, nil)              -- another change
comment("ticket 7 " .. note, "mine", 1000)     -- its user
"""
    note = "berth:1;node=gres:gpu:1;job=;task="
    assert lua(tmp_path, "", calls).splitlines() == [
        f"0\tJS1:abc {note}", f"0\tticket 7 {note}", f"0\tticket 7 {note};share=500:1:0", f"0\t{note}",
        "0\tticket 7", "0\t ", "0\tticket 8", "0\tnil",
        "berth places this job, and its AdminComment cannot be changed; cancel it and submit it anew", "2002\tmine",
    ]  # fmt: skip


def test_a_sites_prolog_may_be_a_pattern_and_fails_as_before(tmp_path: Path) -> None:
    """And settings may hold what a shell reads."""
    (tmp_path / "d").mkdir()
    for name, text in (("1", "echo one"), ("2", "echo two; exit 3"), ("notes", "")):
        path = tmp_path / "d" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755 if text else 0o644)
    conf = SLURM_CONF.replace("/site/prolog", f"{tmp_path}/d/*")
    how = replace(HOW, python="/bin/true", settings={"A": "x y (z)"})
    new = plan(how, {"slurm.conf": conf, "gres.conf": GRES_CONF}, node("gpu:v100:2"), {"n1"}).files  # type: ignore[arg-type]
    ran = subprocess.run(["bash", "-c", new["berth/prolog.sh"]], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (3, "one\ntwo\n")
    again = plan(how, new, node(TYPED), {"n1"}).files  # type: ignore[arg-type]
    assert again["berth/prolog.sh"] == new["berth/prolog.sh"]


def test_an_installation_keeps_what_else_nodes_have() -> None:
    conf = "NodeName=n1 CPUs=16 \\\n   Gres=nic:2,gpu:v100:2,fpga:1 Feature=fast\n"
    gres = "NodeName=n1 Name=gpu Type=v100 File=/dev/nvidia[0-1] Cores=0-7 Links=-1,4\nNodeName=n1 Name=nic Count=2\n"
    new = installed(slurm_conf=conf, gres_conf=gres)
    assert new["slurm.conf"].splitlines()[0].split() == [
        "NodeName=n1", "CPUs=16", "Gres=gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:8,shard:v100_1:8,nic:2,fpga:1",
        "Feature=fast,v100",
    ]  # fmt: skip
    assert new["gres.conf"].splitlines() == [
        "NodeName=n1 Name=gpu Type=v100_0 File=/dev/nvidia0 Cores=0-7 Links=-1,4",
        "NodeName=n1 Name=gpu Type=v100_1 File=/dev/nvidia1 Cores=0-7 Links=-1,4",
        "NodeName=n1 Name=shard Type=v100_0 Count=8 File=/dev/nvidia0",
        "NodeName=n1 Name=shard Type=v100_1 Count=8 File=/dev/nvidia1", "NodeName=n1 Name=nic Count=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({"slurm_conf": SLURM_CONF, "gres_conf": "AutoDetect=nvml\n"}, "gres.conf has AutoDetect=nvml"),
        ({"slurm_conf": "Include nodes.conf\n", "gres_conf": GRES_CONF}, "slurm.conf includes nodes.c"),
        ({"slurm_conf": "ClusterName=c\n", "gres_conf": GRES_CONF}, "no NodeName= line of slurm.conf"),
        ({"slurm_conf": SLURM_CONF, "gres_conf": ""}, "gres.conf has File= for 0 of the 2 GPUs"),
        ({"slurm_conf": SLURM_CONF.replace("v100:2 S", "v100:1,gpu:a100:1 S"),
          "gres_conf": "NodeName=n1 Name=gpu File=/dev/nvidia[0-1]\n"},
         "GPUs of several models, a100, v100"),
    ],
)  # fmt: skip
def test_what_cannot_be_installed_by_lines_is_refused(there: dict[str, str], why: str) -> None:
    with pytest.raises(SettingError, match=why):
        installed(**there)


@pytest.mark.parametrize(
    ("site", "behind"),
    [("", "/bin/mail"), ("MailProg=/usr/bin/mailx\n", "/usr/bin/mailx"), ("MailProg=/opt/smail\n", "")],
)  # fmt: skip
def test_berths_report_goes_by_the_sites_mail_program_unless_that_is_one_of_its_own(
    site: str, behind: str
) -> None:
    new = installed(slurm_conf=SLURM_CONF + site, gres_conf=GRES_CONF)
    assert ("MailProg=/etc/slurm/berth/mail.sh" in new["slurm.conf"]) == bool(behind)
    assert f'exec "{behind}" "$@"' in new["berth/mail.sh"] if behind else "berth/mail.sh" not in new


def test_a_mail_at_a_jobs_end_has_the_report_and_others_stay_as_they_are(tmp_path: Path) -> None:
    for name, text in (
        ("berth", 'echo "report $3"'),
        ("mail", f'cat >{tmp_path}/"$3"; echo "$2" >>{tmp_path}/"$3"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    how = replace(HOW, berth=str(tmp_path / "berth"))
    there = {"slurm.conf": f"{SLURM_CONF}MailProg={tmp_path}/mail\n", "gres.conf": GRES_CONF}
    script = plan(how, there, node("gpu:v100:2"), {"n1"}).files["berth/mail.sh"]  # type: ignore[arg-type]
    ended = "Slurm Array Task Job_id=8_3 (11) Name=x y Ended, Run time 00:00:01, COMPLETED, ExitCode 0"
    began = "Slurm Job_id=8 Name=x Began, Queued time 00:00:01"
    (tmp_path / "mail.sh").write_text(script)
    (tmp_path / "mail.sh").chmod(0o755)
    for user, subject in (("ann", ended), ("bob", began)):
        subprocess.run(
            [tmp_path / "mail.sh", "-s", subject, user], stdin=subprocess.DEVNULL, check=True, timeout=300
        )
    until = time.monotonic() + 300  # the mail of an end is not waited for
    while not ((tmp_path / "ann").exists() and ended in (tmp_path / "ann").read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert (tmp_path / "ann").read_text() == f"report 8_3\n{ended}\n"
    assert (tmp_path / "bob").read_text() == f"{began}\n"


def test_berths_own_service_places_the_jobs_of_a_qos_too() -> None:
    how = replace(HOW, qos={"fast"}, options="--partitions gpu --qos fast", slurm_bin="/opt/slurm/bin")
    new = plan(how, {"slurm.conf": SLURM_CONF, "gres.conf": GRES_CONF}, node("gpu:v100:2"), {"n1"}).files  # type: ignore[arg-type]
    assert 'run --mode place --partitions gpu --qos fast --state "/state"' in new["berth/berth-slurm.service"]
    for name in ("prolog.sh", "epilog.sh", "watchdog.sh"):
        assert "/opt/slurm/bin:" in new[f"berth/{name}"]


def test_the_watchdog_is_called_with_folders_of_any_name() -> None:
    how = replace(HOW, state=Path("/var/lib/the state of 100%"))
    new = plan(how, {"slurm.conf": SLURM_CONF, "gres.conf": GRES_CONF}, node("gpu:v100:2"), {"n1"}).files  # type: ignore[arg-type]
    assert '"/var/lib/the state of 100%%"' in new["berth/berth-slurm-watchdog.service"]
    assert '"/var/lib/the state of 100%%"' in new["berth/berth-slurm.service"]
    assert '"/var/lib/the state of 100\\%"' in new["berth/berth-slurm.cron"]
