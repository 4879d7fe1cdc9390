"""Puts changed files in the place of a site's own, all or none, and takes them away again byte for byte.

berth's folder keeps each file as it was (`before/`) and as it was put there (`after/`), and the folder of slurm.conf
(`conf`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from urllib.parse import quote, unquote

from berth.errors import SettingError
from berth.live.slurm.site_files import lines_of

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
