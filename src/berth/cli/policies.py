"""`berth policies`: what there is to place with."""

from __future__ import annotations

from berth.cli.output import JsonOrCsv, console, plain_table, printed


def policies(
    as_json: JsonOrCsv = None,
) -> None:
    """List orders, placements and policies, one per line."""
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
    if printed(as_json, rows):
        return
    screen = console()
    screen.print(plain_table(("name", "kind", "what it does"), (tuple(row.values()) for row in rows), left=3))
    screen.print(
        "\nORDER+PLACEMENT composes the two, such as sjf+best-fit; a scheme may stand before them: easy+sjf+fgd;"
        " a placement alone goes in fifo order,"
        " an order alone places by first-fit.\nmy.module:thing names your own; see docs/policies.md."
    )
