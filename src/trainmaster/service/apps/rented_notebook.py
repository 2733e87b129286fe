"""The recipe of a JupyterLab on a rented machine: an ordinary run, which is quoted, billed and given back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trainmaster.spec import Recipe
    from trainmaster.spec.experiment import Experiment

#: Where its server says how to reach it, in the directory of the code there.
FACTS: Final = ".notebook"
#: By which its run is known.
LABELS: Final = {"app": "jupyterlab"}
_SETUP: Final = """\
pip install jupyterlab || {
  echo "JupyterLab cannot be installed there: name an index that the machine reaches, --env PIP_INDEX_URL=URL"
  exit 1
}
"""
#: In quotation marks of the shell. What open pages ask for again and again is no use, or it would
#: never end. Jupyter itself looks once a minute whether nothing was done, and the machine costs meanwhile.
#: Links that lead out cannot be saved; the copy of the code has those to data.
#:
#: What is written is copied into the directory of checkpoints, with which the next attempt begins: one in
#: which kernels write without a pause would never stand still. Each checkpoint is sent whole, so they are
#: neither large nor frequent. The code comes first, then notebooks before what lies deep in an environment.
PROGRAM: Final = """
import os
import shutil
import stat
import threading
from contextlib import suppress
from jupyter_server.base.handlers import APIHandler
from jupyter_server.serverapp import ServerApp
from jupyterlab.labapp import main
from tornado.ioloop import PeriodicCallback

EVERY_S = 180
MOST_BYTES, MOST_FILES = 512 << 20, 5000
note_use = APIHandler.update_api_activity
code, here = os.getcwd(), os.path.realpath(os.environ["TRAINMASTER_OUTPUT_DIR"])
saved = os.path.realpath(os.environ["TRAINMASTER_CHECKPOINT_DIR"])
part = os.path.join(saved, ".notebook-part")
over, told = threading.Event(), [0]


def note_what_users_do(handler):
    asked = handler.request
    looks = asked.method in ("GET", "HEAD") and asked.path.startswith("/api/")
    if not looks and not asked.path.startswith("/lab/api/workspaces"):
        note_use(handler)


def below(top):
    for place, folders, files in os.walk(top):
        yield from [os.path.join(place, name) for name in folders + files]


def leads_out(link, top):
    if not os.path.islink(link):
        return False
    return os.path.isabs(os.readlink(link)) or not os.path.realpath(link).startswith(top + os.sep)


def begin():
    with suppress(OSError):
        os.unlink(part)
    shutil.copytree(saved, here, symlinks=True, dirs_exist_ok=True)
    for link in below(code):
        there = os.path.join(here, "code", os.path.relpath(link, code))
        with suppress(OSError):
            if leads_out(link, code) and not os.path.lexists(there):
                os.makedirs(os.path.dirname(there), exist_ok=True)
                os.symlink(os.readlink(link), there)


def seen(path):
    with suppress(OSError):
        found = os.lstat(path)
        return stat.S_IFMT(found.st_mode), found.st_size, found.st_mtime_ns


def rank(each):
    (_, size, _), path = each
    brought = os.path.join(code, os.path.relpath(path, os.path.join(here, "code")))
    return not os.path.lexists(brought), path.count(os.sep), size, path


def keep():
    left, kept, out = MOST_BYTES, {}, []
    found = [(seen(path), path) for path in below(here) if not leads_out(path, here)]
    files = [each for each in found if each[0] and each[0][0] in (stat.S_IFREG, stat.S_IFLNK)]
    for (_, size, _), path in sorted(files, key=rank):
        if size <= left and len(kept) < MOST_FILES:
            left -= size
            kept[os.path.join(saved, os.path.relpath(path, here))] = path
        else:
            out.append(path)
    if len(out) > told[-1]:
        told.append(len(out))
        print("too much to keep before the end:", len(out), "files, such as", ascii(out[0]), flush=True)
    for path in reversed(list(below(saved))):
        with suppress(OSError):
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
            elif path not in kept:
                os.unlink(path)
    for there, path in kept.items():
        with suppress(OSError):
            before = seen(path)
            if before != seen(there):
                os.makedirs(os.path.dirname(there), exist_ok=True)
                shutil.copy2(path, part, follow_symlinks=False)
                if seen(path) == before:
                    os.replace(part, there)
                else:
                    os.unlink(part)


def keep_on():
    while not over.wait(EVERY_S):
        with suppress(OSError):
            keep()


APIHandler.update_api_activity = note_what_users_do
ServerApp.init_shutdown_no_activity = lambda app: PeriodicCallback(app.shutdown_no_activity, 5000).start()
begin()
os.chdir(here)
keeper = threading.Thread(target=keep_on, daemon=True)
keeper.start()
try:
    main()
finally:
    over.set()
    keeper.join()
    with suppress(OSError):
        keep()
    for link in [path for path in below(here) if leads_out(path, here)]:
        print("not kept, as it leads elsewhere:", link, flush=True)
        os.unlink(link)
"""
# A token that it is given is not in what it prints. Isolated, as modules of the user's code may be named like
# those that it imports.
_COMMAND: Final = """\
rm -rf {facts}
[ -n "$(ls -A "$TRAINMASTER_CHECKPOINT_DIR")" ] || cp -R . "$TRAINMASTER_OUTPUT_DIR/code"
umask 077
export JUPYTER_RUNTIME_DIR="$PWD/{facts}" JUPYTER_NO_CONFIG=1
JUPYTER_TOKEN="$(python -I -c 'import secrets; print(secrets.token_hex(24))')"
export JUPYTER_TOKEN
exec python -I -c '{program}' --no-browser --allow-root --ServerApp.ip=127.0.0.1 --ServerApp.port=0 \\
  --ServerApp.root_dir="$TRAINMASTER_OUTPUT_DIR" --ServerApp.shutdown_no_activity_timeout={idle_s:.0f} \\
  --ServerApp.terminals_enabled=False --MappingKernelManager.cull_idle_timeout={idle_s:.0f} \\
  --MappingKernelManager.cull_interval=5 --MappingKernelManager.cull_connected=True
"""
#: The copy changes more seldom: there is time to send it. At the end the model has all of it.
_CHECKPOINT: Final = {"every": "60s", "keep_after": 0}
_SOURCES: Final = {"volume": "volume", "url": "url", "sha256": "sha256", "model": "model", "at": "at"}


def rented_notebook_recipe(
    provider: str,
    hardware: Mapping[str, Any],
    idle_s: float,
    of: Recipe | None = None,
    models: Sequence[str] = (),
    variables: Sequence[str] = (),
) -> tuple[str, list[str]]:
    """A recipe in YAML, and what of the run could not be brought.

    Args:
        provider: of the machine.
        hardware: as in a recipe: which machine is wished.
        idle_s: it ends when nothing was done for so long.
        of: the recipe of the run whose notebook it is; its last experiment says what is there.
        models: of that run: where they are on its object store, or as which version they are registered.
        variables: more of them, ``NAME=VALUE``, or ``NAME`` for a secret; its ``setup`` has them, too.
    """
    notes: list[str] = []
    found: dict[str, Any] = {"command": _COMMAND.format(facts=FACTS, program=PROGRAM, idle_s=idle_s)}
    setup, env = _SETUP, {}
    if of is not None:
        experiment = list(of.experiments.values())[-1]
        setup = f"{experiment.setup.rstrip()}\n{setup}" if experiment.setup else setup
        env = {name: value for name, value in experiment.env.items() if "{{" not in value}
        data = _data(experiment, notes)
        data |= {f"model{number or ''}": _source(each) for number, each in enumerate(models)}
        found |= {"data": data} if data else {}
    env |= {name: value for name, is_plain, value in _split(variables) if is_plain}
    secrets = [name for name, is_plain, _ in _split(variables) if not is_plain]
    found |= {
        "setup": setup,
        "checkpoint": _CHECKPOINT,
        "env": {name: env[name] for name in env if name not in secrets},
        "secrets": secrets,
    }
    if hardware:
        found["hardware"] = {"spot": False, **hardware}
    recipe = {
        "name": "notebook" if of is None else f"{of.name[:50]}-notebook",
        "code": ".",
        "labels": LABELS,
        "provider": provider,
        "experiments": {"notebook": found},
    }
    return json.dumps(recipe, indent=2), notes


def is_notebook(recipe: Recipe) -> bool:
    """Whether a recipe is of a JupyterLab: it ends when whoever works in it does, and shows no steps."""
    return dict(recipe.labels).items() >= LABELS.items()


def _source(model: str) -> dict[str, str]:
    return {"url" if "://" in model else "model": model}


def _split(variables: Sequence[str]) -> list[tuple[str, str, str]]:
    return [each.partition("=") for each in variables]


def _data(experiment: Experiment, notes: list[str]) -> dict[str, Any]:
    found = {}
    for name, source in experiment.data.items():
        told = {
            key: value for field, key in _SOURCES.items() if (value := getattr(source, field)) is not None
        }
        if "volume" in told or "url" in told or "model" in told:
            found[name] = told
        else:
            notes.append(f"data.{name}: only volumes, URLs and models come to another machine")
    return found
