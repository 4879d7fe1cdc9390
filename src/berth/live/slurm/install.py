"""What is to be changed so that berth can place: Slurm's files with its lines, and berth's own files beside them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from berth.history.values.hostlist import expand
from berth.live.slurm.gres import base_type, indices
from berth.live.slurm.nodes import SlurmNode

__all__ = ["Plan", "diff", "plan"]

FOLDER = "/etc/slurm/berth"
SHARDS_A_GPU = 8
SCRIPTS = {"Prolog": "prolog.sh", "TaskProlog": "task_prolog.sh", "Epilog": "epilog.sh"}
OTHERS = (
    "watchdog.sh", "berth-slurm-watchdog.service", "berth-slurm-watchdog.timer", "berth-slurm.cron",
    "berth-slurm.service",
)  # fmt: skip
_BEFORE = re.compile(r'^"(.+)" \|\| exit \$\?', re.MULTILINE)
_RANGE = re.compile(r"\[([\d,-]+)\]")


@dataclass(frozen=True, slots=True)
class Plan:
    """How berth is to be installed at one site."""

    partitions: Set[str]
    qos: Set[str]
    operators: Set[int]
    """The uids that may release held jobs, beside root."""
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


def plan(how: Plan, there: Mapping[str, str], nodes: Sequence[SlurmNode], chosen: Set[str]) -> dict[str, str]:
    """The files as they are to be, by name. `there` has those of today: slurm.conf, gres.conf, cgroup.conf,
    job_submit.lua and berth's own, where they are; `chosen` names the nodes whose GPUs berth may share."""
    typed = {node.name: node for node in nodes if node.name in chosen and node.gpus}
    slurm_conf = there.get("slurm.conf", "")
    before = {name: _value(slurm_conf, name) for name in SCRIPTS}
    new = {
        "slurm.conf": _slurm_conf(slurm_conf, how, typed),
        "gres.conf": _gres_conf(there.get("gres.conf", ""), how, typed),
        "cgroup.conf": _cgroup_conf(there.get("cgroup.conf", "")),
        "job_submit.lua": _lua(there.get("job_submit.lua", ""), how),
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
    settings = {"BERTH_SLURM_RESULTS": f"{how.state}/results", **(how.settings or {})}
    lines = [f"export {key}={value}" for key, value in settings.items()]
    if before:
        lines.append(f'"{before}" || exit $?  # what the site had before, which may fail')
    values = {
        "# @SETTINGS@": "\n".join(lines) or "# no settings", "@PYTHON@": how.python, "@FOLDER@": how.folder,
        "@LIMIT_S@": str(how.limit_s), "@STATE@": str(how.state), "@BERTH@": how.berth, "@MODE@": "place",
        "@OPTIONS@": how.options,
    }  # fmt: skip
    text = shipped(name)
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def _lua(old: str, how: Plan) -> str:
    """berth's plugin; behind a site's own functions, which go first."""
    text = shipped("job_submit.lua")
    for mark, name, names in (("PARTITIONS", "PARTITIONS", how.partitions), ("QOS", "QOS", how.qos)):
        table = ", ".join(f'["{each}"] = true' for each in sorted(names))
        text = re.sub(rf"local BERTH_{name} *= .*-- @{mark}@.*", f"local BERTH_{name} = {{ {table} }}", text)
    uids = ", ".join(f"[{uid}] = true" for uid in sorted({0, *how.operators}))
    text = re.sub(r"local BERTH_OPERATORS = .*", f"local BERTH_OPERATORS = {{ {uids} }}", text)
    if not old.strip() or "berth_submit" in old:
        return text
    ours = text.partition("\nfunction slurm_job_submit")[0]
    return f"""{old.rstrip()}

{ours.rstrip()}

local site_submit, site_modify = slurm_job_submit, slurm_job_modify

function slurm_job_submit(job_desc, part_list, submit_uid)
   local status = site_submit(job_desc, part_list, submit_uid)
   if status ~= slurm.SUCCESS then
      return status
   end
   return berth_submit(job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   local status = site_modify(job_desc, job_rec, part_list, modify_uid)
   if status ~= slurm.SUCCESS then
      return status
   end
   return berth_modify(job_desc, job_rec, part_list, modify_uid)
end
"""


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
    lines = []
    for line in text.splitlines():
        node = _first_node(line, typed)
        if (
            node is not None
            and line.strip().lower().startswith("nodename=")
            and not (node.typed and node.shards)
        ):
            kinds = _kinds(node)
            items = [f"gpu:{kind}:1" for kind in kinds] + [f"shard:{how.shards_a_gpu * node.gpus}"]
            line = re.sub(r"Gres=\S+", "Gres=" + ",".join(items), line, flags=re.IGNORECASE)
        lines.append(line)
    return "\n".join(lines) + "\n"


def _gres_conf(text: str, how: Plan, typed: Mapping[str, SlurmNode]) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        node = _first_node(line, typed)
        devices = re.search(r"\bFile=(\S+)", line, re.IGNORECASE)
        is_gpu = re.search(r"\bName=gpu\b", line, re.IGNORECASE)
        if node is None or node.typed or devices is None or is_gpu is None:
            lines.append(line)
            continue
        who = re.match(r"\s*(NodeName=\S+)\s+", line, re.IGNORECASE)
        prefix = f"{who[1]} " if who else ""
        for kind, device in zip(_kinds(node), _devices(devices[1]), strict=False):
            lines.append(f"{prefix}Name=gpu Type={kind} File={device}")
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
