"""``protofed deploy``: commands for operators of a real federation. Heavy imports happen inside commands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from protofed.cli.common import Commands
from protofed.errors import ConfigError

deploy = typer.Typer(cls=Commands, no_args_is_help=True, help="Help for operators of a federation over Flower.")
console = Console()

COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red", "skipped": "dim"}


@deploy.command()
def keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to create; new or empty.")],
    nodes: Annotated[
        int, typer.Option(min=0, max=10_000, help="Number of SuperNodes; 0 where each site makes its own key.")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host by which nodes reach the SuperLink; may be repeated (default: 127.0.0.1 and localhost)."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Validity of the certificates in days.")] = 365,
    client: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Name of a node's client, in the order of the nodes, for the roster; repeated."
        ),
    ] = None,
    federation: Annotated[str, typer.Option(help="Name of the federation.")] = "trial",
) -> None:
    """Make certificates and node keys: TLS, and SuperNodes that authenticate themselves.

    With --nodes 0, those of the authority and the server only; see `request` and `approve` for the sites.
    """
    from protofed_flower.keys import HOSTS, create_keys

    hosts = host or list(HOSTS)
    create_keys(directory, nodes, hosts, days, client or (), federation)
    which = "node1, node1.pub" if nodes == 1 else f"node1 … node{nodes}, each with .pub"
    for files, use in (
        ("ca.crt", "for all: SuperLink (--ssl-ca-certfile), nodes and users (--root-certificates)"),
        ("server.pem, server.key", f"for the SuperLink, reached as {', '.join(hosts)}; valid for {days} days"),
        (which, "a node's private key, for its operator alone; `flwr supernode register` takes the .pub"),
        ("roster.json", f"for nodes, with secure aggregation: the clients and their keys; valid for {days} days"),
        ("ca.key", "signs further certificates and rosters: keep it away from all machines of the federation"),
    ):
        if nodes or files != which:
            _say(f"{directory / files}: {use}")
    note = "For trials only: this directory holds the keys of all nodes. In production, each node makes its own."
    if nodes:
        console.print(Text(note, style="yellow"), soft_wrap=True)


DAYS = Annotated[
    int | None,
    typer.Option(min=1, max=36_500, show_default="as long as ca.crt", help="Validity of what is signed, in days."),
]
KEYS = Annotated[Path, typer.Argument(metavar="KEYS", help="The authority's directory, as `keys` made it.")]
SITE = Annotated[str, typer.Option(help="Name of the site, which is that of its client.")]
UNREGISTER = "flwr supernode unregister NODE-ID"


@deploy.command(no_args_is_help=True)
def request(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to create; new or empty.")],
    site: SITE,
) -> None:
    """Make a node's private key, at the node, and the request that goes to the authority."""
    from protofed_flower.keys import create_request

    print_ = create_request(directory, site)
    _say(f"{directory / site}: the node's private key, which stays here")
    _say(f"{directory / site}.request: for the authority (`protofed deploy approve`)")
    _say(f"{print_}: the key's fingerprint; read it to the authority over another channel, e.g. by telephone")


@deploy.command(no_args_is_help=True)
def approve(
    keys: KEYS,
    requests: Annotated[list[Path] | None, typer.Argument(metavar="REQUEST...", help="Requests of sites.")] = None,
    days: DAYS = None,
    renew: Annotated[bool, typer.Option(help="Replace the keys of sites that are in the roster.")] = False,
) -> None:
    """Add sites to the federation: sign their certificates, and the roster anew.

    Without requests, the roster and the server's certificate are signed for another period.
    """
    from protofed_flower.authority import ROSTER, SERVER, SITES
    from protofed_flower.authority import approve as approve_requests

    approved, end = approve_requests(keys, requests or (), days, renew)
    for name, print_, replaced in approved:
        public = keys / SITES / f"{name}.pub"
        _say(f"{name}: {print_}: hand on nothing before {name} has read you this fingerprint over another channel")
        _say(f"{public}: for the server: flwr supernode register {shlex.quote(str(public))}")
        _say(f"{public.with_suffix('.crt')}: for {name}, beside its key")
        if replaced:
            _say(f"{name}: the key {replaced} is replaced; at the server: {UNREGISTER} ({_NUMBER})")
    if not approved and (keys / SERVER).exists():
        _say(f"{keys / SERVER}: for the SuperLink, anew; its key stays")
    _say(f"{keys / ROSTER}: for all nodes and the server (roster=); valid until {end:%Y-%m-%d}")


@deploy.command(no_args_is_help=True)
def revoke(
    keys: KEYS,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the site.")],
    days: DAYS = None,
) -> None:
    """Take a site out of the federation: sign the roster without it, and never admit its key again."""
    from protofed_flower.authority import REVOKED, ROSTER
    from protofed_flower.authority import revoke as revoke_site

    print_ = revoke_site(keys, name, days)
    _say(f"{name}: the key {print_} is revoked, as {keys / REVOKED} records")
    _say(f"at the server: {UNREGISTER} ({_NUMBER})")
    _say(f"{keys / ROSTER}: for all nodes and the server (roster=), which know {name} until they have it")


_NUMBER = "the number that `flwr supernode register` printed, and the node's log states as SuperNode ID"


@deploy.command(no_args_is_help=True)
def kit(
    keys: KEYS,
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="By which nodes reach the SuperLink.")],
    site: Annotated[str | None, typer.Option(metavar="NAME", help="The site whose archive it is.")] = None,
    server: Annotated[bool, typer.Option("--server", help="Write the archive of the server.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="New file (default: NAME.tar.gz).")] = None,
) -> None:
    """Write the archive of a site or of the server: settings, certificates, service, container, and a README."""
    from protofed_flower.kit import create_kit

    if server == (site is not None):
        raise ConfigError("give either --site NAME, for the archive of a node, or --server, for that of the server")
    out = out or Path(f"{site or 'server'}.tar.gz")
    create_kit(keys, site, superlink, out)
    _say(f"{out}: for the administrator of {site or 'the server'}, who begins with README.txt; it holds no secret")


@deploy.command()
def app(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to create; new or empty.")],
) -> None:
    """Write the Flower app that `flwr run DIR` starts: a single file, the only one that is sent to nodes."""
    from protofed_flower.app import create_app

    settings, _ = create_app(directory)
    _say(f"{settings}: the app, with the defaults of a run")


@deploy.command(no_args_is_help=True)
def check(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [NAME=VALUE]...",
            help="The experiment, as in `protofed run` (default with NAME=VALUE: quickstart); its model is tested.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The node's node.toml, in place of options left out.")] = None,
    client_dir: Annotated[Path | None, typer.Option(help="One client's folder: train, test, client.toml.")] = None,
    classes: Annotated[str, typer.Option(help="All classes of the federation in order, separated by commas.")] = "",
    state_dir: Annotated[Path | None, typer.Option(help="Where the node keeps its model between rounds.")] = None,
    superlink: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The SuperLink to reach.")] = None,
    root_certificates: Annotated[Path | None, typer.Option(help="The SuperLink's ca.crt.")] = None,
    key: Annotated[Path | None, typer.Option(help="This node's private key.")] = None,
    roster: Annotated[Path | None, typer.Option(help="The signed list of clients, for secure aggregation.")] = None,
    authority: Annotated[Path | None, typer.Option(help="Certificate of the authority that signed it.")] = None,
) -> None:
    """Check a node before the first round: one line per check, exit status 1 for a problem."""
    from protofed_flower.check import CheckRequest, check_node

    items = list(arguments or [])
    recipe = (items.pop(0) if "=" not in items[0] else "quickstart") if items else None
    names = [name.strip() for name in classes.split(",") if name.strip()]
    request = CheckRequest(
        client_dir, names, config, recipe, items, state_dir, superlink, root_certificates, key, roster, authority
    )
    problems = 0
    for finding in check_node(request):
        state = Text(f"{finding.state:<8}", style=COLOURS[finding.state])
        console.print(Text.assemble(state, f" {finding.name:<17}  {finding.text}"), soft_wrap=True)
        problems += finding.state == "problem"
    raise typer.Exit(1 if problems else 0)


@deploy.command(context_settings={"ignore_unknown_options": True}, no_args_is_help=True, add_help_option=False)
def node(
    arguments: Annotated[
        list[str], typer.Argument(metavar="ARGUMENT...", help="As for Flower's flower-supernode, e.g. --help.")
    ],
) -> None:
    """Start the node of a client: Flower's SuperNode, whose messages do not wait for programs to load."""
    from protofed_flower.forks import start

    start(arguments)


@deploy.command(no_args_is_help=True)
def status(
    place: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run directory at the server, or the state-dir of a node.")
    ],
) -> None:
    """Print how a run or a node fares; exit status 1 if something is wrong."""
    from protofed_flower import status as states

    found = states.status(place)
    for line in found.lines:
        console.print(Text(line), soft_wrap=True)
    console.print(
        Text("healthy" if found.healthy else "not healthy"), style="green" if found.healthy else "bold red"
    )
    raise typer.Exit(0 if found.healthy else 1)


def ledger(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A node's ledger.jsonl, or the node's state-dir.")],
    against: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The server's run directory, or its received.jsonl, to lay beside it."),
    ] = None,
    entries: Annotated[bool, typer.Option(help="Print every message, or only whether the chain holds.")] = True,
) -> None:
    """Print what has left a node, and verify the ledger; exit status 1 if something is wrong."""
    from protofed.text import size
    from protofed_flower import ledger as records

    path = file / records.NAME if file.is_dir() else file
    known: dict[str, records.LedgerEntry] = {}
    problems, total = [], 0
    for number, digest, found in records.read_ledger(path):
        if isinstance(found, str):
            problems.append(f"line {number} {found}")
            continue
        known[digest] = found
        total += found.bytes
        if entries:
            cost = "" if found.epsilon is None else f", ε {found.epsilon:.3g}"
            where = f"run {found.run or '-'} round {found.round}"
            text = (
                f"{found.time} {found.client} {where}: {found.content} ({found.bytes} B{cost}, {found.sha256[:12]})"
            )
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    if against is not None:
        problems += records.compare(known, against / records.RECEIVED if against.is_dir() else against)
    for problem in problems:
        console.print(Text(f"{path}: {problem}", style="bold red"), soft_wrap=True)
    beside = ", and has all that the server received" if against is not None else ""
    verdict = f"{len(problems)} problems" if problems else f"the chain holds{beside}"
    console.print(f"{path}: {len(known)} messages, {size(total)}; {verdict}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if problems else 0)


def _say(line: str) -> None:
    console.print(Text(line), soft_wrap=True)
