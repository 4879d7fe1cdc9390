"""Write docs/reference/ from the code, and docs/gallery.md from the examples.

A test fails where one of them is out of date.

Run it as `python docs/make_reference.py`.
"""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path
from typing import Any

from berth.cli.app import commands_of, load, written
from berth.cli.commands import COMMANDS
from berth.policies import ORDERS, PLACEMENTS, SCHEMES, WRAPPERS, policies_found
from berth.policies import _load as load_policy
from berth.statistics import METRICS, REAL_USE
from berth.traces.formats import FORMATS
from berth.traces.synthetic import WORKLOADS, defaults_of

DOCS = Path(__file__).parent
FOLDER = DOCS / "reference"
GALLERY = DOCS / "gallery.md"
EXAMPLES = DOCS.parent / "examples"
MANY = 3
"""Commands of a page that must have an option alike for it to be said once."""
GROUPS = {
    "one-machine": (
        "Commands of one machine's queue",
        "top submit jupyter mcp queue logs wait cancel hold release suspend resume edit requeue why policy drain"
        " undrain up config down status",
    ),
    "partitions": ("Commands that limit programs on a GPU", "run partition"),
    "slurm": ("Commands for Slurm", "slurm"),
    "kubernetes": ("Commands for Kubernetes", "k8s"),
    "simulator": (
        "Commands that simulate and train",
        "simulate compare sweep size backtest policies experiment trace interference train",
    ),
    "history": (
        "Commands of the history",
        "import history stats job report cost digest applications profile predict-wait advise sample",
    ),
    "site": ("The console and the check of a machine", "console doctor"),
}
"""Of each page of commands, its title and the commands."""
PICTURES = {
    "backfilling": (
        "waiting_cdf",
        "Distribution of waits: with EASY backfilling more than 80 % of the jobs start at once, in a strict queue "
        "about 40 %",
    ),
    "card_speeds": ("completion_cdf", "Distribution of completion times under the four policies"),
    "compare_policies": (
        "allocation_over_time",
        "GPU allocation over time: the running mean of each policy, shaded from the lowest seed to the highest",
    ),
    "elastic": ("allocation_over_time", "GPU allocation over time under fifo, easy and elastic"),
    "pipelines": ("queue_over_time", "Jobs waiting over time under fifo, sjf and deadline-first"),
}
"""Of an example, its figure in `berth.experiments.compare.plots` and what is seen; `make_pictures.py` draws them."""


def reference() -> dict[Path, str]:
    """Each page of the reference."""
    grouped = {name for _, names in GROUPS.values() for name in names.split()}
    if grouped != set(COMMANDS):
        raise SystemExit(f"GROUPS and COMMANDS differ in {', '.join(sorted(grouped ^ set(COMMANDS)))}")
    pages = {
        name: [f"# {title}", *_commands([each for each in COMMANDS if each in names.split()])]
        for name, (title, names) in GROUPS.items()
    }
    pages["policies"] = ["# Policies, orders and placements by name", *_policies()]
    pages["data"] = ["# Trace formats and metrics by name", *_formats(), *_metrics()]
    listed = "\n".join(pages)
    index = [
        "# Reference",
        "These pages are made from the code by `docs/make_reference.py`; a test fails where they differ.",
        "A command exits with 0, with 2 if it refuses, and with 130 after Ctrl-C. `berth wait`, `berth submit --wait`"
        " and `berth run` exit with the status of the job. Errors and notes go to standard error."
        " `berth --host user@machine …` runs a command there. `berth --install-completion` completes words.",
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```",
    ]
    return {
        FOLDER / f"{name}.md": "\n\n".join(parts) + "\n" for name, parts in {"index": index, **pages}.items()
    }


def gallery() -> str:
    """The page of worked examples, each with what it prints."""
    parts = [
        "# Gallery",
        "These are the programs in `examples/`, each with its output; a test runs them all. To run one:"
        " `.venv/bin/python examples/NAME.py`.",
    ]
    for script in sorted(EXAMPLES.glob("*.py")):
        first, _, rest = script.read_text("utf-8").partition("\n")
        title = script.stem.replace("_", " ").capitalize()
        printed = script.with_suffix(".out").read_text("utf-8").rstrip("\n")
        code = rest.strip("\n")
        parts += [f"## {title}", first.strip('"'), f"```python\n{code}\n```", f"```text\n{printed}\n```"]
        if script.stem in PICTURES:
            file = picture(script.stem).relative_to(GALLERY.parent)
            parts.append(f"![{PICTURES[script.stem][1]}]({file})")
    return "\n\n".join(parts) + "\n"


def picture(example: str) -> Path:
    """The file of an example's picture."""
    return GALLERY.parent / "pictures" / f"{example}.svg"


def _commands(names: list[str]) -> list[str]:
    """Commands with their options; a row that three of them have stands once, before them all."""
    commands = [each for name in names for each in commands_of(load(name), f"berth {name}")]
    rows = {name: [_row(each) for each in command.params] for name, command in commands}
    counts = Counter(row for each in rows.values() for row in each)
    head = ["| option | default | what |", "|---|---|---|"]
    found = []
    if common := [row for row, count in counts.items() if count >= MANY]:
        found += ["## Options of several commands", "\n".join([*head, *map("".join, common)])]
    for name, command in commands:
        found += [f"## `{name}`", _text(command.help)]
        own = [row for row in rows[name] if counts[row] < MANY]
        if own:
            found.append("\n".join([*head, *map("".join, own)]))
        if also := [option.strip("| ") for option, _ in rows[name] if counts[option, _] >= MANY]:
            found.append(f"{'Also' if own else 'Options'}: {', '.join(also)}.")
    return found


def _row(parameter: Any) -> tuple[str, str]:
    """An option as the first cell of a row of a table, and the rest of the row."""
    said = _text(getattr(parameter, "help", "") or "").replace("|", "\\|").replace("\n", " ")
    default, said_default = parameter.default, getattr(parameter, "show_default", None)
    shown = "" if default in (None, "", ()) or default is False or parameter.required else f"`{default}`"
    shown = said_default if isinstance(said_default, str) else shown
    return f"| `{written(parameter).replace('|', chr(92) + '|')}`", f" | {shown} | {said} |"


def _policies() -> list[str]:
    found = []
    for title, group in (
        ("Orders", ORDERS),
        ("Placements", PLACEMENTS),
        ("Schemes", SCHEMES),
        ("Wrappers", WRAPPERS),
        ("Policies", policies_found()),
    ):
        if group:
            found.append(f"## {title}")
        for name, path in group.items():
            found.append(f"**`{name}`** — {_text(inspect.getdoc(load_policy(path)))}")
    return found


def _formats() -> list[str]:
    rows = [f"| `{entry.name}` | {entry.summary} | {', '.join(entry.header)} |" for entry in FORMATS.values()]
    table = ["| format | what | columns that it is known by |", "|---|---|---|", *rows]
    made = [
        f"| `synthetic:{name}` | {', '.join(f'{key}={value}' for key, value in defaults_of(name).items())} |"
        for name in WORKLOADS
    ]
    return ["## Trace formats", "\n".join(table), "\n".join(["| workload | settings |", "|---|---|", *made])]


def _metrics() -> list[str]:
    rows = [
        f"| {metric.name} | {metric.unit or '–'} | {metric.definition} |" for metric in (*REAL_USE, *METRICS)
    ]
    return ["## Metrics", "\n".join(["| metric | unit | what |", "|---|---|---|", *rows])]


def _text(text: str | None) -> str:
    return inspect.cleandoc(text or "").strip()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page, text in {**reference(), GALLERY: gallery()}.items():
        page.write_text(text, "utf-8")
        print(f"wrote {page}")
