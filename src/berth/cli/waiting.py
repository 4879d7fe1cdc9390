"""`berth predict-wait`: how long a job will wait, and how well that can be told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.importing import AsJson, HistoryFolder

if TYPE_CHECKING:
    from berth.waiting import Questions

app = typer.Typer(help="Predict how long a job will wait, from the history.", no_args_is_help=True)

MODEL_NAME = "waiting.json"
EVALUATION_NAME = "waiting-evaluation.json"


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
    as_json: AsJson = False,
) -> None:
    """Answer for a job submitted now, with a median, an 80 % interval and what drives the wait."""
    from berth.waiting import WaitModel

    model = WaitModel.load(history / MODEL_NAME)
    asked = {
        **{
            "user": user,
            "account": account,
            "virtual_cluster": partition,
            "application": application,
            "qos": qos,
        },
        **{"gpu_model": gpu_model, "gpus": gpus, "share_milli": 1000, "node_count": nodes},
        **{
            "cpu_milli": cpus * 1000,
            "mem_mib": round(mem_gib * 1024),
            "time_limit_ms": round(hours * 3_600_000),
        },
    }
    questions = questions_of(None, history, asked)
    answer = model.answer(model.values_of(dict(zip(questions.names, questions.values.T, strict=True)))[-1])
    if as_json:
        drivers = [{"feature": name, "factor": factor} for name, factor in answer.drivers]
        print(
            json.dumps(
                {
                    "median_s": answer.median_s,
                    "low_s": answer.low_s,
                    "high_s": answer.high_s,
                    "drivers": drivers,
                }
            )
        )
        return
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
    as_json: AsJson = False,
) -> None:
    """Answer for every job that waits now: how much longer, with an 80 % interval and what drives it."""
    from berth.cli.importing import moment_ms
    from berth.history.folder import open_history
    from berth.history.pending import read_queue, run_squeue
    from berth.history.questions import queue_features
    from berth.statistics.accounting import duration_text
    from berth.waiting import WaitModel

    model = WaitModel.load(history / MODEL_NAME)
    jobs, made_ms = run_squeue() if file is None else (read_queue(file), round(file.stat().st_mtime * 1000))
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
                        "median_s": answer.median_s,
                        "low_s": answer.low_s,
                        "high_s": answer.high_s,
                        "drivers": [{"feature": name, "factor": factor} for name, factor in answer.drivers],
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
        print(f"{job.job_id}: {times[0]} more ({times[1]} to {times[2]}); {drivers}")
    if not answers:
        print("nobody waits")


def questions_of(file: Path | None, history: Path, asked: dict[str, object] | None = None) -> Questions:
    """The questions of a table or of the history."""
    import duckdb
    import numpy as np

    from berth.errors import HistoryError
    from berth.history.folder import open_history
    from berth.history.questions import history_features, polled_features
    from berth.waiting import Questions

    if file is None:
        with open_history(history, must_exist=True).database() as database:
            features, moments, waits = history_features(database, asked)
    else:
        with duckdb.connect() as database:
            try:
                columns = {row[0] for row in database.from_parquet(str(file)).description}
            except duckdb.Error as error:
                raise HistoryError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error
            if "queued_ms" in columns and "gpus" in columns:
                database.from_parquet(str(file)).create_view("records")
                features, moments, waits = history_features(database)
            else:
                features, moments, waits = polled_features(file)
    names = tuple(sorted(features))
    return Questions(names, np.column_stack([features[name] for name in names]), moments, waits)
