"""`berth predict-wait`: how long a job will wait, and how well that can be told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from berth.cli.importing import AsJson, HistoryFolder

if TYPE_CHECKING:
    from berth.waiting import Answer, Questions

app = typer.Typer(help="Predict how long a job will wait, from the history.", no_args_is_help=True)

MODEL_NAME = "waiting.json"
EVALUATION_NAME = "waiting-evaluation.json"

NAMES: Final = {
    "virtual_cluster": "partition",
    "qos": "QOS",
    "gpu_model": "GPU model",
    "account": "account",
    "user": "user",
    "application": "application",
}
"""What the options name, by the column of a record."""
OF_THE_CLUSTER: Final = ("virtual_cluster", "qos", "gpu_model")
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
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE.parquet]", help="Polled jobs, or berth's records; by default the history."
        ),
    ] = None,
    history: HistoryFolder = Path("history"),
    as_json: AsJson = False,
) -> None:
    """Train on the first four fifths by time and say how good the answers to the last fifth are."""
    from berth.waiting import evaluate as judge

    found = judge(questions_of(file, history))
    if file is None:
        found.save(history / EVALUATION_NAME)  # the report shows it
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    print(
        f"trained on {found.trained:,}, tested on {found.tested:,}\n"
        f"mean squared error of log10(1 + s): {found.mse_log10:.4f} (a constant: {found.baseline_mse_log10:.4f})\n"
        f"80 % interval holds {found.coverage_80 * 100:.1f} %; median error {found.median_abs_error_s:,.0f} s"
    )


@app.command()
def train(history: HistoryFolder = Path("history")) -> None:
    """Learn from the history, and keep the model in it."""
    from berth.waiting import train as learn

    questions = questions_of(None, history)
    learn(questions).save(history / MODEL_NAME)
    print(f"learned from {len(questions):,} waits; wrote {history / MODEL_NAME}")


@app.command()
def request(
    user: Annotated[str, typer.Option(help="Whose job it is.")] = "",
    account: Annotated[str, typer.Option(help="Its account.")] = "",
    partition: Annotated[str, typer.Option(help="Its partition.")] = "",
    qos: Annotated[str, typer.Option(help="Its quality of service.")] = "",
    application: Annotated[str, typer.Option(help="Its application.")] = "",
    gpu_model: Annotated[str, typer.Option(help="The GPU model it asks for.")] = "",
    gpus: Annotated[int, typer.Option(min=0, help="GPUs over all its nodes.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 1,
    cpus: Annotated[int, typer.Option(min=0, help="CPU cores over all its nodes.")] = 1,
    mem_gib: Annotated[float, typer.Option(min=0, help="Memory over all its nodes.")] = 0.0,
    hours: Annotated[float, typer.Option(min=0, help="Its time limit.")] = 24.0,
    history: HistoryFolder = Path("history"),
    pseudonymise: Key = None,
    as_json: AsJson = False,
) -> None:
    """Answer for a job submitted now, with a median, an 80 % interval and what drives the wait.

    A partition, QOS or GPU model that the history does not know is refused; a new user, account or application, and
    more GPUs than any job had, are warned of.
    """
    from berth.history.store.pseudonyms import pseudonym
    from berth.waiting import WaitModel

    model = WaitModel.load(history / MODEL_NAME)
    key = _key(pseudonymise, history)
    named = {
        "virtual_cluster": partition,
        "qos": qos,
        "gpu_model": gpu_model,
        "user": pseudonym(key, "user", user) if key else user,
        "account": pseudonym(key, "account", account) if key else account,
        "application": application,
    }
    warnings = _doubts(history, named, {**named, "user": user, "account": account}, gpus)
    asked = {
        **named,
        **{"gpus": gpus, "share_milli": 1000, "node_count": nodes},
        **{
            "cpu_milli": cpus * 1000,
            "mem_mib": round(mem_gib * 1024),
            "time_limit_ms": round(hours * 3_600_000),
        },
    }
    questions = questions_of(None, history, asked)
    answer = model.answer(model.values_of(dict(zip(questions.names, questions.values.T, strict=True)))[-1])
    if as_json:
        print(json.dumps({**_numbers(answer), "warnings": warnings}, ensure_ascii=False))
        return
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(
        f"median {answer.median_s:,.0f} s; in 80 of 100 cases from {answer.low_s:,.0f} to {answer.high_s:,.0f} s"
    )
    for name, factor in answer.drivers:
        print(f"  {name}: × {factor:.2f}")


@app.command()
def queue(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="What squeue --json printed, or sacct of jobs that are PENDING or RUNNING; by default squeue is run.",
        ),
    ] = None,
    now: Annotated[
        str, typer.Option(metavar="TIME", help="When the file was made; by default when it was last changed.")
    ] = "",
    history: HistoryFolder = Path("history"),
    pseudonymise: Key = None,
    as_json: AsJson = False,
) -> None:
    """Answer for every job that waits now: how much longer, with an 80 % interval and what drives it."""
    from berth.cli.importing import moment_ms
    from berth.history.importing.pending import hidden, read_queue, run_squeue
    from berth.history.store.folder import open_history
    from berth.statistics.accounting import duration_text
    from berth.waiting import WaitModel
    from berth.waiting.questions import queue_features

    model = WaitModel.load(history / MODEL_NAME)
    key = _key(pseudonymise, history)
    jobs, made_ms = run_squeue() if file is None else (read_queue(file), round(file.stat().st_mtime * 1000))
    if key:
        jobs = hidden(jobs, key)
    now_ms = moment_ms(now) if now else made_ms
    with open_history(history, must_exist=True).database() as database:
        features = queue_features(database, jobs, now_ms)
    values = model.values_of(features)
    answers = [
        (job, model.answer_waiting(values[at], (now_ms - job.queued_ms) / 1000))
        for at, job in enumerate(jobs)
        if job.start_ms is None
    ]
    if as_json:
        print(
            json.dumps(
                [
                    {
                        "job": job.job_id,
                        "user": job.user,
                        "waited_s": (now_ms - job.queued_ms) / 1000,
                        **_numbers(answer),
                    }
                    for job, answer in answers
                ],
                ensure_ascii=False,
            )
        )
        return
    for job, answer in answers:
        times = [duration_text(each) for each in (answer.median_s, answer.low_s, answer.high_s)]
        drivers = ", ".join(f"{name} ×{factor:.2f}" for name, factor in answer.drivers[:3])
        print(
            f"{job.job_id}: {times[0]} more ({times[1]} to {times[2]})" + (f"; {drivers}" if drivers else "")
        )
    if not answers:
        print("nobody waits")


def _numbers(answer: Answer) -> dict[str, object]:
    """An answer as `--json` prints it."""
    return {
        "median_s": answer.median_s,
        "low_s": answer.low_s,
        "high_s": answer.high_s,
        "drivers": [{"feature": name, "factor": factor} for name, factor in answer.drivers],
    }


def _key(path: Path | None, history: Path) -> bytes:
    """The key of a history's pseudonyms, nothing where it has real names; SettingError where they do not fit."""
    from berth.errors import SettingError
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
        kept = "has pseudonyms by another key" if mark else "has real names; leave --pseudonymise away"
        raise SettingError(f"{history} {kept}")
    return key


def _doubts(history: Path, named: dict[str, str], shown: dict[str, str], gpus: int) -> list[str]:
    """Why an answer is worth less than it looks; SettingError where the cluster has no such thing.

    `named` are values as the history has them, `shown` as they were given.
    """
    from berth.errors import SettingError
    from berth.history.store.folder import open_history
    from berth.history.store.known_values import most_gpus, unknown_values

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
        found.append(
            f"no job of the history had {gpus:,} GPUs, but {most:,} at the most; the answer is a guess"
        )
    return found


def questions_of(file: Path | None, history: Path, asked: dict[str, object] | None = None) -> Questions:
    """The questions of a table or of the history."""
    import duckdb
    import numpy as np

    from berth.errors import HistoryError
    from berth.history.store.database import first_line
    from berth.history.store.folder import open_history
    from berth.waiting import Questions
    from berth.waiting.questions import history_features, polled_features

    if file is None:
        with open_history(history, must_exist=True).database() as database:
            features, moments, waits = history_features(database, asked)
    else:
        with duckdb.connect() as database:
            try:
                columns = {row[0] for row in database.from_parquet(str(file)).description}
            except duckdb.Error as error:
                raise HistoryError(f"{file} cannot be read: {first_line(error)}") from error
            if "queued_ms" in columns and "gpus" in columns:
                database.from_parquet(str(file)).create_view("records")
                features, moments, waits = history_features(database)
            else:
                features, moments, waits = polled_features(file)
    names = tuple(sorted(features))
    return Questions(names, np.column_stack([features[name] for name in names]), moments, waits)
