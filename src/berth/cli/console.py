"""`berth console`: the live cluster, its history and "what if", in a browser."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from berth.cli.comma_separated import names_of
from berth.cli.output import JsonOrCsv, printed
from berth.console.audit import Audit
from berth.console.certificate import fingerprint, is_loopback, own_certificate
from berth.console.roles import Role
from berth.console.settings import Settings, parse_listen
from berth.console.tokens import Tokens
from berth.counts import counted
from berth.errors import SettingError
from berth.live.local.places import Places, find_socket, queue_folder, state_folder
from berth.live.local.tables import printable
from berth.partition import mem_mib

app = typer.Typer(
    help="Show the live cluster, its history and 'what if' in a browser.", invoke_without_command=True
)
State = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="Folder of tokens, audit log and kept what-ifs."),
]
MOST_DAYS = 3650
"""A token that never ends is a mistake more often than a wish, and `inf` would not be JSON."""


@app.callback()
def console(
    context: typer.Context,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 is a free port.")
    ] = "127.0.0.1:8787",
    state: State = None,
    history: Annotated[Path | None, typer.Option(metavar="DIR", help="History folder to show.")] = None,
    slurm_state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="State folder of `berth slurm run`.")
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Show the Kubernetes cluster of this file."),
    ] = None,
    actions: Annotated[
        bool, typer.Option("--actions", help="Allow changes: hold, release and cancel jobs, drain GPUs.")
    ] = False,
    proxies: Annotated[
        str,
        typer.Option(metavar="ADDRESSES", help="Comma-separated addresses of trusted reverse proxies."),
    ] = "",
    proxy_header: Annotated[
        str, typer.Option(metavar="NAME", help="Header in which the proxy names the user.")
    ] = "X-Forwarded-User",
    operators: Annotated[
        str, typer.Option(metavar="USERS", help="Comma-separated users who are operators.")
    ] = "",
    certificate: Annotated[
        Path | None, typer.Option("--cert", metavar="FILE", help="TLS certificate; needs --key.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Private key of the certificate.")] = None,
    what_if_processes: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of replays at a time.")
    ] = 1,
    what_if_mem: Annotated[
        str, typer.Option(metavar="SIZE", help="Maximum memory of one replay, such as 4G.")
    ] = "4G",
) -> None:
    """Show the live cluster, its history and 'what if' in a browser."""
    if context.invoked_subcommand is not None:
        return
    from berth.console.identity import Doorkeeper
    from berth.console.server import listening, serve

    if (certificate is None) != (key is None):
        raise SettingError("--cert and --key belong together; one of them is missing")
    for name, path in (("--cert", certificate), ("--key", key), ("--kubeconfig", kubeconfig)):
        if path is not None and not path.is_file():
            raise SettingError(f"{name} {path}: no such file")
    listened = parse_listen(listen)
    beyond = not is_loopback(listened.host)
    bare = beyond and not (certificate or proxies)
    local = Path(find_socket())
    folder = Path(history or os.environ.get("BERTH_HISTORY") or Places(queue_folder()).history)
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file; name the folder of a history with --history")
    settings = Settings(
        state=_state(state),
        listen=listened,
        history=folder,
        local_socket=local,
        slurm_state=slurm_state,
        kubeconfig=kubeconfig,
        actions=actions,
        proxies=_addresses(proxies),
        proxy_header=proxy_header,
        operators=frozenset(names_of(operators)),
        certificate=certificate,
        key=key,
        what_if_processes=what_if_processes,
        what_if_mem_mib=mem_mib(what_if_mem, "--what-if-mem"),
    )
    with listening(listened) as bound:
        own = own_certificate(settings.state, listened.host) if bare else None
        if own is not None:
            settings = replace(settings, certificate=own[0], key=own[1])
        elif bare:
            print(
                "berth: warning: others on the network can read the traffic between browsers and this console, tokens"
                " too; name a certificate (--cert, --key), or listen on 127.0.0.1 and reach it by ssh -L",
                file=sys.stderr,
            )
        tokens = Doorkeeper(settings).tokens
        token = "" if settings.proxies else tokens.add(_user(), Role.OPERATOR, days=1)

        def say(address: str) -> None:
            if token and beyond:  # an address is kept in histories and logs
                print(f"{address}\ntoken: {token}", flush=True)
            else:
                print(f"{address}/login?token={token}" if token else address, flush=True)
            if own is not None:
                print(
                    f"a browser asks whether to trust this console's own certificate, SHA-256 {fingerprint(own[0])}",
                    file=sys.stderr,
                )
            print("the console runs until Ctrl-C", file=sys.stderr)

        serve(settings, bound, say)


@app.command()
def token(
    user: Annotated[str, typer.Argument(metavar="USER", help="Name of the person or program.")],
    role: Annotated[str, typer.Option(help="viewer, user or operator.")] = "user",
    days: Annotated[float, typer.Option(help="Days until the token expires.")] = 30.0,
    state: State = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke all tokens of the user.")] = False,
) -> None:
    """Create a token for a person or program, or revoke all of theirs."""
    tokens = Tokens(_state(state) / "tokens.json")
    if revoke:
        print(f"revoked {counted(tokens.remove(user), 'token')} of {user}")
        return
    if role not in list(Role):
        raise SettingError(f"--role {role}; expected {', '.join(Role)}")
    if not 0 < days <= MOST_DAYS:
        raise SettingError(f"--days {days:g}; expected more than 0 and at most {MOST_DAYS:,}")
    if not user.strip() or not user.isprintable():  # '' is the user of jobs whose user is not known
        raise SettingError(f"USER {user!r}; expected a printable name")
    if user in ("add", "create", "new"):
        raise SettingError(
            f"USER {user!r}; expected the name of a person or program, as in: berth console token ann"
        )
    print(tokens.add(user, Role(role), days))


@app.command()
def audit(
    last: Annotated[int, typer.Option(min=1, help="The last N lines.")] = 100,
    state: State = None,
    as_json: JsonOrCsv = None,
) -> None:
    """Print who changed what through the console."""
    from berth.console.formats import moment

    lines = Audit(_state(state) / "audit.jsonl").last(last)
    if printed(as_json, [asdict(line) for line in lines]):
        return
    for line in lines:
        why = f": {line.why}" if line.why else ""
        print(
            printable(
                f"{moment(line.at_ms)}  {line.user} ({line.role}, {line.via})  {line.command}  {line.result}{why}"
            )
        )
    if not lines:
        print("nothing was changed through the console")


def _state(state: Path | None) -> Path:
    return state or Path(state_folder()) / "console"


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _addresses(text: str) -> frozenset[str]:
    """Check that these are IP addresses: a host name or a network would match no connection."""
    from ipaddress import ip_address

    try:
        return frozenset(str(ip_address(each)) for each in names_of(text))
    except ValueError as error:
        raise SettingError(f"--proxies {text}: {error}; expected addresses, such as 127.0.0.1,::1") from error
