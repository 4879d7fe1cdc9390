"""The process that answers one question: `python -m berth.console.what_if.worker FOLDER HISTORY MIB`.

It says on standard output, a line of JSON each, how far it is (`{"done": 0.4}`) and what went wrong (`{"failed":
"…"}`). Its standard input is a pipe that is never written to: it closes when the console has gone, and the worker ends.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from berth.errors import BerthError
from berth.files import write_whole

ANSWER = "answer.json"
PICTURES = "pictures.json"
LOG = "log"
SPARE_MIB = 6144
"""Address space above the limit of memory: libraries reserve much that they never use."""
REPORT_S = 0.2
MOST_WORDS = 500


def too_little_memory(mem_mib: int) -> str:
    """What a question says that needs more than it may have."""
    return (
        f"the replay needs more memory than the {mem_mib:,} MiB that one may have; choose a shorter period or fewer"
        " policies, or ask the operator for more"
    )


def main(folder: Path, history: Path, mem_mib: int) -> int:
    """Answer the question in the folder; the exit status, 0 when the answer is there."""
    threading.Thread(target=_end_with_the_console, daemon=True).start()
    os.nice(10)
    with suppress(OSError):  # let the kernel, where it must end something, end this first
        Path("/proc/self/oom_score_adj").write_text("900", encoding="ascii")
    most = (mem_mib + SPARE_MIB) << 20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return attempt(folder, history, mem_mib)


def attempt(folder: Path, history: Path, mem_mib: int) -> int:
    """Answer the question in the folder or say why not, whatever goes wrong; the exit status."""
    try:
        _answer(folder, history)
    except BerthError as error:
        return _failed(too_little_memory(mem_mib) if _ran_out(error) else str(error))
    except MemoryError:
        return _failed(too_little_memory(mem_mib))
    except OSError as error:
        return _failed(f"{error.filename or folder} cannot be written or read: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001  a fault of berth or of a library: the log has its place
        traceback.print_exc()
        return _failed(
            f"the replay failed with {type(error).__name__}: {str(error)[:MOST_WORDS]}; this is a fault of berth or of"
            f" a library, and the operator finds where in {folder / LOG}"
        )
    return 0


def _ran_out(error: BaseException | None) -> bool:
    """Whether an error comes of too little memory, such as a policy's that could not be given any."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__
    return False


def _answer(folder: Path, history: Path) -> None:
    from berth.console.what_if.answer import answered
    from berth.console.what_if.store import read_question

    reported_s = 0.0

    def progress(done: float, total: float) -> None:
        nonlocal reported_s
        if time.monotonic() - reported_s > REPORT_S:
            reported_s = time.monotonic()
            _report({"done": round(done / max(total, 1), 4)})

    answer, pictures = answered(read_question(folder), history, progress)
    write_whole(folder / PICTURES, json.dumps([asdict(each) for each in pictures]))
    write_whole(folder / ANSWER, json.dumps(asdict(answer), allow_nan=False), durable=True)


def _failed(why: str) -> int:
    _report({"failed": why})
    return 1


def _report(message: dict[str, object]) -> None:
    with suppress(BrokenPipeError):
        print(json.dumps(message), flush=True)


def _end_with_the_console() -> None:
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
