"""The verbs: a table, of which the one that is asked for is imported."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from trainmaster.spec.errors import UsageError

#: Where each verb is, below this package: a function, or a `typer.Typer` with verbs of its own; and the first
#: sentence of its help. Those of our own processes begin with an underscore, and are not shown.
_VERBS: Final = {
    "run": ("run.run", "Run a recipe: quote, rent, run, keep the model, give the machines back."),
    "check": (
        "check.check",
        "Read a recipe, show its experiments and tasks, and look for what it needs; starts nothing.",
    ),
    "quote": (
        "quote.quote",
        "Measure a recipe's job for a minute, and quote cluster, time and price as intervals.",
    ),
    "recommend": (
        "recommend.recommend",
        "Recommend how many machines to train on, for a batch size and a latency between machines.",
    ),
    "score": (
        "score.score",
        "Show how often the quotes of this home's finished runs were kept, and how good they were.",
    ),
    "status": ("status.status", "Show the runs, or one run with its experiments and models."),
    "logs": ("logs.logs", "Print what the tasks wrote: every member and attempt, as it was written."),
    "cancel": (
        "cancel.cancel",
        "End a run, or tasks of it: SIGTERM, time to save, then SIGKILL. It can be resumed.",
    ),
    "rm": (
        "removing.rm",
        "Remove runs that are over: logs, checkpoints, unnamed models, code that no other run has.",
    ),
    "prune": (
        "prune.prune",
        "Remove what nothing needs any more: code, environments, checkpoints beyond those kept, caches.",
    ),
    "df": (
        "disk_usage.df",
        "Show what lies where and how much room it takes: runs, checkpoints, models, code, caches, volumes.",
    ),
    "resume": (
        "resume.resume",
        "Go on with a run: what succeeded stays, all else is done again; attaches to a run that is alive.",
    ),
    "label": (
        "labels.label",
        "Change the labels of a run: KEY=VALUE writes one, KEY- takes it away; without any, show them.",
    ),
    "note": (
        "labels.note",
        "Write a note on a run, instead of the one that it has; without a text, show it.",
    ),
    "approve": (
        "approve.approve",
        "Say yes to an experiment with `approval: required`, or no: it waits for that.",
    ),
    "export": (
        "export.export",
        "Write a run into one file: code, recipe, data versions, environment, results. `run FILE` runs it.",
    ),
    "convert": (
        "convert.convert",
        "Make a recipe of a file of another tool; what was dropped or is to be decided is a comment in it.",
    ),
    "ssh": ("ssh.ssh", "Open a shell where a run's member works, in the run's working directory."),
    "exec": (
        "execute.execute",
        "Run a command where a member works: its input, output, errors and exit code are this one's.",
    ),
    "port-forward": (
        "port_forward.port_forward",
        "Let a port of this machine lead to one of a member, until Ctrl-C.",
    ),
    "cp": ("copying.cp", "Copy a file or directory from where a member works, or to there."),
    "clusters": ("clusters.app", "List what is rented now, or end what no run uses."),
    "image": ("image.app", "Images of machines with what `setup` and `container` put there, made once."),
    "models": (
        "models.app",
        "List the models that tasks left (`models RUN`: those of one), get one, give them names.",
    ),
    "metrics": ("metrics.app", "Give what tasks have reported to other tools."),
    "tensorboard": (
        "apps.tensorboard",
        "Open a TensorBoard of runs, also while they go on, and print the address for your browser.",
    ),
    "notebook": (
        "apps.notebook",
        "Open a JupyterLab with a copy of a run's code, its data, models, checkpoints and Python.",
    ),
    "apps": ("apps.app", "List the apps that were opened, or end one."),
    "serve": ("services.serve", "Serve a model: a run whose replicas answer requests until you cancel it."),
    "services": ("services.app", "List services, show where one is asked, or end one."),
    "offers": ("offers.offers", "List what can be rented: instance types, places and prices, as of a date."),
    "predict": ("predict.predict", "Predict step times of other clusters from your own measurements."),
    "volume": ("volume.app", "Data on object storage: packed, versioned, verified."),
    "views": (
        "views.app",
        "List your names for what you look for in the list of runs, save or delete one.",
    ),
    "workflows": ("workflows.app", "List the recipes that a server starts by itself, or look after one."),
    "lab": ("lab.app", "A cloud on this machine, for tests and experiments. Needs root."),
    "server": ("server.app", "Serve this home by REST and web, until Ctrl-C. Runs go on when it stops."),
    "mcp": (
        "mcp.mcp",
        "Let an assistant use Trainmaster by the Model Context Protocol, over standard input and output.",
    ),
    "budget": (
        "budget.budget",
        "What was spent this month, is reserved and left; or set how much that may be.",
    ),
    "cost": (
        "cost.cost",
        "Show what runs have cost: by label, month, provider, user, team or run, beside their quotes.",
    ),
    "compare": (
        "compare.compare",
        "Show runs beside each other: best metrics, parameters, what differs in recipe and code.",
    ),
    "queue": (
        "budget.queue",
        "Runs that were sent to the server in use, or of this home, and wait for their turn.",
    ),
    "login": (
        "contexts.login",
        "Use a server from now on: all verbs then ask it. `trainmaster --local` asks this machine's home.",
    ),
    "context": ("contexts.app", "List the servers you have logged in to, or use another."),
    "open": (
        "contexts.open_page",
        "Open the page of the server in use, or of a run on it, or what answers at a port of a member.",
    ),
    "token": ("access.token_app", "Who may use the server in use, or of this home."),
    "team": ("access.team_app", "Teams that share the server in use, or of this home."),
    "user": ("access.user_app", "Users of the server in use, or of this home."),
    "secret": ("access.secret_app", "Secrets of teams, for their tasks."),
    "init": ("init.init", "Write a first recipe by looking at this directory; say what was not found."),
    "schema": (
        "schema.schema",
        "Print the JSON Schema of recipes, for editors and other programs.",
    ),
    "config": ("config.app", "What recipes leave open, and where that is said."),
    "doctor": (
        "doctor.doctor",
        "Look at this machine, home and server, or a place: what is there, what is missing, what to do.",
    ),
    "examples": (
        "examples.examples",
        "List the recipes that come with Trainmaster, or copy one with its code.",
    ),
    "_drive": (
        "drive.drive",
        "Drive a run to its end, showing nothing: one that was accepted, or whose driver elsewhere is lost.",
    ),
    "_driver": (
        "drive.drive_many",
        "Be the driver of a server with this number: drive runs that were sent to it, many at once.",
    ),
    "_app": (
        "drive.look_after_app",
        "Be the process of an app: start it, and end it when it is idle.",
    ),
}

#: Where `--help` shows each, in this order.
PANELS: Final = {
    "Run": ("run", "check", "quote", "resume", "cancel", "approve", "export", "convert", "examples"),
    "Look": (
        "status", "logs", "compare", "label", "note", "metrics", "tensorboard", "score", "open", "queue",
        "budget", "cost", "views",
    ),
    "Into a run": ("exec", "ssh", "cp", "port-forward", "notebook", "apps"),
    "Models and services": ("models", "serve", "services"),
    "Data": ("volume",),
    "Room": ("df", "rm", "prune"),
    "Machines and prices": ("offers", "recommend", "predict", "clusters", "image", "lab"),
    "Server": (
        "server", "login", "context", "mcp", "workflows", "token", "team", "user", "secret",
    ),
    "Set up": ("init", "schema", "config", "doctor"),
}  # fmt: skip


#: What goes with a verb otherwise.
_TOO_MUCH: Final = {"logs": "`--experiment` names an experiment, `--task` and `--member` what is in it."}


#: What is looked for as an option, and is a key of the recipe.
_KEYS: Final = {
    "total": "budget.total=20USD", "budget": "budget.total=20USD", "max-usd": "budget.total=20USD",
    "per-hour": "budget.per_hour=3USD", "deadline": "budget.deadline=2h",
}  # fmt: skip


class _Verb(TyperCommand):
    """One that says in two lines what is missing, unknown or too much."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - passed on
        """Read what was given."""
        if ctx.resilient_parsing:  # a shell asks how a line goes on
            return TyperCommand.parse_args(self, ctx, args)
        needs = [each for each in self.params if each.required and each.param_type_name == "argument"]
        if not args and needs:
            raise self._needs(ctx, needs)
        ctx.allow_extra_args = True
        try:
            read = TyperCommand.parse_args(self, ctx, args)
        except Exception as error:  # of a private type
            if "possibilities" in vars(error):
                raise self._no_such_option(ctx, error.option_name) from None  # type: ignore[attr-defined]
            if (message := getattr(error, "format_message", None)) is None:
                raise
            missing = next((each for each in needs if each is getattr(error, "param", None)), None)
            if missing is not None and "Missing" in message():
                raise self._needs(ctx, [missing]) from None
            hint = f"`{ctx.command_path} --help` says what it takes."
            raise UsageError(f"{ctx.command_path}: {message().rstrip('.')}", hint) from None
        if ctx.args:
            hint = _TOO_MUCH.get(self.name or "", f"`{ctx.command_path} --help` says what it takes.")
            raise UsageError(f"{ctx.command_path}: {' '.join(ctx.args)} is too much", hint)
        return read

    @staticmethod
    def _needs(ctx: Any, missing: list[Any]) -> UsageError:  # noqa: ANN401 - typer's own types are private
        """What is not there, and of one thing what it is."""
        names = " ".join(each.metavar or (each.name or "").upper() for each in missing)
        what = f": {getattr(missing[0], 'help', '')}".rstrip(".: ") if len(missing) == 1 else ""
        return UsageError(
            f"{ctx.command_path} needs {names}{what}", f"`{ctx.command_path} --help` has the rest."
        )

    def _no_such_option(self, ctx: Any, given: str) -> UsageError:  # noqa: ANN401 - as above
        """With the one that is meant: what typer proposes may be far from it."""
        from trainmaster.spec.node import nearest

        name = given.lstrip("-")
        known = [each.removeprefix("--") for of in self.params for each in of.opts if each.startswith("--")]
        hint = f"`{ctx.command_path} --help` says what it takes."
        if name in _KEYS and "set" in known:
            hint = f"It is a key of the recipe: `--set {_KEYS[name]}`."
        elif near := nearest(name, known):
            hint = f"Did you mean --{near}?"
        return UsageError(f"{ctx.command_path} has no option {given}", hint)


class _LazyCommands(Mapping[str, Any]):
    """Verbs by name; each is made, of its function's annotations, when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - typer's own types are private
        if name not in self._made:
            module, _, noun = _VERBS[name][0].partition(".")
            found, alone = getattr(import_module(f"trainmaster.cli.{module}"), noun), typer.Typer()
            if isinstance(found, typer.Typer):
                _say_in_two_lines(found)
                alone.add_typer(found, name=name)
            else:
                alone.command(name, cls=_Verb, hidden=name.startswith("_"))(found)
            self._made[name] = typer.main.get_group(alone).commands[name]
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_VERBS)

    def __len__(self) -> int:
        return len(_VERBS)


def _say_in_two_lines(group: typer.Typer) -> None:
    """Have a group and all of its verbs say what is wrong as others do."""
    if not isinstance(group.info.cls, type):  # typer's own
        group.info.cls = VerbGroup
    for command in group.registered_commands:
        command.cls = _Verb
    for below in group.registered_groups:
        if below.typer_instance is not None:
            _say_in_two_lines(below.typer_instance)


class VerbGroup(TyperGroup):
    """A group of verbs that says in two lines what is wrong before its verbs begin."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own types are private
        """Read what stands before the verb."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # of a private type
            if not {"option_name", "param"} & set(vars(error)):
                raise
            hint = f"`{ctx.command_path} --help` says what it takes."
            message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
            raise UsageError(f"{ctx.command_path}: {message}", hint) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401
        """The verb that is meant."""
        if not ctx.resilient_parsing and args and args[0] not in self.commands:
            raise self._no_such_verb(ctx.command_path, args[0])[0]
        return super().resolve_command(ctx, args)

    def _no_such_verb(self, path: str, word: str, but: str = "") -> tuple[UsageError, bool]:
        """What to say, and whether a verb is near: one that is shown, and another one than ``but``."""
        from trainmaster.spec.node import nearest

        near = nearest(word, [name for name in self.commands if name != but and not name.startswith("_")])
        hint = f"Did you mean {near}?" if near else f"`{path} --help` lists its verbs."
        return UsageError(f"{path} has no {word}", hint), near is not None


class _Verbs(VerbGroup):
    """All verbs; what they do in a sentence is shown without any of them."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(**options)
        self.commands: Any = _LazyCommands()

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        """Show what there is."""
        TyperGroup.format_help(self._summaries(), ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:  # noqa: ANN401 - as above
        """Verbs and options that begin so."""
        return TyperGroup.shell_complete(self._summaries(), ctx, incomplete)

    def _summaries(self) -> TyperGroup:
        found = copy.copy(self)
        found.commands = {
            name: TyperCommand(name, help=_VERBS[name][1], rich_help_panel=panel)
            for panel, names in PANELS.items()
            for name in names
        }
        return found


app = typer.Typer(
    name="trainmaster",
    cls=_Verbs,
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
