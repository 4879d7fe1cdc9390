"""Write docs/reference.md from the code, and docs/gallery.md from the examples.

A test fails where one of them is out of date.

Run it as `python docs/make_reference.py`.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import berth
from berth import errors
from berth.cli.app import commands_of, load, written
from berth.cli.commands import COMMANDS
from berth.policies import ORDERS, PLACEMENTS, SCHEMES, WRAPPERS, policies_found
from berth.policies import _load as load_policy
from berth.statistics import METRICS, REAL_USE
from berth.traces.formats import FORMATS
from berth.traces.synthetic import WORKLOADS, defaults_of

PAGE = Path(__file__).with_name("reference.md")
GALLERY = PAGE.with_name("gallery.md")
EXAMPLES = PAGE.parents[1] / "examples"
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


def reference() -> str:
    """The whole page."""
    parts = [
        "# Reference",
        "Made from the code by `docs/make_reference.py`; a test fails where the two differ.",
        *_commands(),
        *_policies(),
        *_formats(),
        *_metrics(),
        *_python(),
        *_errors(),
    ]
    return "\n\n".join(parts) + "\n"


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


def _commands() -> list[str]:
    found = ["## Commands"]

    for each in sorted(COMMANDS):
        for name, command in commands_of(load(each), f"berth {each}"):
            found += [f"### `{name}`", _text(command.help)]
            rows = []
            for parameter in command.params:
                said = _text(getattr(parameter, "help", "") or "").replace("|", "\\|").replace("\n", " ")
                default = parameter.default
                shown = (
                    ""
                    if default in (None, "", ()) or default is False or parameter.required
                    else f"`{default}`"
                )
                rows.append(f"| `{written(parameter).replace('|', chr(92) + '|')}` | {shown} | {said} |")
            if rows:
                found.append("\n".join(["| option | default | what |", "|---|---|---|", *rows]))
    return found


def _policies() -> list[str]:
    found = ["## Policies"]
    for title, group in (
        ("Orders", ORDERS),
        ("Placements", PLACEMENTS),
        ("Schemes", SCHEMES),
        ("Wrappers", WRAPPERS),
        ("Policies", policies_found()),
    ):
        if group:
            found.append(f"### {title}")
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
    return ["## Traces", "\n".join(table), "\n".join(["| workload | settings |", "|---|---|", *made])]


def _metrics() -> list[str]:
    rows = [
        f"| {metric.name} | {metric.unit or '–'} | {metric.definition} |" for metric in (*REAL_USE, *METRICS)
    ]
    return ["## Metrics", "\n".join(["| metric | unit | what |", "|---|---|---|", *rows])]


def _python() -> list[str]:
    found = ["## Python"]
    for name in sorted(berth.__all__):
        thing = getattr(berth, name)
        if inspect.isclass(thing):
            found.append(f"### `berth.{name}`")
        elif inspect.isfunction(thing):
            found.append(f"### `berth.{name}`\n\n```python\n{name}{_signature(thing)}\n```")
        else:
            continue
        found.append(_text(inspect.getdoc(thing)))
    return found


def _signature(thing: Any) -> str:
    """The signature, with functions among its defaults by their names alone."""
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", str(inspect.signature(thing)))


def _errors() -> list[str]:
    return ["## Errors", f"```\n{(errors.__doc__ or '').strip()}\n```"]


def _text(text: str | None) -> str:
    return inspect.cleandoc(text or "").strip()


if __name__ == "__main__":
    for page, text in ((PAGE, reference()), (GALLERY, gallery())):
        page.write_text(text, "utf-8")
        print(f"wrote {page}")
