"""The command line in this process: what a process of its own prints, without the seconds that it takes to start."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from unittest import mock

from berth.cli import main


def berth(
    *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command as `berth` does, without progress; `env` is its whole environment."""
    arguments = list(map(str, words))
    variables = {**os.environ, "BERTH_QUIET": "1"} if env is None else dict(env)
    with (
        TemporaryFile("w+", encoding="utf-8") as out,
        TemporaryFile("w+", encoding="utf-8") as err,
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(sys, "argv", ["berth", *arguments]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
        _as_in_a_new_process(cwd),
    ):
        files = [os.dup(stream.fileno()) for stream in (out, err)]  # `main` may close standard output
        status: object = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code
        err.flush()
        printed = [_whole(file) for file in files]
    return subprocess.CompletedProcess(["berth", *arguments], status or 0, *printed)


def _whole(file: int) -> str:
    with open(file, "rb") as whole:
        whole.seek(0)
        return whole.read().decode()


@contextmanager
def _as_in_a_new_process(cwd: Path | None) -> Iterator[None]:
    """Warnings, logs and the path as Python begins with; afterwards a user's own modules are forgotten."""
    root, before, here = logging.getLogger(), set(sys.modules), Path.cwd()
    handlers, root.handlers = root.handlers, []
    os.chdir(cwd or here)
    try:
        with (
            warnings.catch_warnings(),
            mock.patch.object(sys, "path", [path for path in sys.path if path != str(cwd)]),
        ):
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", UserWarning)
            yield
    finally:
        root.handlers = handlers
        for name in set(sys.modules) - before if cwd is not None else ():
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(f"{cwd}/"):
                del sys.modules[name]
        os.chdir(here)
