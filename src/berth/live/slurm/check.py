"""A site's configuration, read from the controller and its files, and what of it would hurt berth, each with the line
to change."""

from __future__ import annotations

import base64
import binascii
import json
import os
import pwd
import re
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from berth.errors import LiveError, SettingError
from berth.live.slurm.candidates import LEFT_OUT
from berth.live.slurm.controller import Controller
from berth.live.slurm.install import FOLDER, SCRIPTS
from berth.live.slurm.installed import OWN, read_text
from berth.live.slurm.nodes import SlurmNode, SlurmPartition
from berth.live.slurm.requests import Cards
from berth.live.slurm.rest import NEW_TOKEN, spoken, started_by
from berth.live.slurm.site_files import SiteConfig, gpus_of, included, lines_of

OLDEST = (22, 5)
"""The first Slurm with shards."""
TESTED = ((22, 5), (24, 11), (26, 5))
"""The Slurms that berth was run on."""
_VERSION = re.compile(r"(\d+)\.(\d+)")
LEAST_JOB_AGE_S = 60


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is to be changed, or known."""

    what: str
    line: str
    """What to write, and where."""
    stops: bool = True
    """Whether `place` cannot work with it; else something is lost."""


@dataclass(frozen=True, slots=True)
class SlurmSetup:
    """What `check` checks."""

    configuration: Mapping[str, str]
    nodes: Sequence[SlurmNode]
    partitions: Sequence[SlurmPartition]
    wanted: Set[str]
    """The partitions that berth is to place in."""
    lua: str | None
    """The text of job_submit.lua; None: it cannot be read."""
    scripts: Mapping[str, str]
    """The texts of Prolog, TaskProlog and Epilog that could be read, by these names."""
    user: str
    state_fault: str = ""
    """Why the state's folder cannot be written."""
    rest: str | None = None
    """None: no slurmrestd is asked for; empty: it answers; else why it does not."""
    token: str = ""
    now_s: float = 0.0
    qos: Set[str] = frozenset()
    """The QoS whose jobs berth is to place."""
    lacks: Sequence[str] = ()
    """What Slurm's programs do not print that berth reads."""
    untyped_shards: Sequence[str] = ()
    """Nodes whose GPUs have types by slurm.conf, and whose shards have none."""


def faults(setup: SlurmSetup, cards: Cards) -> list[Fault]:
    """Everything that is wrong, what stops berth first."""
    found = [
        *_of_slurm(setup),
        *_of_lua(setup),
        *_of_nodes(setup, cards),
        *_of_scripts(setup),
        *_of_talking(setup),
    ]
    return sorted(found, key=lambda fault: not fault.stops)


def _of_slurm(setup: SlurmSetup) -> Iterator[Fault]:
    get = setup.configuration.get
    version, release = _version(setup), get("SLURM_VERSION", "of no version")
    if version is None or version < OLDEST:
        yield Fault(f"Slurm is {release}; shards came with 22.05", "update Slurm to 22.05 or later")
    elif version > TESTED[-1]:
        tested = ", ".join(f"{year}.{month:02}" for year, month in TESTED)
        yield Fault(
            f"Slurm is {release}; berth was run on {tested}, and follows the documentation of later ones",
            "try `place` on a test partition first, and see docs/compatibility.md",
            stops=False,
        )
    for lack in setup.lacks:
        yield Fault(lack, "use a Slurm from 22.05 to 26.05, and its own programs", stops="squeue" in lack)
    types = get("GresTypes", "").split(",")
    missing = [name for name in ("gpu", "shard") if name not in types]
    if missing:
        line = "slurm.conf: GresTypes=" + ",".join(
            [each for each in types if each not in ("(null)", "")] + missing
        )
        yield Fault(f"GresTypes has no {' and no '.join(missing)}", line, stops="gpu" in missing)
    plugins = get("JobSubmitPlugins", "").split(",")
    if "lua" not in plugins:
        line = "slurm.conf: JobSubmitPlugins=" + ",".join(
            [each for each in plugins if each not in ("(null)", "")] + ["lua"]
        )
        yield Fault("the Lua plugin is not loaded, so no job is ever held for berth", line)
    if not get("SelectType", "").endswith("cons_tres"):
        yield Fault(f"{get('SelectType')} knows no GPUs of types", "slurm.conf: SelectType=select/cons_tres")
    known = {each.name for each in setup.partitions}
    for name in sorted(setup.wanted - known):
        yield Fault(f"there is no partition {name}; there are {', '.join(sorted(known))}", "--partitions")
    owner = get("SlurmUser", "root(0)").partition("(")[0]
    if setup.user not in ("root", owner):
        yield Fault(
            f"{setup.user} may not hold and release other users' jobs",
            f"run berth as root or {owner}, or: sacctmgr modify user {setup.user} set AdminLevel=Operator",
        )
    age = get("MinJobAge", "300 sec").split()[0]
    if age.isdecimal() and int(age) < LEAST_JOB_AGE_S:
        yield Fault(f"jobs are forgotten {age} s after their end", "slurm.conf: MinJobAge=300", stops=False)
    if get("JobRequeue") == "0":
        yield Fault(
            "jobs are not queued again unless they say so: what runs out of GPU memory fails",
            "slurm.conf: JobRequeue=1",
            stops=False,
        )
    tres = get("AccountingStorageTRES", "")
    lacking = [name for name in ("gres/gpu", "gres/shard") if name not in tres.split(",")]
    if lacking and not get("AccountingStorageType", "none").endswith(("none", "(null)")):
        yield Fault(
            f"the accounting does not count {' and '.join(lacking)}",
            f"slurm.conf: AccountingStorageTRES={','.join(lacking)}",
            stops=False,
        )
    parameters = get("SchedulerParameters", "").split(",")
    if "defer" in parameters:
        yield Fault(
            "Slurm does not schedule at a job's end (defer): its GPUs stay idle until the next pass",
            "slurm.conf: SchedulerParameters without defer",
            stops=False,
        )
    for name in LEFT_OUT:
        if get(name, "0") not in ("0", "(null)", ""):
            yield Fault(
                f"{name} is {get(name)}, which berth's order of held jobs leaves out",
                f"slurm.conf: {name}=0, or accept that held jobs ignore it",
                stops=False,
            )


def _version(setup: SlurmSetup) -> tuple[int, int] | None:
    found = _VERSION.match(setup.configuration.get("SLURM_VERSION", ""))
    return None if found is None else (int(found[1]), int(found[2]))


def _of_lua(setup: SlurmSetup) -> Iterator[Fault]:
    if "lua" not in setup.configuration.get("JobSubmitPlugins", "").split(","):
        return
    if setup.lua is None:
        yield Fault(
            "job_submit.lua cannot be read next to slurm.conf: no job is held, and the controller refuses all jobs",
            "take the one of `berth slurm install`",
        )
        return
    if "berth_submit" not in setup.lua or "berth_modify" not in setup.lua:
        yield Fault(
            "job_submit.lua does not load berth's functions, so no job is held, or users release held ones",
            "job_submit.lua: the lines between BEGIN berth and END berth, as in `berth slurm install`",
        )
        return
    for what, table, names in (("partition", "PARTITIONS", setup.wanted), ("QoS", "QOS", setup.qos)):
        found = re.search(rf"local BERTH_{table} *= *\{{(.*?)\}}", setup.lua, re.DOTALL)
        for name in sorted(names):
            own = rf"""(?:\[\s*["']{re.escape(name)}["']\s*\]|(?<![^\s,;]){re.escape(name)})\s*=\s*true"""
            if found is None or not re.search(own, found[1]):
                yield Fault(
                    f"berth.lua does not take the jobs of the {what} {name}",
                    f'berth.lua: local BERTH_{table} = {{ ["{name}"] = true }}',
                )


def _of_nodes(setup: SlurmSetup, cards: Cards) -> Iterator[Fault]:
    names = {name for each in setup.partitions if each.name in setup.wanted for name in each.nodes}
    nodes = [node for node in setup.nodes if node.gpus and (node.name in names or not setup.wanted)]
    if not nodes:
        yield Fault(
            "no node of these partitions has GPUs",
            "slurm.conf: NodeName=… Gres=gpu:…",
            stops=bool(setup.wanted),
        )
    broken = [node for node in nodes if node.broken]
    for node in broken:
        why = f" ({node.reason})" if node.reason else ""
        yield Fault(
            f"no job starts on node {node.name}: it is {node.state}{why}",
            f"on {node.name}: systemctl status slurmd, and slurmd -G, which reads its GPUs"
            if node.silent
            else f"scontrol update NodeName={node.name} State=RESUME, once its reason is gone",
            stops=bool(setup.wanted) and len(broken) == len(nodes),
        )
    if untyped := [node.name for node in nodes if node.name in setup.untyped_shards]:
        yield Fault(
            f"the shards of {', '.join(untyped[:5])}{', …' if len(untyped) > 5 else ''} have no types: Slurm 22.05"
            " loses those of a GPU when slurmctld restarts while a job has some",
            "berth slurm install --apply, and restart slurmctld and slurmd; it gives none to GPUs with different"
            " numbers of shards",
            stops=False,
        )
    for node in nodes:
        if node.without:
            yield Fault(
                f"Slurm has lost the shards of {' and '.join(node.without)} on node {node.name}: nothing starts there",
                f"scontrol update NodeName={node.name} State=DRAIN Reason=shards; once its jobs have ended restart"
                f" slurmctld, and: scontrol update NodeName={node.name} State=RESUME",
                stops=False,
            )
        if not node.typed:
            kind = node.model or "gpu"
            gres = ",".join(f"gpu:{kind}_{at}:1" for at in range(node.gpus))
            yield Fault(
                f"node {node.name} gives no type to each GPU: berth chooses the node, and Slurm the GPU",
                f"slurm.conf: NodeName={node.name} … Gres={gres}",
                stops=False,
            )
        if not node.model:
            yield Fault(
                f"node {node.name} has GPUs of several models, which berth takes for one",
                "--partitions without it",
                stops=False,
            )
        if not node.shards:
            yield Fault(
                f"node {node.name} has no shards: no GPU of it can be shared",
                f"slurm.conf: NodeName={node.name} … Gres=…,shard:{8 * node.gpus}",
                stops=False,
            )
        elif node.shards % node.gpus:
            yield Fault(
                f"node {node.name} has {node.shards} shards on {node.gpus} GPUs",
                f"slurm.conf: NodeName={node.name} … shard:{node.gpus * max(1, node.shards_a_gpu)}",
                stops=False,
            )
    for kind in sorted({node.model for node in nodes}):
        model = cards.model(kind)
        if not cards.is_declared(kind):
            size = f"{model.mem_mib >> 10}G" if model.mem_mib else "80G"
            taken = f"taken to have {model.mem_mib} MiB" if model.mem_mib else "of unknown memory"
            yield Fault(
                f"GPUs of type {kind or '(none)'} are {taken}", f"--card {kind or 'gpu'}={size}", stops=False
            )


def _of_scripts(setup: SlurmSetup) -> Iterator[Fault]:
    closes = setup.configuration.get("TaskProlog") != "(null)" and "berth" in setup.scripts.get(
        "TaskProlog", ""
    )
    for name in SCRIPTS:
        path = setup.configuration.get(name, "(null)")
        stops = name == "Prolog" and closes
        lost = (
            "berth's TaskProlog gives jobs no GPU without it"
            if stops
            else "shares are not enforced, and their use is not measured"
        )
        if path == "(null)":
            yield Fault(f"there is no {name}: {lost}", f"slurm.conf: {name}={FOLDER}/{SCRIPTS[name]}", stops)
        elif name in setup.scripts and "berth" not in setup.scripts[name]:
            yield Fault(
                f"{path} does not call berth's {name}: {lost}",
                f"{path}: at its end, {FOLDER}/{SCRIPTS[name]}",
                stops,
            )


def _of_talking(setup: SlurmSetup) -> Iterator[Fault]:
    if setup.state_fault:
        yield Fault(setup.state_fault, "--state DIR")
    if setup.rest:
        yield Fault(setup.rest, started_by(_version(setup)), stops=False)
    if setup.rest is not None:
        left_s = _expires_s(setup.token) - setup.now_s
        if not setup.token or left_s < 0:
            yield Fault(
                "there is no token for slurmrestd"
                if not setup.token
                else f"the token expired {-left_s:.0f} s ago",
                NEW_TOKEN,
                stops=False,
            )


def _expires_s(token: str) -> float:
    """When a JWT expires, in seconds since 1970; infinity if it does not say."""
    parts = token.split(".")
    try:
        return float(json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))["exp"])
    except (IndexError, KeyError, ValueError, binascii.Error):
        return float("inf")


FILES = ("slurm.conf", "gres.conf", "cgroup.conf", "job_submit.lua")


def read_files(controller: Controller, own: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The configuration, and the text of each file that can be read, by its name relative to the folder of slurm.conf.
    `own` is berth's folder."""
    configuration = controller.configuration()
    folder, cluster = conf_folder(configuration), configuration.get("ClusterName", "")
    texts: dict[str, str] = {}
    names = [*FILES]
    for name in names:  # it grows by what files include
        text = read_text(folder / name)
        if text is not None:
            texts[name] = text
            found = (included(line.content, folder, cluster) for line in lines_of(text))
            names += [each for each in found if each is not None and each not in names]
    paths = own.iterdir() if own.is_dir() else ()
    ours = ((f"{OWN}{path.name}", read_text(path)) for path in paths if path.is_file())
    return configuration, texts | {name: text for name, text in ours if text is not None}


def conf_folder(configuration: Mapping[str, str]) -> Path:
    """The folder of slurm.conf."""
    return Path(configuration.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent


def read_setup(
    controller: Controller, wanted: Set[str], state: Path, rest: Path | None, qos: Set[str] = frozenset()
) -> SlurmSetup:
    """All that `check` checks."""
    configuration = controller.configuration()
    lua = read_text(conf_folder(configuration) / "job_submit.lua")
    scripts = {
        name: text for name in SCRIPTS if (text := _texts(configuration.get(name, "(null)"))) is not None
    }
    return SlurmSetup(
        configuration,
        controller.nodes(),
        controller.partitions(),
        wanted,
        _with_loaded(lua),
        scripts,
        pwd.getpwuid(os.geteuid()).pw_name,
        _state_fault(state),
        None if rest is None else _rest_fault(rest),
        os.environ.get("SLURM_JWT", ""),
        time.time(),
        qos,
        controller.lacks(),
        _untyped_shards(controller),
    )


def _untyped_shards(controller: Controller) -> list[str]:
    """The nodes whose GPUs have types of their own by slurm.conf, and whose shards have none."""
    configuration, texts = read_files(controller, Path())
    names = {node.name for node in controller.nodes() if node.gpus}
    try:
        conf = SiteConfig(
            "slurm.conf", texts, conf_folder(configuration), configuration.get("ClusterName", "")
        )
        return [
            name
            for name, node in gpus_of(conf, names).items()
            if node.typed and node.shards and set(node.shard_kinds) != set(node.kinds)
        ]
    except SettingError:  # `install` says what of it cannot be read
        return []


def _with_loaded(lua: str | None) -> str | None:
    """job_submit.lua with the files that it loads."""
    if lua is None:
        return None
    loaded = (read_text(Path(name)) or "" for name in re.findall(r'^dofile\("([^"]+)"\)', lua, re.MULTILINE))
    return "\n".join([lua, *loaded])


def _texts(paths: str) -> str | None:
    """The texts of all these scripts; None if none can be read."""
    found = [text for path in paths.split(",") if (text := read_text(Path(path))) is not None]
    return "\n".join(found) if found else None


def _state_fault(state: Path) -> str:
    there = next(folder for folder in (state.absolute(), *state.absolute().parents) if folder.exists())
    return "" if there.is_dir() and os.access(there, os.W_OK) else f"{state} cannot be written"


def _rest_fault(path: Path) -> str:
    """Why slurmrestd cannot be used; empty if it answers in a version that berth speaks."""
    try:
        spoken(path)
    except LiveError as error:
        return str(error)
    return ""
