"""`berth interference …`: how well co-located jobs' speeds are predicted, and models from one's own measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from berth.cli.importing import AsJson

app = typer.Typer(
    help="How jobs on one GPU slow each other: judge a model by measurements, or fit one.",
    no_args_is_help=True,
)

Alone = Annotated[
    Path,
    typer.Option(
        "--alone",
        metavar="SINGLE.csv",
        help="Applications alone: model, dataset, batchsize, amp, gpu_util, gmem_util (%), gmem (MiB).",
    ),
]
Pairs = Annotated[
    Path,
    typer.Option(
        "--pairs",
        metavar="PAIRS.csv",
        help="Pairs: model1, dataset1, batchsize1, amp1, speed1 (1 = alone), and the same with 2.",
    ),
]


@app.callback()
def _interference() -> None:
    pass


@app.command()
def evaluate(
    alone: Alone,
    pairs: Pairs,
    model: Annotated[
        str, typer.Option(metavar="NAME|FILE.json", help="measured, time-sliced, none, or a fitted one.")
    ] = "measured",
    as_json: AsJson = False,
) -> None:
    """Say how far predicted speeds are from those of measured pairs: the mean absolute error."""
    from berth.interference import make_speeds
    from berth.interference.fitting import evaluate as judge
    from berth.interference.measurements import read_measurements

    found = judge(make_speeds(model), read_measurements(alone, pairs))
    if as_json:
        answer = {
            "mae": round(found.mae, 6),
            "pairs": found.pairs,
            "mae_of_simulated_speeds": round(found.mae_speed, 6),
        }
        print(json.dumps(answer))
        return
    print(
        f"mean absolute error {found.mae:.4f} of the speed alone, over {found.pairs:,} pairs as published\n"
        f"{found.mae_speed:.4f} of the speeds that simulator and policies go by, which are never above alone"
        " (docs/interference.md)"
    )


@app.command()
def fit(
    alone: Alone,
    pairs: Pairs,
    out: Annotated[Path, typer.Argument(metavar="OUT.json", help="The model, for --interference OUT.json.")],
    folds: Annotated[int, typer.Option(min=2, help="Pairs are held out in so many folds to judge it.")] = 5,
    seed: Annotated[int, typer.Option(help="Where random numbers start.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Fit a model to your own measurements, and say how good it is on pairs that it has not seen."""
    from berth.cli.files import write_aside
    from berth.errors import SettingError
    from berth.interference.fitting import evaluate as judge
    from berth.interference.fitting import fit as fitted
    from berth.interference.fitting import folds_of_pairs
    from berth.interference.measurements import read_measurements

    if out.suffix != ".json":
        raise SettingError(f"{out}: expected a name that ends on .json")
    measured = read_measurements(alone, pairs)
    if len(measured) < folds:
        raise SettingError(
            f"{len(measured)} pairs cannot be dealt to {folds} folds; measure more, or give --folds"
        )
    unseen = [
        judge(fitted(measured.of(train), seed), measured.of(test))
        for train, test in folds_of_pairs(measured, seed, folds)
    ]
    mae, mae_speed = (
        sum(of * one.pairs for of, one in zip(errors, unseen, strict=True)) / len(measured)
        for errors in ([one.mae for one in unseen], [one.mae_speed for one in unseen])
    )
    write_aside(out, fitted(measured, seed).to_json())
    if as_json:
        answer = {
            "mae": round(mae, 6),
            "pairs": len(measured),
            "mae_of_simulated_speeds": round(mae_speed, 6),
            "model": str(out),
        }
        print(json.dumps(answer))
        return
    print(
        f"mean absolute error {mae:.4f} on unseen pairs, over {len(measured):,}; {mae_speed:.4f} of the speeds that"
        f" simulator and policies go by; wrote {out}"
    )
