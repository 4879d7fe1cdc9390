"""The command line: one module a command group, one function a command.

Standard output is for the answer, standard error for progress and errors. A mistake of the user's ends with
one message and status 2, an interruption with status 130.
"""

from __future__ import annotations

import errno
import os
import sys


def main() -> None:
    """Run the command that the arguments name; never returns."""
    from berth.errors import BerthError, MissingExtraError

    try:
        try:
            from berth.cli.app import app
            from berth.cli.plain_warnings import warn_in_one_line

            sys.path.append(os.getcwd())  # where a user's own `my.module:thing` is
            warn_in_one_line()
            app(prog_name="berth")
        finally:
            sys.stdout.flush()
    except SystemExit as error:
        if _caused_by(error, BrokenPipeError):  # Rich makes an exit with status 1 of it
            _drop_output()
            sys.exit(0)
        if _caused_by(error, KeyboardInterrupt):
            print("berth: interrupted", file=sys.stderr)
        raise
    except BerthError as error:
        print(f"berth: {error}", file=sys.stderr)
        sys.exit(2)
    except ImportError as error:
        extra = MissingExtraError.of(error)
        if extra is None:
            raise
        print(f"berth: {extra}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)
    except OSError as error:
        _print_os_error(error)
        sys.exit(2)
    except (KeyboardInterrupt, RuntimeError) as error:
        if (
            isinstance(error, RuntimeError) and str(error) != "Query interrupted"
        ):  # what DuckDB makes of Ctrl-C
            raise
        print("berth: interrupted", file=sys.stderr)
        sys.exit(130)


def _caused_by(error: SystemExit, kind: type[BaseException]) -> bool:
    """Whether such an error came before this exit: Typer makes an exit of Ctrl-C, with nothing said."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, kind):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _print_os_error(error: OSError) -> None:
    """Say what failed and where, and write no more to standard output."""
    # Writing to berth's own files raises errors that name the file (whole_file), so that one without is of the output.
    full = error.errno in (errno.ENOSPC, errno.EDQUOT) or (error.errno == errno.EIO and _terminal_is_gone())
    where = error.filename or ("standard output" if full else "")
    # Reading raises it too, from a disk with a fault, and names no file.
    faulty = " while a file was read or written; the kernel's log (dmesg) names the disk with the fault"
    hint = faulty if error.errno == errno.EIO and not where else ""
    print(f"berth: {where}{': ' if where else ''}{error.strerror or error}{hint}", file=sys.stderr)
    _drop_output()


def _terminal_is_gone() -> bool:
    """Whether standard output is a terminal that has hung up."""
    import termios

    try:
        termios.tcgetattr(1)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False


def _drop_output() -> None:
    """Discard further output: its reader has closed the pipe, or it cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
