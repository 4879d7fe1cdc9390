"""Has the queue start with the machine: by a unit of systemd, or by a line of cron where no systemd answers."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from berth.errors import LiveError
from berth.files import whole_file

NAME = "berth-queue"
MARK = "# Written by `berth up --install`; `berth up --uninstall` takes it away."
LINGER = "# `berth up --install` let the user's services run without a login, which goes with it."
KEPT = (
    "BERTH_STATE", "BERTH_SOCKET", "BERTH_CONFIG", "BERTH_HISTORY", "BERTH_ROOT", "XDG_STATE_HOME", "XDG_CONFIG_HOME"
)  # fmt: skip
"""Variables that say which queue it is and where its files are."""
SUBGROUPS = 254
"""The systemd from which on a unit's own process can have a group of its own (`DelegateSubgroup=`)."""


class Systemd:
    """The unit of this user, or of the machine if root asks."""

    def __init__(self) -> None:
        self.root = os.geteuid() == 0
        config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
        folder = "/etc/systemd/system" if self.root else os.path.join(config, "systemd", "user")
        self.path = os.path.join(folder, f"{NAME}.service")

    def trouble(self) -> str:
        """Why it takes no unit; empty if it does."""
        ok, output = self._ask("show-environment")
        return "" if ok else output

    def runs(self) -> bool:
        return self._ask("is-active", "--quiet", NAME)[0]

    def install(self, options: Sequence[str]) -> list[str]:
        """Write the unit, and start it now and with the machine; what was done, a line each.

        Raises LiveError if systemd refuses; then all is as before.
        """
        before = self._written()
        if before is not None and MARK not in before:
            raise LiveError(f"berth up --install: {self.path} is not from berth; move it away first")
        lingers, ours = self._lingers(), before is not None and LINGER in before
        allowed = lingers or (not self.root and _ask("loginctl", "enable-linger")[0])
        ours = ours or (allowed and not lingers)
        self._write(self.text(options, linger=ours and not self.root))
        for step in (("daemon-reload",), ("enable", NAME), ("restart", NAME)):
            ok, output = self._ask(*step)
            if not ok:
                self._put_back(before, unlinger=allowed and not lingers)
                raise LiveError(
                    f"berth up --install: `{' '.join(self._words(*step))}` failed, and all is as before: {output}"
                )
        when = "with the machine"
        if not self.root and not allowed:
            when = f"when you log in; with the machine after: sudo loginctl enable-linger {_user()}"
        return [f"wrote {self.path}", f"it starts again after a failure, and {when}"]

    def uninstall(self) -> list[str]:
        """Stop the unit and take it away; what was done, a line each; nothing if there is none.

        Raises LiveError if systemd refuses; then the unit is still there.
        """
        text = self._written()
        if text is None:
            return []
        if MARK not in text:
            raise LiveError(f"berth up --uninstall: {self.path} is not from berth; nothing was taken away")
        if shutil.which("systemctl"):
            ok, output = self._ask("disable", "--now", NAME)
            if not ok:
                raise LiveError(
                    f"berth up --uninstall: the unit is still there, because systemd says: {output}"
                )
        os.unlink(self.path)
        self._ask("daemon-reload")
        done = [f"removed {self.path}"]
        if LINGER in text:
            ok, output = _ask("loginctl", "disable-linger")
            done.append("your services run only while you are logged in, as before" if ok else output)
        return done

    def _put_back(self, before: str | None, *, unlinger: bool) -> None:
        if unlinger:
            _ask("loginctl", "disable-linger")
        if before is None:
            self._ask("disable", "--now", NAME)
            os.unlink(self.path)
            self._ask("daemon-reload")
            return
        self._write(before)
        self._ask("daemon-reload")
        self._ask("restart", NAME)

    def _lingers(self) -> bool:
        return _ask("loginctl", "show-user", _user(), "--property=Linger", "--value")[1].strip() == "yes"

    def text(self, options: Sequence[str], *, linger: bool) -> str:
        """The unit; `linger` has it say that the user's services run without a login because of it."""
        words = " ".join(_quoted(each).replace("$", "$$") for each in _command("--foreground", *options))
        variables = [f"Environment={_quoted(f'{name}={value}')}" for name, value in _environment()]
        output = _ask("systemctl", "--version")[1].split()
        version = int(output[1]) if len(output) > 1 and output[1].isdigit() else 0
        lines = [
            MARK,
            *([LINGER] if linger else []),
            "[Unit]",
            "Description=berth: the queue of this machine",
            "",
            "[Service]",
            "Type=notify",
            f"ExecStart={words}",
            *variables,
            "# Jobs go on while the broker is exchanged; it finds them again.",
            "KillMode=process",
            "# `berth down` is no failure: the queue stays down.",
            "Restart=on-failure",
            "RestartSec=1",
            "# One cgroup a job, so that nothing that it started can leave it.",
            "Delegate=yes",
            *(["DelegateSubgroup=berth-broker"] if version >= SUBGROUPS else []),
            "",
            "[Install]",
            "WantedBy=default.target",
        ]
        return "\n".join(lines) + "\n"

    def _written(self) -> str | None:
        try:
            with open(self.path, encoding="utf-8", errors="surrogateescape") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _write(self, text: str) -> None:
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with whole_file(Path(self.path)) as new:
                new.write_text(text, encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise LiveError(
                f"berth up --install: {self.path} cannot be written ({error.strerror})"
            ) from error

    def _words(self, *words: str) -> list[str]:
        return ["systemctl", *([] if self.root else ["--user"]), *words]

    def _ask(self, *words: str) -> tuple[bool, str]:
        return _ask(*self._words(*words))


class Cron:
    """The line of this user's crontab. Cron starts the queue with the machine, and not after a failure."""

    def trouble(self) -> str:
        """Why it takes no line; empty if it does."""
        return "" if shutil.which("crontab") else "there is no crontab on the PATH"

    def install(self, options: Sequence[str]) -> list[str]:
        """Add the line; what was done, a line each. Raises LiveError if cron refuses; then all is as before."""
        variables = [f"{name}={value}" for name, value in _environment()]
        words = ["env", *variables] if variables else []
        line = f"@reboot {shlex.join([*words, *_command(*options)])} >/dev/null {MARK}"
        self._write([*self._others(self._lines()), line.replace("%", "\\%") + "\n"], "--install")
        return [f"wrote into your crontab: {line}", "it starts with the machine; cron does not restart it"]

    def uninstall(self) -> list[str]:
        """Take the line away; what was done, a line each; nothing if there is none."""
        lines = [] if self.trouble() else self._lines()
        others = self._others(lines)
        if others == lines:
            return []
        self._write(others, "--uninstall")
        return ["removed the line of berth from your crontab"]

    @staticmethod
    def _others(lines: list[str]) -> list[str]:
        return [line for line in lines if not line.rstrip("\n").endswith(MARK)]

    @staticmethod
    def _lines() -> list[str]:
        """The crontab. Raises LiveError if it cannot be read, as it would be lost by writing another."""
        ok, output = _ask("crontab", "-l")
        if not ok:
            if "no crontab for" in output or "No such file" in output:
                return []
            raise LiveError(f"`crontab -l` failed, so the crontab is left as it is: {output}")
        lines = output.splitlines(keepends=True)
        return lines if not lines or lines[-1].endswith("\n") else [*lines[:-1], lines[-1] + "\n"]

    @staticmethod
    def _write(lines: list[str], option: str) -> None:
        ok, output = _ask("crontab", "-", text="".join(lines)) if lines else _ask("crontab", "-r")
        if not ok:
            raise LiveError(f"berth up {option}: crontab refused, and all is as before: {output}")


def starter() -> tuple[Systemd | Cron, str]:
    """What starts services on this machine, and a word on why it is no systemd; LiveError where nothing does."""
    systemd, cron = Systemd(), Cron()
    if not (why := systemd.trouble()):
        return systemd, ""
    if not (trouble := cron.trouble()):
        return cron, f"systemd does not answer, so cron starts the queue: {why}"
    raise LiveError(
        f"berth up --install: systemd does not answer ({why}), and {trouble}; start the queue with: berth up"
    )


def uninstall() -> list[str]:
    """Take away what starts the queue with the machine; what was done, a line each.

    Raises LiveError if there is nothing, or if something cannot be taken away.
    """
    systemd = Systemd()
    if done := systemd.uninstall() + Cron().uninstall():
        return done
    raise LiveError(
        f"berth up --uninstall: nothing is installed, neither {systemd.path} nor a line in the crontab"
    )


def _command(*options: str) -> list[str]:
    script = os.path.join(os.path.dirname(sys.executable), "berth")
    program = script if os.path.exists(script) else shutil.which("berth")
    if program is None:
        raise LiveError(f"berth up --install: there is no command berth in {script} or on the PATH")
    return [os.path.abspath(program), "up", *options]


def _environment() -> list[tuple[str, str]]:
    return [(name, value) for name in KEPT if (value := os.environ.get(name))]


def _quoted(word: str) -> str:
    """A word of a unit, in the quotes of systemd.syntax(7)."""
    if not word.isprintable():
        raise LiveError(f"berth up --install: {word!r} has a character that no unit can hold")
    for mark in ("\\", '"'):
        word = word.replace(mark, "\\" + mark)
    return '"' + word.replace("%", "%%") + '"'


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _ask(*words: str, text: str = "") -> tuple[bool, str]:
    """Whether a command did it, and what it printed; of one that failed its complaint, in one line."""
    try:
        done = subprocess.run(
            words,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except OSError as error:
        return False, f"{words[0]}: {error.strerror}"
    if done.returncode == 0:
        return True, done.stdout
    output = " ".join((done.stderr or done.stdout).split())
    return False, output or f"{words[0]} ended with {done.returncode}"
