"""``trainmaster run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Annotated, Any

import typer

from trainmaster.cli.opening import ask_server, context, open_client, refuse_on_server, unpacked
from trainmaster.cli.options import (
    AgreesToCost,
    AsJson,
    Changes,
    Keep,
    LendKeys,
    Provider,
    RecipeFile,
    kept_seconds,
)
from trainmaster.cli.output import can_ask, print_json, say, show
from trainmaster.spec.errors import TrainmasterError, UsageError


def run(
    recipe: RecipeFile,
    provider: Provider = None,
    set_: Changes = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Label the run: --label project=vision"),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="P", help="What chooses the machines, as of `quote`; the same as objective."),
    ] = None,
    yes: AgreesToCost = False,
    keep: Keep = None,
    allow_stale: Annotated[bool, typer.Option(help="Accept prices that are old.")] = False,
    measure_first: Annotated[
        bool, typer.Option("--measure-first", help="Measure on this machine and quote, then run.")
    ] = False,
    queue: Annotated[
        bool,
        typer.Option("--queue", help="On a server: wait until it fits in the month's budget."),
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Of a recipe with `on`, which a server keeps: run it at once, too.")
    ] = False,
    detach: Annotated[bool, typer.Option(help="Drive the run in the background and return at once.")] = False,
    on_server: Annotated[
        bool,
        typer.Option("--on-server", help="Send it to the server that you have logged in to: that drives it."),
    ] = False,
    on_cluster: Annotated[
        bool,
        typer.Option("--on-cluster", help="Its first rented machine drives it: this one may be turned off."),
    ] = False,
    send_keys: Annotated[
        bool,
        typer.Option(
            "--send-keys",
            envvar="TRAINMASTER_SEND_KEYS",
            help="With --on-cluster: send that machine your own keys, not a role's, without being asked.",
        ),
    ] = False,
    lend_keys: LendKeys = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be sent and started, and end.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a recipe: quote, rent, run, keep the model, give the machines back."""
    from trainmaster.cli.driving import see_to_end
    from trainmaster.cli.measuring import watched
    from trainmaster.cli.renting import agree, agree_to_send
    from trainmaster.service import capabilities_of
    from trainmaster.spec import read_recipe
    from trainmaster.spec.recipe_parts import named_places
    from trainmaster.spec.trigger import needs_server

    keep_s = kept_seconds(keep)
    if on_server:
        ask_server()
    if on_cluster:
        refuse_on_server("--on-cluster")
        if lend_keys:
            raise UsageError(
                "--lend-keys and --on-cluster do not go together",
                "Nothing was started. Leave out one of them.",
            )
    if lend_keys:
        refuse_on_server("--lend-keys")
        from trainmaster.service import give_whole_keys

        give_whole_keys()
    recipe = unpacked(recipe)
    chosen_by = [] if policy is None else [f"objective={'cheapest' if policy == 'quote' else policy}"]
    if label:
        from trainmaster.spec.labels import as_overrides

        chosen_by += as_overrides(label)
    found = read_recipe(recipe, overrides=[*(set_ or ()), *chosen_by], provider=provider)
    is_here = all(capabilities_of(each).is_here for each in named_places(found))
    if dry_run:
        _show_plan(
            open_client(makes=not is_here).dry_run(found), as_json=as_json
        )  # they bear the home's name
        return
    if found.on and context() is None:
        raise needs_server(found.on[0].key)
    if now and not found.on:
        raise UsageError("--now is for a recipe with `on`", "Leave it out: this one runs now in any case.")
    if on_cluster:  # before anything is planned, or asked
        from trainmaster.service import Home
        from trainmaster.service.on_cluster.credentials import check_narrow
        from trainmaster.service.on_cluster.hand_over import check_moves

        check_moves(found, Home.from_environment().store_url)
        if not send_keys and (yes or not can_ask()):
            check_narrow(found)
    client = open_client(starts=True, runs_here=is_here and not detach)
    plan = watched(
        client.plan_run(
            found,
            str(recipe),
            allow_stale=allow_stale,
            can_agree=yes or can_ask(),
            measure_first=measure_first,
            keep_s=keep_s,
        )
    )
    agree(client, plan, yes=yes)
    if found.on:
        from trainmaster.cli.workflows import register

        register(client, plan.id, starts_now=now, keep_s=keep_s, queue=queue, as_json=as_json)
        return
    if on_cluster:
        from trainmaster.service.on_cluster.credentials import sent_to_machine

        agree_to_send(sent_to_machine(found), yes=yes or send_keys)
    accepted = client.accept_run(
        plan.id, agreed_usd_per_hour=plan.most_usd_per_hour, keep_s=keep_s, queue=queue, on_cluster=on_cluster
    )
    if any(each.serve for each in found.experiments.values()):
        with suppress(TrainmasterError):  # the run was accepted, whatever can be said of it
            for service in client.services.listed():
                if service["run"] == accepted.run:
                    say(
                        f"`trainmaster services open {service['name']}` says where {service['name']} is asked"
                    )
    told = f"{accepted.run} runs in the background; `trainmaster logs -f {accepted.run}` shows its output"
    raise typer.Exit(see_to_end(client, accepted, told if detach else "", as_json=as_json))


def _show_plan(plan: dict[str, Any], *, as_json: bool) -> None:
    """What would be sent, a text that is one unchanged and else JSON; then what would be started."""
    import json

    if as_json:
        print_json(plan)
        return
    for note in plan["notes"]:
        say(f"note: {note}")
    if plan.get("places"):
        from trainmaster.cli.renting import show_places
        from trainmaster.service import PlaceRow

        show_places([PlaceRow.of(each) for each in plan["places"]], show)
    for each, count in _folded(plan["requests"]):
        rest = {name: value for name, value in each.items() if name != "operation"}
        document = each["parameters"].pop("radl", "") if "parameters" in each else ""
        times = f" x {count}" if count > 1 else ""
        show(f"# {each['operation']}{times}\n{json.dumps(rest, indent=2, default=str)}\n{document}".rstrip())
    for each in plan["processes"]:
        more = f", the first of {each['of']} tasks" if each["of"] > 1 else ""
        image = f" in {each['container']}" if each["container"] else ""
        show(f"# {each['experiment']}/{each['task']} {each['member']}{image}{more}")
        show("\n".join(f"{name}={value}" for name, value in sorted(each["variables"].items())))
        show(each["command"])


def _folded(requests: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """The first of those that follow each other and differ in their names only, as pods do; how many."""
    alike = [list(some) for _, some in groupby(requests, key=_without_name)]
    return [(some[0], len(some)) for some in alike]


def _without_name(request: Mapping[str, Any]) -> dict[str, Any]:
    parameters = request.get("parameters") or {}
    about = parameters.get("metadata") if isinstance(parameters, dict) else None
    if not isinstance(about, dict):
        return dict(request)
    unnamed = {key: value for key, value in about.items() if key != "name"}
    return {**request, "parameters": {**parameters, "metadata": unnamed}}
