"""``trainmaster lab``: a cloud on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.options import AsJson
from trainmaster.cli.output import print_json, say, show, table, tell
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.lab import LabPlace

app = typer.Typer(
    help="A cloud on this machine, for tests and experiments. Needs root.", no_args_is_help=True
)

_Id = Annotated[str, typer.Argument(metavar="ID", help="Instance id, its beginning, or its address.")]


@app.command()
def up(
    hosts: Annotated[
        int, typer.Option(min=0, help="Boot so many hosts, and list them in lab/hosts.yaml.")
    ] = 0,
    kind: Annotated[str, typer.Option("--type", help="Instance type of these hosts.")] = "m4.xlarge",
    spot: Annotated[bool, typer.Option("--spot", help="These hosts are spot machines.")] = False,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Sizes of hosts as a share of the published ones; default: 16 vCPUs fill this machine."
        ),
    ] = None,
    cpu_scale: Annotated[float | None, typer.Option(help="Only cores per vCPU.")] = None,
    memory_scale: Annotated[float | None, typer.Option(help="Only memory.")] = None,
    network_scale: Annotated[float | None, typer.Option(help="Only the network.")] = None,
    region: Annotated[str, typer.Option(help="Name of the only region.")] = "us-east-1",
    zones: Annotated[int, typer.Option(help="Zones of the region, 1 to 4.")] = 3,
    max_hosts: Annotated[int, typer.Option(min=1, help="Hosts that may run at once.")] = 64,
    stop_grace: Annotated[float, typer.Option(min=0, help="Seconds that a host has to shut down.")] = 3.0,
    cpu_credits: Annotated[
        float,
        typer.Option(
            "--credits",
            min=0,
            metavar="SPEED",
            help="CPU credits of t2 types run out so many times as fast as on EC2; 0: never.",
        ),
    ] = 0.0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the API; 0: any.")] = 0,
    suite: Annotated[
        str, typer.Option(help="Release of Debian or Ubuntu on the hosts; default: this machine's.")
    ] = "",
    mirror: Annotated[str, typer.Option(help="Where its packages are from.")] = "",
    package: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="One more package on the hosts; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the lab, or find the one that runs; the first time its image is made, which takes minutes."""
    import signal

    from trainmaster.lab import LabOptions, SizeScale, boot
    from trainmaster.lab import up as put_up
    from trainmaster.lab.instance_types import find_type

    find_type(kind)
    options = LabOptions(
        region=region,
        zones=zones,
        scale=SizeScale.of_machine(scale, cpu=cpu_scale, memory=memory_scale, network=network_scale),
        suite=suite,
        mirror=mirror,
        packages=tuple(package or ()),
        port=port,
        most_hosts=max_hosts,
        stop_grace_s=stop_grace,
        credits_speed=cpu_credits,
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)  # half an image is taken away again
    place = _place()
    client, is_new = put_up(place, options, say)
    status = boot(place, client, hosts, kind, spot) if hosts else client.do("status")
    if as_json:
        print_json({**status, "endpoint": client.endpoint, "directory": str(place.directory)})
        return
    shares = status["scale"]
    say(
        f"the lab {'is up' if is_new else 'was up already'}: "
        f"{client.endpoint}, {status['region']}, process {client.pid}"
    )
    if shares["cpu"] == shares["memory"] == shares["network"]:
        say(f"hosts have {shares['cpu']:g} of the published sizes, and at least 512 MiB")
    else:
        say("hosts have " + ", ".join(f"{value:g} of the {key}" for key, value in shares.items()))
    if status["hosts"]:
        show(_table(status))
    if hosts:
        say(
            f"{place.hosts_file} lists them; "
            f"ssh -i {place.private_key} admin@{status['hosts'][-1]['address']}"
        )


@app.command()
def status(as_json: AsJson = False) -> None:
    """List the hosts, also those that have been terminated."""
    from trainmaster.lab import LabClient

    client = LabClient.attach(_place())
    found: dict[str, Any] = client.do("status") if client else {"hosts": [], "running": False}
    if as_json:
        for condition in found.get("conditions", {}).values():
            condition.pop("host_key", None)
            condition.pop("key_name", None)
        print_json(found)
    elif client is None:
        left = _place().hosts.is_dir()
        say("no lab is up: `trainmaster lab up`" + (", which sweeps away what one has left" if left else ""))
    else:
        say(f"{client.endpoint}, {found['region']}, process {client.pid}")
        show(_table(found)) if found["hosts"] else say("no hosts yet")


@app.command(no_args_is_help=True)
def terminate(host: _Id, as_json: AsJson = False) -> None:
    """Break a host: it is gone at once, as if its machine had burnt."""
    _do("terminate", f"{host}: gone", as_json, id=host)


@app.command(no_args_is_help=True)
def interrupt(
    host: _Id,
    notice: Annotated[float, typer.Option(help="Seconds from the notice to the end.")] = 120.0,
    as_json: AsJson = False,
) -> None:
    """Take a spot machine back: it finds the notice in its metadata."""
    _do("interrupt", f"{host}: will be gone in {notice:g} s", as_json, id=host, notice_s=notice)


@app.command(no_args_is_help=True)
def freeze(host: _Id, as_json: AsJson = False) -> None:
    """Stop every process of a host where it is."""
    _do("freeze", f"{host}: frozen", as_json, id=host)


@app.command(no_args_is_help=True)
def cut(host: _Id, as_json: AsJson = False) -> None:
    """Cut a host off the network."""
    _do("cut", f"{host}: cut off", as_json, id=host)


@app.command(no_args_is_help=True)
def heal(host: _Id, as_json: AsJson = False) -> None:
    """Undo freeze and cut."""
    _do("heal", f"{host}: healed", as_json, id=host)


@app.command(no_args_is_help=True)
def delay(
    one: Annotated[
        str, typer.Argument(metavar="A", help="A host, a zone, all (hosts), or outside (this machine).")
    ],
    other: Annotated[str, typer.Argument(metavar="B", help="The other end.")],
    milliseconds: Annotated[
        str, typer.Argument(metavar="MS|none", help="Each way; none: as wider ends have it.")
    ],
    loss: Annotated[float, typer.Option(help="Share of the packets that are lost, 0 to 1.")] = 0.0,
    one_way: Annotated[bool, typer.Option("--one-way", help="Only from A to B.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the way between two hosts, zones or all hosts longer, or leaky; the narrowest counts."""
    try:
        delay_ms = None if milliseconds == "none" else float(milliseconds)
    except ValueError:
        raise UsageError(
            f"{milliseconds!r} is no delay", "Write milliseconds each way, such as 12.5, or none."
        ) from None
    what = "as wider ends have it" if delay_ms is None else f"{delay_ms:g} ms each way"
    said = f"{one} - {other}: {what}" + (f", {loss:.1%} lost" if loss else "")
    _do("delay", said, as_json, one=one, other=other, delay_ms=delay_ms, loss=loss, one_way=one_way)


@app.command()
def capacity(
    count: Annotated[str, typer.Argument(metavar="N|none", help="How many may run at once; none: no limit.")],
    kind: Annotated[str, typer.Option("--type", help="Instance type; *: all together.")] = "*",
    zone: Annotated[str, typer.Option(help="Zone; *: all together.")] = "*",
    as_json: AsJson = False,
) -> None:
    """Let a zone run out of machines: RunInstances then answers InsufficientInstanceCapacity."""
    if count != "none" and not count.isdigit():
        raise UsageError(f"{count!r} is no number of machines", "Write 0 or more, or none.")
    number = None if count == "none" else int(count)
    _do("capacity", f"{kind} in {zone}: {count}", as_json, type=kind, zone=zone, count=number)


@app.command(no_args_is_help=True)
def quota(
    which: Annotated[str, typer.Argument(help="on-demand or spot.")],
    vcpus: Annotated[int, typer.Argument(help="vCPUs that may run at once.")],
    as_json: AsJson = False,
) -> None:
    """Limit the account: RunInstances then answers VcpuLimitExceeded."""
    _do("quota", f"{which}: {vcpus} vCPUs", as_json, which=which, vcpus=vcpus)


@app.command(no_args_is_help=True)
def fault(
    action: Annotated[
        str, typer.Argument(help="Of the API, such as RunInstances; *: any; none: no more faults.")
    ],
    code: Annotated[
        str, typer.Argument(help="What it answers, such as RequestLimitExceeded; none: its answer.")
    ] = "",
    status: Annotated[int, typer.Option(min=400, max=599, help="Of HTTP.")] = 503,
    count: Annotated[int, typer.Option(min=0, help="How often; 0: always.")] = 1,
    late: Annotated[float, typer.Option(min=0, help="Seconds before it answers.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Let the next calls of the API fail, or answer late."""
    if action == "none":
        _do("fault", "no faults", as_json, clear=True)
        return
    said = f"{action}: {code or f'{late:g} s late'}, {'always' if count == 0 else f'{count} times'}"
    words = {"action": action, "code": code, "status": status, "count": count or None, "delay_s": late}
    _do("fault", said, as_json, **words)


@app.command()
def down(as_json: AsJson = False) -> None:
    """End the lab and all its hosts; nothing of it stays but the image in the cache."""
    import signal

    from trainmaster.lab import down as take_down

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # half a lab is of no use
    found = take_down(_place())
    words = f"down: {', '.join(found)}" if found else "no lab was up"
    tell({"hosts": [], "running": False, "removed": found}, words, as_json=as_json)


def _place() -> LabPlace:
    from trainmaster.lab import LabPlace
    from trainmaster.service import Home

    home = Home.from_environment()
    return LabPlace.of_home(home.root, home.cache, home.identity())


def _do(verb: str, said: str, as_json: bool, **arguments: Any) -> None:  # noqa: ANN401 - JSON
    from trainmaster.lab import LabClient

    answer = LabClient.require(_place()).do(verb, **arguments)
    tell(answer, said, as_json=as_json)


def _table(found: dict[str, Any]) -> str:
    rows = []
    for host in found["hosts"]:
        condition = found["conditions"].get(host["id"], {})
        marks = [word for word in ("spot", "frozen", "cut") if condition.get(word)]
        if condition.get("taken_back_at"):
            marks.append("to be taken back")
        if "cpu_credits" in condition:
            marks.append(f"{condition['cpu_credits']:g} CPU credits")
        notes = [", ".join(marks), condition.get("reason", "")]
        rows.append(
            [
                host["id"],
                host["address"],
                host["type"],
                condition.get("zone", ""),
                host["state"],
                "; ".join(filter(None, notes)),
            ]
        )
    return table(["id", "address", "type", "zone", "state", ""], rows)
