"""The verbs, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli import (
    access,
    approve,
    apps,
    budget,
    cancel,
    check,
    clusters,
    contexts,
    convert,
    copying,
    doctor,
    drive,
    examples,
    execute,
    export,
    lab,
    logs,
    metrics,
    models,
    offers,
    port_forward,
    predict,
    quote,
    recommend,
    resume,
    run,
    score,
    server,
    services,
    ssh,
    status,
    volume,
    workflows,
)

app = typer.Typer(
    name="trainmaster",
    help="From a recipe to a trained model, at the price that was quoted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from trainmaster import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Ask the home of this machine, not the server in use.")
    ] = False,
) -> None:
    """From a recipe to a trained model, at the price that was quoted."""
    if local:
        from trainmaster.cli.opening import stay_local

        stay_local()


app.command(no_args_is_help=True)(run.run)
app.command(no_args_is_help=True)(check.check)
app.command(no_args_is_help=True)(quote.quote)
app.command(no_args_is_help=True)(recommend.recommend)
app.command()(score.score)
app.command()(status.status)
app.command(no_args_is_help=True)(logs.logs)
app.command(no_args_is_help=True)(cancel.cancel)
app.command(no_args_is_help=True)(resume.resume)
app.command(no_args_is_help=True)(approve.approve)
app.command(no_args_is_help=True)(export.export)
app.command(no_args_is_help=True)(convert.convert)
app.command(no_args_is_help=True)(ssh.ssh)
app.command("exec", no_args_is_help=True)(execute.execute)
app.command("port-forward", no_args_is_help=True)(port_forward.port_forward)
app.command(no_args_is_help=True)(copying.cp)
app.add_typer(clusters.app, name="clusters")
app.add_typer(models.app, name="models")
app.add_typer(metrics.app, name="metrics")
app.command(no_args_is_help=True)(apps.tensorboard)
app.command()(apps.notebook)
app.add_typer(apps.app, name="apps")
app.command(no_args_is_help=True)(services.serve)
app.add_typer(services.app, name="services")
app.command()(offers.offers)
app.command(no_args_is_help=True)(predict.predict)
app.add_typer(volume.app, name="volume")
app.add_typer(workflows.app, name="workflows")
app.add_typer(lab.app, name="lab")
app.add_typer(server.app, name="server")
app.command()(budget.budget)
app.command()(budget.queue)
app.command(no_args_is_help=True)(contexts.login)
app.add_typer(contexts.app, name="context")
app.command("open")(contexts.open_page)
app.add_typer(access.token_app, name="token")
app.add_typer(access.team_app, name="team")
app.add_typer(access.user_app, name="user")
app.add_typer(access.secret_app, name="secret")
app.command()(doctor.doctor)
app.command()(examples.examples)
app.command("_drive", hidden=True)(drive.drive)
app.command("_driver", hidden=True)(drive.drive_many)
app.command("_app", hidden=True)(drive.look_after_app)
