"""`berth predict-wait`: how long a job will wait, and how well that can be told."""

from __future__ import annotations

import sys
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from berth.cli.history_folder import HistoryFolder
from berth.cli.output import JsonOrCsv, printed
from berth.counts import counted
from berth.errors import HistoryError, LiveError, SettingError
from berth.history.values.durations import duration_text, moment_ms
from berth.live.local.places import find_socket
from berth.live.local.protocol import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from berth.history.importing.pending import Queued
    from berth.waiting import Answer, WaitModel

app = typer.Typer(help="Predict how long a job will wait, from the history.", no_args_is_help=True)

NAMES: Final = {
    "virtual_cluster": "partition",
    "qos": "QOS",
    "account": "account",
    "user": "user",
    "application": "application",
}
"""What the options name, by the column of a record."""
OF_THE_CLUSTER: Final = ("virtual_cluster", "qos")
"""Without one of these there is no answer; people and applications may be new."""

Key = Annotated[
    Path | None,
    typer.Option(
        "--pseudonymise", metavar="KEYFILE", help="The key of a history that was imported with pseudonyms."
    ),
]


@app.callback()
def _predict_wait() -> None:
    pass


@app.command()
def evaluate(
    history: HistoryFolder = Path("history"),
    as_json: JsonOrCsv = None,
) -> None:
    """Train on the first four fifths by time, and judge the answers on the last fifth."""
    from berth.waiting import evaluate as evaluated
    from berth.waiting.refit import history_questions

    found = evaluated(history_questions(history))
    if printed(as_json, [found.to_dict()], found.to_dict()):
        return
    days = ""
    if found.held_between is not None:
        days = " ({:.0f} to {:.0f} %, as days differ)".format(*(100 * share for share in found.held_between))
    print(
        f"trained on {found.trained:,}, tested on {found.tested:,}\n"
        f"mean squared error of log10(1 + s): {found.mse_log10:.4f} (a constant: {found.baseline_mse_log10:.4f})\n"
        f"80 % interval holds {found.coverage_80 * 100:.1f} %{days}; "
        f"median error {found.median_abs_error_s:,.0f} s"
    )


@app.command()
def train(history: HistoryFolder = Path("history"), as_json: JsonOrCsv = None) -> None:
    """Train a model on the history, judge it on the last fifth, and store it in the history."""
    from berth.waiting.refit import MODEL_NAME, learn_anew

    model, waits = learn_anew(history)
    result = {
        "waits": waits,
        "model": str(history / MODEL_NAME),
        "warnings": list(model.judgement.doubts),
    }
    if printed(as_json, [result], result):
        return
    print(f"learned from {waits:,} waits; wrote {history / MODEL_NAME}")
    for doubt in model.judgement.doubts:
        print(f"warning: {doubt}", file=sys.stderr)


@app.command()
def request(
    user: Annotated[str, typer.Option(metavar="NAME", help="User of the job.")] = "",
    account: Annotated[str, typer.Option(metavar="NAME", help="Its account.")] = "",
    partition: Annotated[str, typer.Option(metavar="NAME", help="Its partition.")] = "",
    qos: Annotated[str, typer.Option(metavar="NAME", help="Its quality of service.")] = "",
    application: Annotated[str, typer.Option(metavar="NAME", help="Its application.")] = "",
    gpus: Annotated[int, typer.Option(min=0, metavar="N", help="GPUs over all its nodes.")] = 1,
    mem_gib: Annotated[
        float, typer.Option(min=0, metavar="GIB", help="Host memory over all its nodes, in GiB.")
    ] = 0.0,
    hours: Annotated[float, typer.Option(min=0, metavar="HOURS", help="Its time limit, in hours.")] = 24.0,
    queue_file: Annotated[
        Path | None,
        typer.Option(
            "--queue",
            metavar="FILE",
            help="The queue now: output of squeue --json, or of sacct for PENDING and RUNNING jobs; by default ask "
            "this machine's queue, or run squeue if none is up.",
        ),
    ] = None,
    now: Annotated[
        str, typer.Option(metavar="TIME", help="When FILE was made; by default when it was last changed.")
    ] = "",
    history: HistoryFolder = Path("history"),
    pseudonymise: Key = None,
    as_json: JsonOrCsv = None,
) -> None:
    """Predict the wait of a job submitted now, with a median, an 80 % interval and its causes.

    With too few days to promise 80 %, it prints the range in which the share lies. A partition or QOS that the
    history does not know is refused. A new user, account or application, or more GPUs than any job had, causes a
    warning.
    """
    from berth.history.importing.pending import Queued
    from berth.history.store.pseudonyms import pseudonym
    from berth.waiting import WaitModel
    from berth.waiting.now import questions_now
    from berth.waiting.refit import MODEL_NAME

    model = WaitModel.load(history / MODEL_NAME)
    key = _key(pseudonymise, history)
    named = {
        "virtual_cluster": partition,
        "qos": qos,
        "user": pseudonym(key, "user", user) if key else user,
        "account": pseudonym(key, "account", account) if key else account,
        "application": application,
    }
    warnings = _doubts(history, named, {**named, "user": user, "account": account}, gpus)
    jobs, now_ms = _queue_now(queue_file, now, key)
    asked = Queued(
        job_id="",
        user=named["user"],
        account=named["account"],
        virtual_cluster=partition,
        application=application,
        qos=qos,
        gpu_model="",
        gpus=gpus,
        share_milli=1000,
        cpu_milli=0,
        mem_mib=round(mem_gib * 1024),
        time_limit_ms=round(hours * 3_600_000),
        node_count=1,
        queued_ms=now_ms,
        start_ms=None,
    )
    found = questions_now(history, model, [*jobs, asked], now_ms)
    answer = model.answer(found.values[-1], found.offset)
    held = model.promised(found.days)
    warnings = [*warnings, *model.judgement.doubts]
    result = {**_numbers(answer, held), "days_known": found.days, "warnings": warnings}
    if printed(as_json, [result], result):
        return
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(
        f"median {answer.median_s:,.0f} s; {_cases(held)} from {answer.low_s:,.0f} to {answer.high_s:,.0f} s"
        + _why_no_promise(held, found.days)
        + _lately(model)
    )
    for name, factor in answer.drivers:
        print(f"  {name}: × {factor:.2f}")


@app.command()
def queue(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="Output of squeue --json, or of sacct for PENDING and RUNNING jobs; by default ask this machine's "
            "queue, or run squeue if none is up.",
        ),
    ] = None,
    now: Annotated[
        str, typer.Option(metavar="TIME", help="When the file was made; by default when it was last changed.")
    ] = "",
    history: HistoryFolder = Path("history"),
    pseudonymise: Key = None,
    as_json: JsonOrCsv = None,
) -> None:
    """Predict how much longer each waiting job waits, with an 80 % interval and its causes.

    A job that is held, or waits for another job or a time to come, is listed with that reason and no prediction.
    """
    from berth.waiting import WaitModel
    from berth.waiting.now import questions_now
    from berth.waiting.refit import MODEL_NAME

    model = WaitModel.load(history / MODEL_NAME)
    jobs, now_ms = _queue_now(file, now, _key(pseudonymise, history))
    found = questions_now(history, model, jobs, now_ms)
    held = model.promised(found.days)
    waiting = [(at, job) for at, job in enumerate(jobs) if job.start_ms is None]
    answers = [
        (job, model.answer_waiting(found.values[at], (now_ms - job.queued_ms) / 1000, found.offset))
        for at, job in waiting
        if not job.blocked
    ]
    for doubt in model.judgement.doubts if answers else ():
        print(f"warning: {doubt}", file=sys.stderr)
    blocked = [job for _, job in waiting if job.blocked]
    unknown: dict[str, object] = {
        **dict.fromkeys(("median_s", "low_s", "high_s", "held_share")),
        "drivers": [],
    }
    answered: list[tuple[Queued, dict[str, object]]] = [
        (job, _numbers(answer, held)) for job, answer in answers
    ]
    rows = [
        {
            "job": job.job_id,
            "user": job.user,
            "waited_s": (now_ms - job.queued_ms) / 1000,
            **numbers,
            "blocked": (job.reason or "held") if job.blocked else None,
        }
        for job, numbers in [*answered, *((job, unknown) for job in blocked)]
    ]
    if printed(as_json, rows):
        return
    lines = [(job, _more(answer)) for job, answer in answers]
    lines += [(job, f"cannot start yet ({job.reason or 'held'})") for job in blocked]
    for line in _together(lines):
        print(line)
    if answers:
        print(
            f"{_cases(held)} within these times{_why_no_promise(held, found.days)}".capitalize()
            + _lately(model)
        )
    elif not blocked:
        print("no job waits")


def _more(answer: Answer) -> str:
    times = [duration_text(each) for each in (answer.median_s, answer.low_s, answer.high_s)]
    drivers = ", ".join(f"{name} ×{factor:.2f}" for name, factor in answer.drivers[:3])
    return f"{times[0]} more ({times[1]} to {times[2]})" + (f"; {drivers}" if drivers else "")


def _together(lines: Sequence[tuple[Queued, str]]) -> Iterator[str]:
    """A line for each job; tasks of one array that follow each other and have one answer share it."""
    for (_, text), same in groupby(lines, key=lambda each: (each[0].job_id.partition("_")[0], each[1])):
        ids = [job.job_id for job, _ in same]
        yield f"{ids[0]}{f' to {ids[-1]} ({len(ids):,} tasks)' if len(ids) > 1 else ''}: {text}"


def _queue_now(file: Path | None, now: str, key: bytes) -> tuple[tuple[Queued, ...], int]:
    """The queue and when it was so, in ms: of a file, of this machine's own queue where one is up, or of squeue; with
    pseudonyms by a key."""
    from berth.history.importing.pending import hidden, read_queue, run_squeue

    if file is None:
        try:
            jobs, made_ms = _queue_here() or run_squeue()
        except HistoryError as error:
            raise HistoryError(
                f"{error}; name a file with the queue, as `squeue --json` prints it"
            ) from error
    else:
        jobs = read_queue(file)
        made_ms = round(file.stat().st_mtime * 1000)
    return (hidden(jobs, key) if key else jobs), (moment_ms(now, "--now") if now else made_ms)


def _queue_here() -> tuple[tuple[Queued, ...], int] | None:
    """The jobs of this machine's own queue, and the moment; None where no queue is up."""
    from berth.history.importing.pending import Queued

    try:
        connection = Connection(find_socket())
    except LiveError:
        return None
    with connection:
        jobs = connection.ask({"do": "pending"})["jobs"]
    return tuple(Queued(**job) for job in jobs), time.time_ns() // 1_000_000


def _cases(held: tuple[float, float] | None) -> str:
    """In how many cases an interval holds."""
    if held is None:
        return "in an unknown share of cases"
    least, most = (round(100 * share) for share in held)
    return f"in {least} of 100 cases" if least == most else f"in {least} to {most} of 100 cases"


def _why_no_promise(held: tuple[float, float] | None, days: int) -> str:
    """Why no share of the cases is promised; nothing where one is."""
    from berth.waiting.model import COVERAGE, DAYS_TO_PROMISE

    if held == (COVERAGE, COVERAGE):
        return ""
    known = f"waits of {counted(days, 'day')} are known"
    return f" ({known}; {DAYS_TO_PROMISE} are needed to promise {round(100 * COVERAGE)} of 100)"


def _lately(model: WaitModel) -> str:
    """What intervals held in the last 30 days on which the model was judged; nothing if it was not."""
    if model.judgement.last_month is None:
        return ""
    held, count = model.judgement.last_month
    return f"; in the last 30 days {held:,} of {count:,} waits lay within theirs"


def _numbers(answer: Answer, held: tuple[float, float] | None) -> dict[str, object]:
    return {
        "median_s": answer.median_s,
        "low_s": answer.low_s,
        "high_s": answer.high_s,
        "held_share": held,
        "drivers": [{"feature": name, "factor": factor} for name, factor in answer.drivers],
    }


def _key(path: Path | None, history: Path) -> bytes:
    """The key of a history's pseudonyms, nothing where it has real names; SettingError where they do not fit."""
    from berth.history.store.folder import open_history
    from berth.history.store.pseudonyms import key_mark, read_key

    mark = open_history(history, must_exist=True).index().key_mark or 0
    if path is None:
        if mark:
            raise SettingError(
                f"{history} has pseudonyms; name the key that it was imported with, with --pseudonymise KEYFILE, so "
                "that users and accounts are known in it"
            )
        return b""
    if not path.exists():
        raise SettingError(f"there is no key in {path}")
    key = read_key(path, history)
    if key_mark(key) != mark:
        kept = "has pseudonyms by another key" if mark else "has real names; leave --pseudonymise out"
        raise SettingError(f"{history} {kept}")
    return key


def _doubts(history: Path, named: dict[str, str], shown: dict[str, str], gpus: int) -> list[str]:
    """Why an answer is worth less than it looks; SettingError where the cluster has no such thing.

    `named` are values as the history has them, `shown` as they were given.
    """
    from berth.history.store.folder import open_history
    from berth.history.store.reader import most_gpus, unknown_values

    with open_history(history, must_exist=True).database() as database:
        unknown, most = unknown_values(database, named), most_gpus(database)
    found = []
    for each in unknown:
        has = f"it has {', '.join(each.known)}" if each.known else "it has none"
        has += f" and {each.more:,} more" if each.more else ""
        words = f"the history has no {NAMES[each.column]} '{shown[each.column]}'"
        if each.column in OF_THE_CLUSTER:
            raise SettingError(f"{words}; {has}")
        found.append(f"{words}, so the answer is that of a new one")
    if gpus > most:
        found.append(f"no job of the history had more than {most:,} GPUs; the answer for {gpus:,} is a guess")
    return found
