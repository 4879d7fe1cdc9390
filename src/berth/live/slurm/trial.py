"""Tries changed configuration files in a copy, before they reach a site: slurmd reads the GPUs of each node, and a
slurmctld without a network begins with them. Neither touches the daemons that run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from berth.live.slurm.install import Planned
from berth.live.slurm.installed import write_text
from berth.live.slurm.site_files import Line, NodeGpus, SiteConfig, devices_of, included, lines_of, with_pairs

LIMIT_S = 60.0
MOST_BYTES = 1 << 22
_DROPPED = re.compile(
    r"(StateSaveLocation|SlurmdSpoolDir|Slurm(ctld|d)(PidFile|LogFile)|SlurmSchedLogFile|SuspendProgram|SuspendTime"
    r"|Resume\w*Program|RebootProgram|(Pro|Epi)logSlurmctld|SlurmctldPrimaryO\w+Prog|Accounting\w+"
    r"|Priority\w+|Preempt\w+|JobComp\w+|MailProg)\b",
    re.IGNORECASE,
)
"""Settings that the copy does without: they name the site's own folders, databases and programs."""
_GRES = re.compile(r"Gres Name=(\S+) Type=(\S+) Count=(\d+)")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
_RUNS = "Running as primary controller"
_OF_THE_COPY = re.compile(
    r"_open_ports|slurm_init_msg_engine|getaddrinfo|Unable to resolve|slurmdbd|accounting|not a valid controller",
    re.I,
)
"""What slurmctld says of what only the copy lacks: a network, the accounting, and the name of the controller."""
_UNSHARE = ("--user", "--map-current-user", "--keep-caps", "--net")
_WITH_NETWORK = 'ip link set lo up; ip address add 10.254.0.1/32 dev lo; exec "$@"'
"""slurmctld looks for an address beside 127.0.0.0/8 before it listens on any."""


def fault_of(
    planned: Planned, there: Mapping[str, str], conf: Path, own: str, cluster: str
) -> tuple[str, list[str]]:
    """What Slurm says against the planned files, empty if nothing, and what could not be tried here.

    `there` has the files of today, `conf` is the folder of slurm.conf and `own` berth's.
    """
    folder = Path(tempfile.mkdtemp(prefix="berth-trial-"))
    try:
        _copy(folder, {**there, **planned.files}, conf, own, cluster)
        untried: list[str] = []
        fault = _fault_of_nodes(folder, planned.gpus.values(), untried) or _fault_of_controller(
            folder, untried
        )
        return fault.replace(str(folder), str(conf)), untried
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(folder: Path, texts: Mapping[str, str], conf: Path, own: str, cluster: str) -> None:
    """All files of the configuration in a folder of their own, with links to /dev/null for the GPUs. Only root and
    SlurmUser get into it; slurmdbd.conf, which has the database's password, stays away."""
    for path in conf.iterdir():
        if (
            path.suffix in (".conf", ".lua")
            and path.name != "slurmdbd.conf"
            and path.name not in texts
            and path.is_file()
            and path.stat().st_size < MOST_BYTES
        ):
            shutil.copyfile(path, folder / path.name)
    for name in ("state", "spool", "devices"):
        (folder / name).mkdir()
    read = [SiteConfig(name, texts, conf, cluster).texts() for name in ("slurm.conf", "gres.conf")]
    for name, text in texts.items():
        if any(name in each for each in read):
            new = "".join(_line(each, folder, conf, cluster) for each in lines_of(text))
        else:
            new = text.replace(f'dofile("{own}/', f'dofile("{folder}/berth/')
        write_text(folder / _place(name), new)
    with (folder / "slurm.conf").open("a") as file:
        file.write(
            f"\nStateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\nSlurmctldPidFile={folder}/pid\n"
            f"SlurmdPidFile={folder}/pid.%n\n"
        )
    for path in folder.glob("*.*"):
        if (conf / path.name).is_file():
            shutil.copymode(conf / path.name, path)
            if os.geteuid() == 0:
                there = (conf / path.name).stat()
                os.chown(path, there.st_uid, there.st_gid)
    if os.geteuid() == 0:
        owner = SiteConfig("slurm.conf", texts, conf, cluster).value("SlurmUser") or "root"
        for path in (folder, folder / "state"):
            shutil.chown(path, int(owner) if owner.isdecimal() else owner)


def _place(name: str) -> str:
    """Where the copy has a file: one that lies elsewhere than slurm.conf has a name without folders."""
    return quote(name, safe="") if name.startswith(("/", "..")) else name


def _line(line: Line, folder: Path, conf: Path, cluster: str) -> str:
    """A line as the copy has it: nothing of it names the site's own files, devices and QoS."""
    other = included(line.content, conf, cluster)
    if other is not None:
        return f"Include {folder}/{_place(other)}\n"
    if _DROPPED.match(line.key):
        return "\n"
    pairs = line.pairs
    for key in ("file", "multiplefiles"):
        if key in pairs:
            for device in devices_of(pairs[key]):
                link = folder / "devices" / quote(device, safe="")
                if not link.is_symlink():
                    link.symlink_to("/dev/null")
            named = ",".join(f"{folder}/devices/{quote(each, safe='')}" for each in devices_of(pairs[key]))
            return with_pairs(line.content, {key: named}) + "\n"
    if line.key == "partitionname":  # the copy has no accounting, which knows QoS
        return re.sub(r"(?<!\S)(QOS|PreemptMode)=\S+", "", line.content, flags=re.IGNORECASE) + "\n"
    return line.text


def _fault_of_nodes(folder: Path, gpus: Iterable[NodeGpus], untried: list[str]) -> str:
    """What is wrong with the GPUs that slurmd reads for a node; empty if they are what slurm.conf says."""
    slurmd = shutil.which("slurmd", path=_PATH)
    if slurmd is None:
        untried.append("the nodes' GPUs: there is no slurmd here")
        return ""
    for node in gpus:
        if node.detects:
            untried.append(f"the GPUs of node {node.name}, which AutoDetect finds")
            continue
        words = [slurmd, "-G", "-N", node.name, "-f", str(folder / "slurm.conf")]
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            untried.append(f"the GPUs of node {node.name}: slurmd has not answered within {LIMIT_S:g} s")
            continue
        output = done.stdout + done.stderr
        if done.returncode or "fatal:" in output:
            return f"slurmd of node {node.name} would not start: {_worst(output)}"
        found = _GRES.findall(output)
        gpus_found = sum(int(count) for name, _, count in found if name == "gpu")
        if node.slices:  # it lists each file of an instance
            kinds = {kind for name, kind, _ in found if name == "gpu"}
            gpus_found = sum(kind in kinds for kind in node.new_kinds)
        shards = sum(int(count) for name, _, count in found if name == "shard")
        if (gpus_found, shards) != (len(node.new_kinds), node.new_shards):
            return (
                f"slurmd of node {node.name} would find {gpus_found} GPUs and {shards} shards, and slurm.conf says"
                f" {len(node.new_kinds)} and {node.new_shards}"
            )
    return ""


def _fault_of_controller(folder: Path, untried: list[str]) -> str:
    """Why slurmctld would not start; empty if it does."""
    slurmctld, unshare = (shutil.which(name, path=_PATH) for name in ("slurmctld", "unshare"))
    if slurmctld is None or unshare is None:
        untried.append("slurmctld, which is not installed here")
        return ""
    alone = [unshare, *(("--net",) if os.geteuid() == 0 else _UNSHARE)]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        untried.append("slurmctld: this machine allows no network of its own to try it in")
        return ""
    log = folder / "log"
    words = [*alone, "sh", "-c", _WITH_NETWORK, "sh", slurmctld, "-D", "-c", "-f", str(folder / "slurm.conf")]
    with log.open("w") as file, subprocess.Popen(
        words,
        stdout=file, stderr=file, stdin=subprocess.DEVNULL, env={**os.environ, "PATH": _PATH},
    ) as process:  # fmt: skip
        until = time.monotonic() + LIMIT_S
        try:
            while (rc := process.poll()) is None and time.monotonic() < until:
                if _RUNS in log.read_text(errors="replace"):
                    return ""
                time.sleep(0.05)
        finally:
            process.kill()
    if rc is None:
        untried.append(f"slurmctld, which has not begun within {LIMIT_S:.0f} s")
        return ""
    output = log.read_text(errors="replace")
    if _RUNS in output:
        return ""
    if _OF_THE_COPY.search(_worst(output)):
        untried.append(f"slurmctld, for want of what only the site has: {_worst(output)}")
        return ""
    return f"slurmctld would not start: {_worst(output)}"


def _worst(output: str) -> str:
    """The line that says most of why a program ended."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for word in ("fatal:", "error:"):
        if found := [line for line in lines if word in line]:
            return found[-1]
    return lines[-1] if lines else "it says nothing"
