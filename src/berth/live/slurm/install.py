"""What is to be changed so that berth can place: Slurm's files with its lines, and berth's own files."""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from berth.errors import SettingError
from berth.history.values.tres import base_type
from berth.live.slurm.nodes import SlurmNode
from berth.live.slurm.site_files import NodeGpus, SiteConfig, gpus_of, retype, rewrite

FOLDER = "/etc/slurm/berth"
SHARDS_A_GPU = 8
SCRIPTS = {"Prolog": "prolog.sh", "TaskProlog": "task_prolog.sh", "Epilog": "epilog.sh"}
PLUGIN = "berth.lua"
MAIL = "mail.sh"
MAIL_PROGS = ("", "mail", "mailx")
"""Names of programs behind which berth's report is put; a site's own program stays."""
BEGIN, END = "-- BEGIN berth", "-- END berth"
"""Around berth's lines in job_submit.lua, which the next installation replaces."""
OTHERS = (
    "watchdog.sh",
    "berth-slurm-watchdog.service",
    "berth-slurm-watchdog.timer",
    "berth-slurm.cron",
    "berth-slurm.service",
    "berth-slurm-agent.service",
)
OWN_FILES = (*SCRIPTS.values(), PLUGIN, MAIL, *OTHERS)
"""What berth writes into its own folder."""
_BEFORE = re.compile(r"^# before: (.+)$", re.MULTILINE)
_OURS = re.compile(rf"^{BEGIN}.*?^{END}\n", re.MULTILINE | re.DOTALL)
_RETURN = re.compile(r"^return\b[^\n]*\s*\Z", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Plan:
    """How berth is to be installed at one site."""

    partitions: Set[str]
    qos: Set[str]
    operators: Set[int]
    """The uids that may release held jobs, besides root."""
    python: str
    berth: str
    state: Path
    options: str = ""
    folder: str = FOLDER
    shards_a_gpu: int = SHARDS_A_GPU
    settings: Mapping[str, str] | None = None
    """What the node's scripts find in their environment."""
    slurm_bin: str = "/usr/bin"
    """Where Slurm's commands are on the nodes; slurmd gives its scripts no search path."""
    conf: Path = Path("/etc/slurm")
    """The folder of slurm.conf."""
    cluster: str = ""
    """ClusterName, which `Include` lines may name as %c."""
    keep_types: bool = False
    """Whether the GPUs of a node keep their one type; Slurm then chooses the GPU."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The files as they are to be, by name, and what changes of the nodes."""

    files: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, NodeGpus] = field(default_factory=dict)

    @property
    def lost_types(self) -> Set[str]:
        """Types of GPUs that users can no longer ask for by `--gres=gpu:TYPE:N`."""
        return {
            kind for node in self.gpus.values() for kind in node.kinds if kind and kind not in node.new_kinds
        }


def plan(how: Plan, there: Mapping[str, str], nodes: Sequence[SlurmNode], chosen: Set[str]) -> Planned:
    """What is to be written. `there` has the files of today by name: slurm.conf and gres.conf with what they include,
    cgroup.conf, job_submit.lua and berth's own, where they are; `chosen` names the nodes whose GPUs berth may share.

    Raises SettingError for what cannot be changed: nodes without a line, GPUs that Slurm finds by itself, GPUs of
    several models in one node, and a gres.conf that does not agree with slurm.conf.
    """
    slurm_conf = SiteConfig("slurm.conf", there, how.conf, how.cluster)
    gres_conf = SiteConfig("gres.conf", there, how.conf, how.cluster)
    gpus = gpus_of(slurm_conf, chosen)
    lacking = {node.name for node in nodes if node.gpus and node.name in chosen} - gpus.keys()
    if lacking:
        raise SettingError(
            f"no NodeName= line of slurm.conf, or of what it includes, gives node {min(lacking)} its GPUs; write one"
            " with its Gres=, and run install again"
        )
    strangers = [node for node in nodes if node.gpus and node.name not in gpus]
    before = {name: slurm_conf.value(name) for name in SCRIPTS}
    mail = slurm_conf.value("MailProg")
    retype(gres_conf, gpus, {node.name for node in strangers}, how.shards_a_gpu, how.keep_types)
    rewrite(slurm_conf, gpus, how.keep_types)
    _set_values(slurm_conf, how)
    kinds = {base_type(kind) for node in gpus.values() for kind in node.kinds if kind}
    elsewhere = {kind for node in strangers for kind in node.gpu_kinds}
    plugin = _plugin(how, set() if how.keep_types else kinds - elsewhere)
    new = {
        **slurm_conf.texts(),
        **gres_conf.texts(),
        "cgroup.conf": _cgroup_conf(there.get("cgroup.conf", "")),
        "job_submit.lua": _lua(there.get("job_submit.lua", ""), plugin, how),
        f"berth/{PLUGIN}": plugin,
    }
    for name, file in SCRIPTS.items():
        old = before[name]
        if old == f"{how.folder}/{file}":  # installed before: what the site had stands in the script of then
            kept = _BEFORE.search(there.get(f"berth/{file}", ""))
            old = kept[1] if kept else ""
        new[f"berth/{file}"] = _filled(file, how, old)
    if Path(mail).name in MAIL_PROGS:
        new[f"berth/{MAIL}"] = _filled(MAIL, how).replace("@MAIL@", mail or "/bin/mail")
    new |= {f"berth/{file}": _filled(file, how) for file in OTHERS}
    return Planned({name: text for name, text in new.items() if text or name in there}, gpus)


def diff(there: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """The lines of a unified diff of all files that change."""
    for name, text in new.items():
        old = there.get(name, "")
        if old != text:
            yield from difflib.unified_diff(
                old.splitlines(),
                text.splitlines(),
                f"a/{name}" if old else "/dev/null",
                f"b/{name}",
                lineterm="",
            )


def shipped(name: str) -> str:
    """The text of a file that ships with berth."""
    return files("berth.live.slurm").joinpath("shipped", name).read_text(encoding="utf-8")


def _filled(name: str, how: Plan, before: str = "") -> str:
    settings = {
        "BERTH_SLURM_RESULTS": f"{how.state}/results",
        "BERTH_SLURM_PARTITIONS": ",".join(sorted(how.partitions)),
        "BERTH_SLURM_QOS": ",".join(sorted(how.qos)),
        "BERTH_SLURM_SHARDS": str(how.shards_a_gpu),
        **(how.settings or {}),
    }
    lines = [f"export {key}={shlex.quote(value)}" for key, value in settings.items()]
    if before:  # which may be a pattern, and may fail
        word = before if re.search(r"[*?\[]", before) else shlex.quote(before)
        lines += [
            f"# before: {before}",
            f'for script in {word}; do [ ! -x "$script" ] || "$script" || exit $?; done',
        ]
    values = {
        "# @SETTINGS@": "\n".join(lines) or "# no settings",
        "@PYTHON@": shlex.quote(how.python),
        "@FOLDER@": how.folder,
        "@STATE@": str(how.state),
        "@BERTH@": how.berth,
        "@OPTIONS@": how.options,
        "@SLURM_BIN@": how.slurm_bin,
    }
    text = shipped(name)
    percent = {".service": "%%", ".cron": r"\%"}.get(Path(name).suffix, "%")
    for mark, value in values.items():
        text = text.replace(mark, value.replace("%", percent))
    return text


def _plugin(how: Plan, kinds: Set[str]) -> str:
    """berth's part of job_submit.lua; `kinds` are the types that no GPU has any more."""
    text = shipped(PLUGIN)
    for name, names in (("PARTITIONS", how.partitions), ("QOS", how.qos), ("TYPES", kinds)):
        table = ", ".join(f'["{each}"] = true' for each in sorted(names))
        text = re.sub(rf"local BERTH_{name} *= .*-- @{name}@.*", f"local BERTH_{name} = {{ {table} }}", text)
    uids = ", ".join(f"[{uid}] = true" for uid in sorted({0, *how.operators}))
    return re.sub(r"local BERTH_OPERATORS = .*", f"local BERTH_OPERATORS = {{ {uids} }}", text)


def _lua(old: str, plugin: str, how: Plan) -> str:
    """job_submit.lua with the lines that load berth's plugin: last, but for a `return` of the whole file. The number
    behind them changes with the plugin, because slurmctld reads it again only where job_submit.lua has changed."""
    number = hashlib.sha256(plugin.encode()).hexdigest()[:8]
    ours = f'{BEGIN}\ndofile("{how.folder}/{PLUGIN}") -- {number}\n{END}\n'
    text = _OURS.sub("", old).rstrip()
    closing = _RETURN.search(text)
    head, tail = (text, "return slurm.SUCCESS") if closing is None else (text[: closing.start()], closing[0])
    return f"{head.rstrip()}\n\n{ours}\n{tail.strip()}\n".lstrip()


def _set_values(slurm_conf: SiteConfig, how: Plan) -> None:
    slurm_conf.add_items("JobSubmitPlugins", ("lua",))
    slurm_conf.add_items("GresTypes", ("gpu", "shard"))
    if slurm_conf.value("AccountingStorageType").endswith("slurmdbd"):
        slurm_conf.add_items("AccountingStorageTRES", ("gres/gpu", "gres/shard"))
    for name, file in SCRIPTS.items():
        slurm_conf.set_value(name, f"{how.folder}/{file}")
    if Path(slurm_conf.value("MailProg")).name in MAIL_PROGS:
        slurm_conf.set_value("MailProg", f"{how.folder}/{MAIL}")
    # What berth releases waits for the next pass of Slurm's scheduler: 3 s at most by default.
    if "batch_sched_delay=" not in slurm_conf.value("SchedulerParameters"):
        slurm_conf.add_items("SchedulerParameters", ("batch_sched_delay=1",))


def _cgroup_conf(text: str) -> str:
    """Without it a job may open GPUs that it was not given."""
    config = SiteConfig("cgroup.conf", {"cgroup.conf": text}, Path(), "")
    config.set_value("ConstrainDevices", "yes")
    return config.texts()["cgroup.conf"]
