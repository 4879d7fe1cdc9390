"""What is to be changed so that berth can place: Slurm's files with its lines, and berth's own files."""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from berth.errors import SettingError
from berth.history.values.gres import base_type, indices
from berth.history.values.hostlist import expand
from berth.live.slurm.nodes import SlurmNode

FOLDER = "/etc/slurm/berth"
SHARDS_A_GPU = 8
SCRIPTS = {"Prolog": "prolog.sh", "TaskProlog": "task_prolog.sh", "Epilog": "epilog.sh"}
PLUGIN = "berth.lua"
BEGIN, END = "-- BEGIN berth", "-- END berth"
"""Around berth's lines in job_submit.lua, which the next installation replaces."""
OTHERS = (
    "watchdog.sh",
    "berth-slurm-watchdog.service",
    "berth-slurm-watchdog.timer",
    "berth-slurm.cron",
    "berth-slurm.service",
)
_BEFORE = re.compile(r"^# before: (.+)$", re.MULTILINE)
_OURS = re.compile(rf"^{BEGIN}.*?^{END}\n", re.MULTILINE | re.DOTALL)
_RETURN = re.compile(r"^return\b[^\n]*\s*\Z", re.MULTILINE)
_NODES = re.compile(r"\s*NodeName=(\S+)", re.IGNORECASE)
_RANGE = re.compile(r"\[([\d,-]+)\]")


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
    limit_s: int = 300
    """How long berth may be silent until the watchdog gives its jobs back."""
    settings: Mapping[str, str] | None = None
    """What the node's scripts find in their environment."""
    slurm_bin: str = "/usr/bin"
    """Where Slurm's commands are on the nodes; slurmd gives its scripts no search path."""


def plan(how: Plan, there: Mapping[str, str], nodes: Sequence[SlurmNode], chosen: Set[str]) -> dict[str, str]:
    """The files as they are to be, by name. `there` has those of today: slurm.conf, gres.conf, cgroup.conf,
    job_submit.lua and berth's own, where they are; `chosen` names the nodes whose GPUs berth may share.

    Raises SettingError for what cannot be changed line by line: lines of nodes elsewhere than in slurm.conf, and GPUs
    that Slurm finds by itself.
    """
    typed = {node.name: node for node in nodes if node.name in chosen and node.gpus}
    slurm_conf = there.get("slurm.conf", "")
    before = {name: _value(slurm_conf, name) for name in SCRIPTS}
    elsewhere = {kind for node in nodes if node.name not in typed for kind in node.gpu_kinds}
    kinds = {base_type(kind) for node in typed.values() for kind in node.gpu_kinds if kind}
    plugin = _plugin(how, kinds - elsewhere)
    new = {
        "slurm.conf": _slurm_conf(slurm_conf, how, typed),
        "gres.conf": _gres_conf(there.get("gres.conf", ""), how, typed),
        "cgroup.conf": _cgroup_conf(there.get("cgroup.conf", "")),
        "job_submit.lua": _lua(there.get("job_submit.lua", ""), plugin, how),
        f"berth/{PLUGIN}": plugin,
    }
    for name, file in SCRIPTS.items():
        old = before[name]
        if old.startswith(how.folder):  # installed before: what the site had stands in the script of then
            kept = _BEFORE.search(there.get(f"berth/{file}", ""))
            old = kept[1] if kept else ""
        new[f"berth/{file}"] = _filled(file, how, old)
    return new | {f"berth/{file}": _filled(file, how) for file in OTHERS}


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
        "@LIMIT_S@": str(how.limit_s),
        "@STATE@": str(how.state),
        "@BERTH@": how.berth,
        "@MODE@": "place",
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


def _value(text: str, key: str) -> str:
    found = re.findall(rf"^\s*{key}\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    return found[-1] if found else ""


def _slurm_conf(text: str, how: Plan, typed: Mapping[str, SlurmNode]) -> str:
    text = _with_items(text, "JobSubmitPlugins", ("lua",))
    text = _with_items(text, "GresTypes", ("gpu", "shard"))
    if _value(text, "AccountingStorageType").endswith("slurmdbd"):
        text = _with_items(text, "AccountingStorageTRES", ("gres/gpu", "gres/shard"))
    for name, file in SCRIPTS.items():
        text = _with_value(text, name, f"{how.folder}/{file}")
    # What berth releases waits for the next pass of Slurm's scheduler: 3 s at most by default.
    if "batch_sched_delay=" not in _value(text, "SchedulerParameters"):
        text = _with_items(text, "SchedulerParameters", ("batch_sched_delay=1",))
    lines, seen = [], set()
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        node = _first_node(line, typed) if _NODES.match(line) else None
        if node is not None and re.search(r"\bGres=", line, re.IGNORECASE):
            seen |= set(expand(_NODES.match(line)[1]))  # type: ignore[index]
            if not (node.typed and node.shards):
                line = _node_line(line, node, how)
        lines.append(line)
    if typed.keys() - seen:
        raise SettingError(
            f"the line of node {min(typed.keys() - seen)} with its Gres= is not in slurm.conf itself; write it there"
            " instead of including it or giving it to NodeName=DEFAULT, and run install again"
        )
    return "\n".join(lines) + "\n"


def _node_line(line: str, node: SlurmNode, how: Plan) -> str:
    """A node's line with a type for each of its GPUs, shards, and their model as a feature."""
    found = re.search(r"\bGres=(\S+)", line, re.IGNORECASE)
    others = [each for each in (found[1].split(",") if found else ()) if not re.match(r"(gpu|shard)\b", each)]
    items = [f"gpu:{kind}:1" for kind in _kinds(node)] + [f"shard:{how.shards_a_gpu * node.gpus}", *others]
    line = re.sub(r"\bGres=\S+", "Gres=" + ",".join(items), line, flags=re.IGNORECASE)
    model = node.model
    has = re.search(r"\bFeatures?=(\S+)", line, re.IGNORECASE)
    if not model or (has is not None and model in has[1].split(",")):
        return line
    if has is not None:
        return f"{line[: has.end()]},{model}{line[has.end() :]}"
    return re.sub(r"\bGres=\S+", lambda gres: f"{gres[0]} Feature={model}", line, flags=re.IGNORECASE)


def _gres_conf(text: str, how: Plan, typed: Mapping[str, SlurmNode]) -> str:
    detects = re.search(r"^[^#\n]*\bAutoDetect=(?!off\b)(\w+)", text, re.MULTILINE | re.IGNORECASE)
    if detects is not None and not all(node.typed for node in typed.values()):
        raise SettingError(
            f"gres.conf has AutoDetect={detects[1]}, which gives all GPUs of a model one type; write a line for each,"
            " as `slurmd -G` prints them (Name=gpu File=… Cores=…), without AutoDetect, and run install again"
        )
    lines: list[str] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        node = _first_node(line, typed)
        devices = re.search(r"\bFile=(\S+)", line, re.IGNORECASE)
        is_gpu = re.search(r"\bName=gpu\b", line, re.IGNORECASE)
        if node is None or node.typed or devices is None or is_gpu is None:
            lines.append(line)
            continue
        who = re.match(r"\s*(NodeName=\S+)\s+", line, re.IGNORECASE)
        prefix = f"{who[1]} " if who else ""
        known = r"(NodeName|Name|Type|File|Count)="
        rest = "".join(f" {word}" for word in line.split() if not re.match(known, word, re.IGNORECASE))
        for kind, device in zip(_kinds(node), _devices(devices[1]), strict=False):
            lines.append(f"{prefix}Name=gpu Type={kind} File={device}{rest}")
        if not node.shards:
            lines.append(f"{prefix}Name=shard Count={how.shards_a_gpu * node.gpus}")
    return "\n".join(lines) + "\n" if lines else ""


def _cgroup_conf(text: str) -> str:
    """Without it a job may open GPUs that it was not given."""
    return _with_value(text, "ConstrainDevices", "yes")


def _kinds(node: SlurmNode) -> list[str]:
    """A type for each GPU of a node: its model, and its index."""
    return [f"{base_type(kind) or 'gpu'}_{at}" for at, kind in enumerate(node.gpu_kinds)]


def _devices(text: str) -> list[str]:
    found: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        span = _RANGE.search(part)
        numbers = [str(number) for number in indices(span[1])] if span else [""]
        found += [part[: span.start()] + number + part[span.end() :] if span else part for number in numbers]
    return found


def _first_node(line: str, typed: Mapping[str, SlurmNode]) -> SlurmNode | None:
    """The first of the nodes that a line is about; of a line of gres.conf without a name any."""
    named = re.match(r"\s*NodeName=(\S+)", line, re.IGNORECASE)
    if line.strip().startswith("#"):
        return None
    if named is None:
        return next(iter(typed.values()), None) if re.match(r"\s*Name=gpu\b", line, re.IGNORECASE) else None
    try:
        return next((typed[name] for name in expand(named[1]) if name in typed), None)
    except ValueError:
        return None


def _with_items(text: str, key: str, items: Sequence[str]) -> str:
    """With these items in a list that a line has, or with a line of its own."""
    has = [each for each in _value(text, key).split(",") if each]
    lacking = [each for each in items if each not in has]
    return _with_value(text, key, ",".join(has + lacking)) if lacking else text


def _with_value(text: str, key: str, value: str) -> str:
    line = f"{key}={value}"
    if _value(text, key) == value:
        return text
    new, count = re.subn(rf"^\s*{key}\s*=.*$", line, text, count=1, flags=re.MULTILINE | re.IGNORECASE)
    return new if count else f"{text.rstrip()}\n{line}\n".lstrip()
