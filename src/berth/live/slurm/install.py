"""What is to be changed so that berth can place: Slurm's files with its lines, and berth's own files.

Puts changed files in the place of a site's own, all or none, and takes them away again byte for byte.

berth's folder keeps each file as it was (`before/`) and as it was put there (`after/`), and the folder of slurm.conf
(`conf`).

Tries changed configuration files in a copy, before they reach a site: slurmd reads the GPUs of each node, and a
slurmctld without a network begins with them. Neither touches the daemons that run.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, unquote

from berth.errors import SettingError
from berth.history.values.tres import base_type
from berth.live.slurm.nodes import SlurmNode
from berth.live.slurm.site_files import (
    Line,
    NodeGpus,
    SiteConfig,
    devices_of,
    gpus_of,
    included,
    lines_of,
    retype,
    rewrite,
    with_pairs,
)

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


BEFORE, AFTER, CONF = "before", "after", "conf"
OWN = "berth/"
"""How names of files of berth's own folder begin."""


def read_text(path: Path) -> str | None:
    """A file's text, from which its bytes can be had again; None if it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return None


def write_text(path: Path, text: str) -> None:
    """Write what `read_text` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


def as_before(there: Mapping[str, str], own: Path) -> dict[str, str]:
    """The files of a site without what berth has put there; `there` has those of today.

    SettingError for a file in which berth's own lines were changed since.
    """
    found = {name: text for name, text in there.items() if not name.startswith(OWN)}
    for name, after in _kept(own, AFTER).items():
        before = _kept(own, BEFORE).get(name)
        if name not in found or found[name] == before:
            continue
        text = undone(
            (before or "").splitlines(keepends=True),
            after.splitlines(keepends=True),
            found[name].splitlines(keepends=True),
        )
        if text is None:
            raise SettingError(
                f"{name} has changed since berth was installed, in berth's own lines; compare it with"
                f" {_file(own, AFTER, name)}, and make"
                f" those lines as they are there, or as they were in {_file(own, BEFORE, name)}"
            )
        found[name] = "".join(text)
        if before is None and not found[name].strip():
            del found[name]
    return found


def undone(before: Sequence[str], after: Sequence[str], now: Sequence[str]) -> list[str] | None:
    """The lines of now without the change from before to after; None if the changed lines have changed again."""
    kept = {
        block.a + at: block.b + at
        for block in SequenceMatcher(None, after, now, autojunk=False).get_matching_blocks()
        for at in range(block.size)
    }
    lines: list[str] = []
    done = 0
    for what, i1, i2, j1, j2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if what == "equal":
            continue
        around = range(j1, j2) if j1 < j2 else range(max(0, j1 - 1), j1)
        places = [kept[at] for at in around if at in kept]
        if len(places) != len(around) or (places and places[-1] - places[0] != len(places) - 1):
            return None
        begin = places[0] + (j1 == j2) if places else 0
        lines += [*now[done:begin], *before[i1:i2]]
        done = begin + j2 - j1
    return [*lines, *now[done:]]


def texts_of(conf: Path, own: Path) -> dict[str, str]:
    """The files of today that berth has changed. SettingError if one that the site had cannot be read."""
    found = {name: read_text(path_of(name, conf, own)) for name in _kept(own, AFTER)}
    lacking = [name for name in _kept(own, BEFORE) if found.get(name, "") is None]
    if lacking:
        raise SettingError(
            f"{path_of(lacking[0], conf, own)} cannot be read, and berth has changed it; put"
            f" {_file(own, AFTER, lacking[0])} in its place, or the folder of slurm.conf into {own / CONF}; nothing was"
            " changed"
        )
    return {name: text for name, text in found.items() if text is not None}


def check_first(there: Mapping[str, str], own: Path) -> None:
    """SettingError if files of today name berth's, and berth's folder does not know what there was before.

    An uninstall would leave them with the names of scripts that are gone.
    """
    if is_installed(own):
        return
    for name, text in there.items():
        for line in lines_of(text) if not name.startswith(OWN) else ():
            if f"{own}/" in line.content:
                raise SettingError(
                    f"{name} has berth's line {line.content!r} already, and {own / AFTER} is missing, so that no"
                    " uninstall would know what there was before; take berth's lines out of the files beside"
                    " slurm.conf, and run install again"
                )


def conf_of(own: Path) -> Path:
    """The folder of slurm.conf at the install."""
    return Path((read_text(own / CONF) or "").rstrip("\n"))


def put(conf: Path, own: Path, before: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Write files, and keep them and those of before, all or none; an OSError leaves those that were there."""
    try:
        _keep_new(own, conf, before, new)
        _replace({path_of(name, conf, own): text for name, text in new.items()})
    except OSError:
        _drop_new(own)
        raise
    _take_new(own)


def _keep_new(folder: Path, conf: Path, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    _drop_new(folder)
    write_text(folder / f"{CONF}.new", f"{conf.absolute()}\n")
    for what, texts in ((BEFORE, before), (AFTER, after)):
        (folder / f"{what}.new").mkdir()
        for name, text in texts.items():
            if not name.startswith(OWN):
                write_text(_file(folder, f"{what}.new", name), text)


def _take_new(folder: Path) -> None:
    # Without it nothing counts as installed, whatever else is missing for a moment.
    shutil.rmtree(folder / AFTER, ignore_errors=True)
    shutil.rmtree(folder / BEFORE, ignore_errors=True)
    for what in (CONF, BEFORE, AFTER):
        (folder / f"{what}.new").replace(folder / what)


def finish(own: Path) -> None:
    """Keep what a first install knew that was killed at its writing, so that it can be repeated or taken back."""
    if not is_installed(own) and (own / f"{AFTER}.new").is_dir():
        for what in (CONF, BEFORE, AFTER):
            if (own / f"{what}.new").exists():
                (own / f"{what}.new").replace(own / what)


def _drop_new(folder: Path) -> None:
    (folder / f"{CONF}.new").unlink(missing_ok=True)
    for what in (BEFORE, AFTER):
        shutil.rmtree(folder / f"{what}.new", ignore_errors=True)


def remove(conf: Path, own: Path, before: Mapping[str, str], own_files: Sequence[str]) -> list[str]:
    """Write a site's files as they are without berth, and remove berth's own, with their folder if nothing else is in
    there; the names of what was changed."""
    names = _kept(own, AFTER)
    changed = {name: before[name] for name in names if name in before}
    _replace({path_of(name, conf, own): text for name, text in changed.items()})
    for name in names.keys() - changed.keys():
        path_of(name, conf, own).unlink(missing_ok=True)
    for path in (path_of(name, conf, own) for name in names):
        path.with_name(f".{path.name}.berth-new").unlink(missing_ok=True)  # of an install that was killed
    _drop_new(own)
    for what in (BEFORE, AFTER):
        shutil.rmtree(own / what, ignore_errors=True)
    for name in (*own_files, CONF):
        (own / name).unlink(missing_ok=True)
        (own / f".{name}.berth-new").unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # others have files there
        own.rmdir()
    return sorted(names)


def strangers(own: Path, own_files: Sequence[str]) -> list[str]:
    """Files of others in a folder that is to be berth's; none once it is."""
    if is_installed(own) or not own.is_dir():
        return []
    kept = {each for what in (BEFORE, AFTER, CONF) for each in (what, f"{what}.new")}

    def is_ours(path: Path) -> bool:
        ours = path.name in own_files and "berth" in (read_text(path) or "")
        return ours or path.name in kept or path.name.endswith(".berth-new")

    return sorted(path.name for path in own.iterdir() if not is_ours(path))


def is_installed(own: Path) -> bool:
    """Whether berth's folder knows what there was before."""
    return (own / AFTER).is_dir()


def path_of(name: str, conf: Path, own: Path) -> Path:
    """Where a file lies; a link is followed, so that it stays one."""
    return (own / name.removeprefix(OWN) if name.startswith(OWN) else conf / name).resolve()


def _kept(own: Path, what: str) -> dict[str, str]:
    folder = own / what
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {unquote(path.name): text for path in paths if (text := read_text(path)) is not None}


def _file(own: Path, what: str, name: str) -> Path:
    return own / what / quote(name, safe="")


def _replace(texts: Mapping[Path, str]) -> None:
    """Each file is whole at any moment; those that were there keep their owner and mode."""
    before = {path: path.read_bytes() if path.exists() else None for path in texts}
    done: list[Path] = []
    try:
        for path, text in texts.items():
            new = path.with_name(f".{path.name}.berth-new")
            done.append(path)
            write_text(new, text)
            if before[path] is not None:
                shutil.copymode(path, new)
                os.chown(new, path.stat().st_uid, path.stat().st_gid)
            elif path.suffix == ".sh":
                new.chmod(0o755)
        for path in texts:
            path.with_name(f".{path.name}.berth-new").replace(path)
    except OSError:
        for path in done:
            path.with_name(f".{path.name}.berth-new").unlink(missing_ok=True)
            old = before[path]
            if old is None:
                path.unlink(missing_ok=True)
            elif path.read_bytes() != old:
                path.write_bytes(old)
        raise


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
