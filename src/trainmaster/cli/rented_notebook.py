"""``trainmaster notebook --provider P``: a JupyterLab on a machine that is rented for it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.cli.opening import context
from trainmaster.cli.output import duration, say
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.states import State
from trainmaster.spec.units import dollars

if TYPE_CHECKING:
    from trainmaster.api import ClientProtocol
    from trainmaster.api.port_forward import PortForward
    from trainmaster.api.results import Watched

_MOST_MODELS: Final = 4
#: It answers at once or never; what it has written is kept in either case.
_ANSWER_S: Final = 10.0


def rent_notebook(
    client: ClientProtocol,
    run: str | None,
    provider: str,
    hardware: Mapping[str, Any],
    idle_s: float,
    variables: Sequence[str] = (),
    *,
    yes: bool,
    as_json: bool,
) -> int:
    """Rent a machine, have JupyterLab there, lead a port of this machine to it until it ends; the exit code.

    Args:
        client: of the home or server.
        run: whose notebook it is.
        provider: of the machine.
        hardware: which machine is wished, as in a recipe.
        idle_s: it ends when nothing was done for so long.
        variables: that it has there, ``NAME=VALUE``, or ``NAME`` for a secret.
        yes: the user has agreed to the costs before.
        as_json: print the address, and at last the run, as objects.
    """
    from trainmaster.cli.measuring import start_made

    with tempfile.TemporaryDirectory(prefix="trainmaster-notebook-") as directory:
        recipe = _write(client, run, provider, hardware, idle_s, variables, Path(directory))
        plan, accepted = start_made(client, recipe, yes=yes)
    made, price = accepted.run, plan.most_usd_per_hour
    if not accepted.server:
        client.detach_run(made)
    costs = f"it costs up to {dollars(price)} an hour" if price else "it costs nothing"
    say(f"{made}: {costs}; it ends when nothing was done for {duration(idle_s)}, or by `cancel {made}`")
    if client.brief(made)["state"] == "DONE" and (message := client.status(made).json.get("message")):
        say(f"{made}: {message}")  # `attach` tells what comes after it has begun
    return lead_to_rented(client, made, price, as_json=as_json)


def is_rented_notebook(client: ClientProtocol, run: str) -> bool:
    """Whether the run is a notebook on a rented machine, which is not over."""
    from trainmaster.spec.recipe import NOTEBOOK_LABELS

    brief = client.brief(run)
    labels: dict[str, str] = brief.get("labels", {})
    return brief["state"] != "DONE" and labels.items() >= NOTEBOOK_LABELS.items()


def lead_to_rented(client: ClientProtocol, run: str, usd_per_hour: float | None, *, as_json: bool) -> int:
    """Lead a port of this machine to the JupyterLab of a run until that is over; the exit code.

    Args:
        client: of the home or server.
        run: that has it.
        usd_per_hour: what it costs at most, if that is known.
        as_json: print each address, and at last the run, as objects.
    """
    from trainmaster.cli.driving import attach

    # What was rented is given back first; a terminal that is closed leaves it, as one may come back to it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    forward = _NotebookForward(client, run, usd_per_hour, as_json=as_json)
    try:
        return attach(client, run, as_json=as_json, look=forward.look)
    except KeyboardInterrupt:
        if not forward.end():
            client.cancel(run)
    finally:
        forward.close()
    return attach(client, run, as_json=as_json)


class _NotebookForward:
    """From a port of this machine to JupyterLab, on whichever machine that is now."""

    def __init__(
        self, client: ClientProtocol, run: str, usd_per_hour: float | None, *, as_json: bool
    ) -> None:
        self._client, self._run = client, run
        self._usd_per_hour, self._as_json = usd_per_hour, as_json
        self._forward: PortForward | None = None
        self._token = ""

    def look(self, seen: Watched) -> None:
        """Open it if there is none, and give it up with the attempt that it leads to."""
        if self._forward is not None and any(
            event.kind == "task" and event.after is State.RECOVERING for event in seen.events
        ):
            self.close()
            say("that address is over: JupyterLab begins again, with what you wrote but for the last minutes")
        if self._forward is None and seen.brief["state"] != State.DONE:
            self._open()

    def _open(self) -> None:
        facts = _facts(self._client, self._run)
        if facts is None:
            return
        try:
            self._forward = self._client.forward(self._run, None, int(facts["port"]), 0, say)
        except TrainmasterError:  # its machine is lost meanwhile
            return
        self._token = str(facts["token"])
        address = f"http://127.0.0.1:{self._forward.port}/lab?token={self._token}"
        _print_address(self._run, address, self._usd_per_hour, as_json=self._as_json)
        say("Ctrl-C ends it, and gives the machine back; what was written is kept as the run's model")

    def end(self) -> bool:
        """Have JupyterLab end by itself, so that what was written is kept; False if it cannot be reached."""
        if self._forward is None:
            return False
        connection = http.client.HTTPConnection("127.0.0.1", self._forward.port, timeout=_ANSWER_S)
        try:
            connection.request("POST", "/api/shutdown", headers={"authorization": f"token {self._token}"})
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def close(self) -> None:
        """Lead nowhere."""
        if self._forward is not None:
            self._forward.close()
        self._forward = None


def _print_address(run: str, address: str, usd_per_hour: float | None, *, as_json: bool) -> None:
    """Not by `show` or `print_json`, which hide tokens: it is of no use without."""
    facts = {"run": run, "url": address, "usd_per_hour": usd_per_hour}
    print(json.dumps(facts) if as_json else address, flush=True)  # noqa: T201


def _write(
    client: ClientProtocol,
    run: str | None,
    provider: str,
    hardware: Mapping[str, Any],
    idle_s: float,
    variables: Sequence[str],
    directory: Path,
) -> Path:
    """The recipe, with the code of the run beside it."""
    from trainmaster.service.apps.rented_notebook import rented_notebook_recipe
    from trainmaster.service.runs.capsule import open_capsule
    from trainmaster.spec import read_recipe

    work = directory / "work"
    if run is None:
        work.mkdir()
        text, notes = rented_notebook_recipe(provider, hardware, idle_s, variables=variables)
    else:
        capsule = directory / "run.capsule"
        client.export(run, capsule)
        opened = open_capsule(capsule, directory)
        shutil.copytree(opened.recipe.parent / "code", work, symlinks=True)
        models, left = _models(client, run, at_server=context() is not None)
        of = read_recipe(opened.recipe)
        text, notes = rented_notebook_recipe(provider, hardware, idle_s, of, models, variables)
        notes += left
    for note in notes:
        say(f"note: {note}")
    recipe = work / "trainmaster-notebook.yaml"
    recipe.write_text(text, encoding="utf-8")
    return recipe


def _models(client: ClientProtocol, run: str, *, at_server: bool) -> tuple[list[str], list[str]]:
    """The first models of a run as a recipe names them, and notes on those that none can.

    A server takes no addresses on its store from others, and tells none of its own disk to them.
    """
    found = client.models(run)[:_MOST_MODELS]
    if not at_server:
        return [each.uri for each in found], []
    registry = client.registry
    versions = [each for model in registry.models() for each in registry.show(model["name"])["versions"]]
    registered = {each["model"]: f"{each['name']}@{each['version']}" for each in versions}
    models, notes = [], []
    for each in found:
        name = f"{each.run}/{each.experiment}/{each.task}"
        if name in registered:
            models.append(registered[name])
        elif each.uri.startswith("file://"):  # who is told has the server for himself
            models.append(each.uri)
        else:
            notes.append(f"model {name} stays there: `trainmaster models register` lets recipes name it")
    return models, notes


def _facts(client: ClientProtocol, run: str) -> dict[str, Any] | None:
    """What its server says of itself; None before it is there."""
    from trainmaster.service.apps.rented_notebook import FACTS

    words = ["sh", "-c", f'cat "$(ls -t {FACTS}/jpserver-*.json | head -n 1)"']
    with tempfile.TemporaryFile() as found, Path(os.devnull).open("r+b") as nothing:
        try:
            code = client.execute(run, None, words, (nothing.fileno(), found.fileno(), nothing.fileno()))
        except TrainmasterError:  # it has no machine yet
            code = 1
        found.seek(0)
        try:
            facts = json.loads(found.read()) if code == 0 else {}
        except ValueError:  # it is being written
            facts = {}
    return facts if "port" in facts and "token" in facts else None
