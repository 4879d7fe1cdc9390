"""Every error that berth raises on purpose.

BerthError
├── TraceError            a trace file cannot be read as asked: file, line, column, value, what was expected
├── ClusterError          the description of a cluster is wrong
│   └── PlacementError    a placement that the cluster refuses
│       ├── DoesNotFit        something of the node or GPU is short
│       ├── NotAllowed        the model, label or shape that the job asks for is not there
│       └── NotRunning        a release or eviction of a job that holds nothing
├── PolicyError           a policy cannot be found or built, or decided on something that is not so
├── KnowledgeError        what is believed of jobs could not be asked or told: a knowledge raised
├── SchedulerError        a scheduler was told of a job or node that it cannot be about
├── SimulationError       the engine was given something that it cannot replay
├── HistoryError          the store of records cannot be read or written
├── ProfileError          a profile or measured pair is wrong: the application, the field and the row
├── FetchError            a public trace could not be downloaded whole
├── SamplingError         the GPUs of a node cannot be read, or what was sampled of them
├── PartitionError        a partition of a GPU cannot be made, found or changed
│   ├── NoRoomError           the GPU has less left than is to be promised
│   └── NoCommandError        the command to run under limits is not there, or is no program
├── LiveError             the queue of this machine cannot do what it was asked
│   └── StoreError            its store cannot be read or written
├── KubernetesError       a cluster cannot be reached, or does not do what it was asked
│   ├── ApiError              the API server refused a request: status, reason and its message
│   └── AskError              a pod, node or slice says what makes no sense
├── AccessError           a viewer of the console asked for what their role does not include
├── ModelError            a trained model or a checkpoint is not whole, not ours or of another version
├── SettingError          a value of an option or setting is outside its range
└── MissingExtraError     a part of berth that is installed by an extra was asked for without it

Each message says what was wanted, what came, where, and what to do.
"""

from __future__ import annotations

import errno
import sys

TYPE_CHECKING = False  # as in typing, whose import takes a tenth of a client's time
if TYPE_CHECKING:
    from typing import Any

DISTRIBUTION = "berth-gpu"
"""The name on package indexes, where `berth` is another project."""

EXTRAS = {
    "jax": "learn",
    "optax": "learn",
    "equinox": "learn",
    "gymnasium": "learn",
    "ray": "ray",
    "pymysql": "slurm",
    "lightgbm": "account",
    "pynvml": "sample",
    "grpc": "kubernetes",
    "google": "kubernetes",
    "aiohttp": "kubernetes",
    "msgspec": "kubernetes",
    "yaml": "kubernetes",
}
"""Which extra brings a package that the plain install leaves out."""


def cause_of(error: Exception) -> str:
    """Why a file cannot be read: of the system's answer only the cause, because the message names the file already."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    why = error.strerror.removesuffix(" or directory")
    return why[:1].lower() + why[1:]


def in_one_line(error: Exception) -> str:
    """An error of foreign code in one line, with the place where it was raised."""
    import traceback  # here, because clients of the local queue start often and never need it

    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({where.filename}:{where.lineno})"


class BerthError(Exception):
    """The base of every error that berth raises on purpose; the command line prints it without a traceback."""

    def __reduce__(self) -> tuple[object, ...]:
        """For pickle: what a process of a sweep raises comes to the one that asked, whatever its constructor takes."""
        return _unpickled, (type(self), self.args), self.__dict__


def _unpickled(kind: type[BerthError], arguments: tuple[object, ...]) -> BerthError:
    error = kind.__new__(kind)
    error.args = arguments
    return error


class TraceError(BerthError):
    """A trace file cannot be read as asked.

    `path`, `line` (the header is line 1), `column`, `value` and `expected` are kept as attributes, so that
    `--skip-bad` can list what was left out; `line` and `column` are None where the whole file is at fault. With a
    `cause`, such as "no such file", the message says that instead of what was expected.
    """

    def __init__(
        self,
        path: str,
        expected: str,
        *,
        line: int | None = None,
        column: str | None = None,
        value: str | None = None,
        cause: str = "",
    ) -> None:
        self.path = path
        self.line = line
        self.column = column
        self.value = value
        self.expected = expected
        self.cause = cause
        where = path if line is None else f"{path}, line {line}"
        if column is not None:
            where += f", column '{column}'"
        came = "" if value is None else f": {value!r}"
        super().__init__(f"{where}: {cause}" if cause else f"{where}{came}; expected {expected}")

    @classmethod
    def unreadable(cls, path: str, error: OSError, line: int | None = None) -> TraceError:
        """A file that the system does not let be read, and why, in its words."""
        return cls(path, "a file that can be read", line=line, cause=cause_of(error))


class ClusterError(BerthError):
    """The description of a cluster is wrong."""


class PlacementError(ClusterError):
    """A placement or release that the cluster refuses; nothing has changed."""


class DoesNotFit(PlacementError):  # noqa: N818  the name is what one would say
    """Something of the node or GPU is short: says which, how much was wanted and how much was left."""


class NotAllowed(PlacementError):  # noqa: N818
    """The model, label, number of nodes or slots that the job asks for is not what the placement names."""


class NotRunning(PlacementError):  # noqa: N818
    """A job was released or evicted that holds nothing."""


class PolicyError(BerthError):
    """A policy cannot be found or built, or it decided on something that is not so."""


class KnowledgeError(BerthError):
    """A knowledge raised when it was asked something or told what happened; what had happened until then stands."""


class SchedulerError(BerthError):
    """A scheduler was told of a job or node that it cannot be about; nothing has changed."""


class SimulationError(BerthError):
    """The engine was given jobs, outages or decisions that it cannot replay."""


class HistoryError(BerthError):
    """The store of records or events cannot be read or written."""


class ProfileError(BerthError):
    """A profile or a measured pair cannot be what it says: names the application, the field and the row."""


class FetchError(BerthError):
    """A public trace could not be downloaded whole."""


class SamplingError(BerthError):
    """The GPUs of a node cannot be read, or what was sampled of them."""


class PartitionError(BerthError):
    """A partition of a GPU cannot be made, found, joined or changed: says why and what to do."""


class NoCommandError(PartitionError):
    """A command cannot be run; `status` is what a shell exits with: 127 if it is not there, else 126."""

    def __init__(self, command: str, error: OSError) -> None:
        self.status = 127 if isinstance(error, FileNotFoundError) else 126
        what_to_do = ""
        if isinstance(error, PermissionError) or error.errno == errno.ENOEXEC:
            what_to_do = (
                "; make it executable with chmod +x, or name the program that runs it, such as python"
            )
        super().__init__(f"'{command}' cannot be run ({error.strerror}){what_to_do}")


class NoRoomError(PartitionError):
    """A GPU has less left than a partition is to be promised; `short` says how much without what to do about it."""

    def __init__(self, short: str) -> None:
        self.short = short
        super().__init__(f"{short}; ask for less, or promise more than there is with --overcommit")


class LiveError(BerthError):
    """The queue of this machine cannot do what it was asked: says why and what to do."""


class StoreError(LiveError):
    """The store of the queue cannot be read or written."""


class KubernetesError(BerthError):
    """A Kubernetes cluster cannot be reached or used as asked: says why and what to do."""


class ApiError(KubernetesError):
    """The API server refused a request.

    `status` is that of HTTP, 0 if no answer came, `reason` the server's own word (`Conflict`, `NotFound`, …),
    `retry_after_s` when it wants to be asked again, None where asking again does not help.
    """

    def __init__(
        self, what: str, status: int, reason: str, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{what}: {f'{status} ' if status else ''}{reason}: {message}")
        self.what = what
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class AskError(KubernetesError):
    """A pod, node or slice says what makes no sense: names the annotation or field, what came and what is expected."""


class ModelError(BerthError):
    """A trained model or a checkpoint is not whole, not ours or of another version; it was not used."""


class SettingError(BerthError):
    """A value of an option or setting is outside its range."""


def check_kind(value: object, kinds: Any, wanted: str) -> None:
    """Raise SettingError for a value that is of none of these kinds, for `isinstance`; `wanted` begins the message."""
    if not isinstance(value, kinds):
        raise SettingError(f"{wanted}; not {value!r:.80}")


class AccessError(BerthError):
    """A viewer of the console asked for what their role does not include."""


def install_command(extra: str = "", package: str = DISTRIBUTION) -> str:
    """The command that installs a package, or an extra of it: from its source if it came from one."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote

    try:
        origin = distribution(package).read_text("direct_url.json")
    except PackageNotFoundError:
        origin = None
    found = json.loads(origin) if origin else {}
    where = unquote(str(found.get("url", package)).removeprefix("file://"))
    editable = "-e " if found.get("dir_info", {}).get("editable") else ""
    extras = f"[{extra}]" if extra else ""
    return f"{sys.executable} -m pip install {editable}'{where}{extras}'"


class MissingExtraError(BerthError):
    """A part of berth that is installed by an extra was asked for without it."""

    def __init__(self, what: str, extra: str, package: str = DISTRIBUTION) -> None:
        super().__init__(
            f"{what} needs the extra '{extra}'; install it with: {install_command(extra, package)}"
        )
        self.what = what
        self.extra = extra
        self.package = package

    @classmethod
    def of(cls, error: ImportError) -> MissingExtraError | None:
        """The error to raise for an import that failed for want of an extra's package; None for any other."""
        package = (error.name or "").partition(".")[0]
        return cls(f"module '{package}'", EXTRAS[package]) if package in EXTRAS else None
