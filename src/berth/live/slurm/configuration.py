"""Reads Slurm's configuration: from the controller, and from the files in the folder of slurm.conf."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Mapping, Set
from pathlib import Path

from berth.errors import LiveError, SettingError
from berth.live.slurm.check import SlurmSetup
from berth.live.slurm.controller import Controller
from berth.live.slurm.install import OWN, SCRIPTS, read_text
from berth.live.slurm.rest import spoken
from berth.live.slurm.site_files import SiteConfig, gpus_of, included, lines_of

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
