"""Runs commands of berth, each in a process that is forked from this one, which has imported them.

A command that loads NVML needs a process of its own, and one that begins anew imports for a third of a second. One line
of JSON comes in for each command, with its words and its environment, and one goes out, with its exit status and all
that it printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from typing import NoReturn

from berth.cli import main


def become(words: list[str], environment: dict[str, str], output: int) -> NoReturn:
    """The child: runs the command and ends with its status."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["berth", *words]
    code = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        if sys.exc_info()[0] is not None:  # what it shows is compared with what was expected
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(words: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """The exit status of a command and all that it printed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        become(words, environment, write)
    os.close(write)
    with os.fdopen(read, errors="replace") as printed:
        said = printed.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def import_all() -> None:
    """By a command that loads no NVML."""
    sys.argv = ["berth", "partition", "list"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()


if __name__ == "__main__":
    import_all()
    for line in sys.stdin:
        print(json.dumps(run(*json.loads(line))), flush=True)
