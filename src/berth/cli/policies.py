"""`berth policies`: what there is to place with."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def policies(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the orders, the placements and the policies, a line each."""
    from rich.console import Console
    from rich.table import Table

    from berth.policies import ORDERS, PLACEMENTS, POLICIES, SCHEMES, WRAPPERS, describe

    groups = {
        "order": ORDERS,
        "placement": PLACEMENTS,
        "scheme": SCHEMES,
        "wrapper": WRAPPERS,
        "policy": POLICIES,
    }
    if as_json:
        print(
            json.dumps(
                [
                    {"name": name, "kind": kind, "summary": describe(name)}
                    for kind, group in groups.items()
                    for name in group
                ]
            )
        )
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "kind", "what it does"):
        table.add_column(heading, no_wrap=heading != "what it does")
    for kind, group in groups.items():
        for name in group:
            table.add_row(name, kind, describe(name))
    console = Console()
    console.print(table)
    console.print(
        "\nORDER+PLACEMENT composes the two, such as sjf+best-fit; a scheme may stand before them: easy+sjf+fgd;"
        " a placement alone goes in fifo order,"
        " an order alone places by first-fit.\nmy.module:thing names your own; see docs/policies.md.",
        highlight=False,
    )
