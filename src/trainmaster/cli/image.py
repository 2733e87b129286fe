"""``trainmaster image``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trainmaster.api import ClientProtocol
from trainmaster.cli.opening import open_client
from trainmaster.cli.options import AgreesToCost, AsJson
from trainmaster.cli.output import can_ask, duration, print_json, say, show, show_list, table
from trainmaster.spec.errors import RunError
from trainmaster.spec.units import dollars, format_bytes

app = typer.Typer(
    no_args_is_help=True, help="Images of machines with what `setup` and `container` put there, made once."
)

_Provider = Annotated[str | None, typer.Option(help="That has the images; else all that can be asked.")]
_LOOK_S: Final = 1.0


@app.command(no_args_is_help=True)
def build(
    recipe: Annotated[Path, typer.Argument(help="The YAML recipe whose machines are to start from it.")],
    experiment: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only what this one needs; may be repeated.")
    ] = None,
    provider: Annotated[str | None, typer.Option(help="Where to run, instead of the recipe's.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a key, as of `run`.")
    ] = None,
    yes: AgreesToCost = False,
    allow_stale: Annotated[bool, typer.Option(help="Accept prices that are old.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the recipe of the run that makes it, and end.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rent one machine of each kind, run `setup` there, pull the images, and keep it all as an image."""
    from trainmaster.cli.driving import see_to_end
    from trainmaster.cli.measuring import watched
    from trainmaster.cli.renting import agree
    from trainmaster.service.images import image_recipe

    found = image_recipe(recipe, set_ or [], provider, experiment)
    if dry_run:
        show(found.as_yaml())
        return
    client = open_client(starts=True)
    plan = watched(client.plan_run(found, str(recipe), allow_stale=allow_stale, can_agree=yes or can_ask()))
    agree(client, plan, yes=yes)
    accepted = client.accept_run(plan.id, agreed_usd_per_hour=plan.most_usd_per_hour)
    if code := see_to_end(client, accepted, "", as_json=False):
        raise typer.Exit(code)
    made = _made_by(client, accepted.run, found.provider)
    if as_json:
        print_json({"run": accepted.run, "images": made})
    else:
        show(_table(made))


@app.command("ls")
def list_images(provider: _Provider = None, as_json: AsJson = False) -> None:
    """List images of machines, what they save, and what keeping them costs."""
    found = open_client().images.listed(provider)
    none = "there are no images: `trainmaster image build RECIPE` makes one"
    show_list("images", found, _table, none, as_json=as_json)


@app.command("rm", no_args_is_help=True)
def remove(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="As listed.")],
    provider: _Provider = None,
    as_json: AsJson = False,
) -> None:
    """Remove images: machines start from the provider's own again. It may be repeated."""
    client = open_client()
    removed = [one for image in dict.fromkeys(images) for one in client.images.remove(image, provider)]
    if as_json:
        print_json({"removed": removed})
        return
    ids = [one["id"] for one in removed]
    for image in dict.fromkeys(images):
        say(f"{image}: removed" if image in ids else f"{image}: there is no such image")


def _made_by(client: ClientProtocol, run: str, provider: str) -> list[dict[str, Any]]:
    """Its images, when its machines are given back: that is when they are made.

    Raises:
        RunError: there are none.
    """
    while any(one.get("run") == run and one["state"] == "used" for one in client.clusters()):
        time.sleep(_LOOK_S)
    made = [one for one in client.images.listed(provider) if one["run"] == run]
    if not made:
        raise RunError(f"{run} has made no image", "It says above why; nothing is rented any more.")
    return made


def _table(found: Sequence[dict[str, Any]]) -> str:
    def row(one: dict[str, Any]) -> list[str]:
        month = one["usd_per_month"]
        how = "" if one["is_ready"] else one["problem"] or "is being made"
        return [
            *(one["id"], f"{one['provider']} {one['region']}", one["run"]),
            duration(max(time.time() - one["made_at"], 0.0)) if one["made_at"] else "",
            format_bytes(one["size_bytes"]),
            duration(one["saves_s"]) if one["saves_s"] else "unknown",
            "unknown" if month is None else dollars(month) if month else "nothing",
            how,
        ]

    head = ["image", "where", "made by", "age", "disk", "saves", "a month, at most", ""]
    return table(head, [row(one) for one in found])
