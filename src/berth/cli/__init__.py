"""The command line: one module a command group, one function a command.

Standard output is for the answer, standard error for progress and errors. A mistake of the user's ends with
one message and status 2, an interruption with status 130.
"""

from __future__ import annotations

import atexit
import errno
import os
import signal
import sys
from contextlib import contextmanager

TYPE_CHECKING = False  # as in typing, whose import takes a tenth of a client's time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Timer
    from typing import Any


def main() -> None:
    """Run the command that the arguments name; never returns."""
    # While Python shuts down it restores the system's handlers; Ctrl-C would then end the process with another status.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    lost: list[Timer] = []
    try:
        with _interruptions_raised_again(lost):
            try:
                from berth.cli.app import app
                from berth.cli.plain_warnings import warn_in_one_line

                sys.path.append(os.getcwd())  # where a user's own `my.module:thing` is
                warn_in_one_line()
                app(prog_name="berth")
            finally:
                sys.stdout.flush()
    except BaseException as error:
        # What fails after an interruption fails because of it. What succeeds after a lost one is whole: only LLVM's
        # notes of code that it has compiled, and finalisers, lose one.
        failed = not (isinstance(error, SystemExit) and error.code in (None, 0))
        interrupted = bool(lost) or _caused_by(error, KeyboardInterrupt)
        _end(KeyboardInterrupt() if interrupted and failed else error)
        raise


def _end(error: BaseException) -> None:
    """Exit with the message and the status of what ended a command; returns for an exit that has been
    explained already and for a fault of berth."""
    from berth.errors import BerthError, MissingExtraError

    if isinstance(error, SystemExit):
        if _caused_by(error, BrokenPipeError):  # Rich makes an exit with status 1 of it
            _drop_output()
            sys.exit(0)
    elif isinstance(error, BrokenPipeError):
        _drop_output()
        sys.exit(0)
    elif isinstance(error, OSError):
        _print_os_error(error)
        sys.exit(2)
    elif (
        isinstance(error, KeyboardInterrupt) or str(error) == "Query interrupted"
    ):  # DuckDB makes this of Ctrl-C
        print("berth: interrupted", file=sys.stderr)
        sys.exit(130)
    else:
        shown = MissingExtraError.of(error) if isinstance(error, ImportError) else error
        if isinstance(shown, BerthError):
            print(f"berth: {shown}", file=sys.stderr)
            sys.exit(2)


@contextmanager
def _interruptions_raised_again(lost: list[Timer]) -> Iterator[None]:
    """Raise an interruption that a callback of C code swallows, such as LLVM's, again outside of it, unless the command
    ends first. Puts a timer into `lost` for each."""
    before = sys.unraisablehook

    def note(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            before(unraisable)
            return
        import threading  # here, because commands start often and hardly ever need it

        main = threading.main_thread().ident
        again = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
        again.daemon = True
        lost.append(again)
        again.start()

    sys.unraisablehook = note
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in lost:
            timer.cancel()


def _caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether such an error came before this one: Typer makes an exit of Ctrl-C, and what cleans up may fail."""
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
