"""`berth policies`: what there is to place with."""

from __future__ import annotations

from berth.cli.output import AsJson, Form, Format, console, printed


def policies(
    as_json: AsJson = False,
    form: Format = Form.TABLE,
) -> None:
    """List orders, placements and policies, one per line."""
    from rich.table import Table

    from berth.policies import ORDERS, PLACEMENTS, SCHEMES, WRAPPERS, describe, policies_found

    groups = {
        "order": ORDERS,
        "placement": PLACEMENTS,
        "scheme": SCHEMES,
        "wrapper": WRAPPERS,
        "policy": policies_found(),
    }
    rows = [
        {"name": name, "kind": kind, "summary": describe(name)}
        for kind, group in groups.items()
        for name in group
    ]
    if printed(form, as_json, rows):
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "kind", "what it does"):
        table.add_column(heading, no_wrap=heading != "what it does")
    for row in rows:
        table.add_row(*row.values())
    screen = console()
    screen.print(table)
    screen.print(
        "\nORDER+PLACEMENT composes the two, such as sjf+best-fit; a scheme may stand before them: easy+sjf+fgd;"
        " a placement alone goes in fifo order,"
        " an order alone places by first-fit.\nmy.module:thing names your own; see docs/policies.md.",
        highlight=False,
    )
