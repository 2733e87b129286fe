"""`first_recipe`: a recipe for a directory with a script, by looking at both; nothing is imported of them."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.executors.telemetry.log_formats import prints
from trainmaster.spec.errors import UsageError, fails_as
from trainmaster.spec.metric_names import says_how_good
from trainmaster.spec.plain_json import parsed_yaml

_FRAMEWORKS: Final = {
    "ray": ("ray",),
    "pytorch": ("torch", "lightning", "pytorch_lightning", "accelerate"),
    "tensorflow": ("tensorflow", "keras", "tf_keras"),
    "jax": ("jax", "flax"),
    "mpi": ("mpi4py", "horovod"),
    "spark": ("pyspark",),
}
#: Names of scripts that train, the likeliest first.
_LIKELY: Final = ("train", "main", "run")
#: What runs scripts in other languages: nothing but their command is known of them.
_OTHERS: Final = {".sh": "bash", ".R": "Rscript", ".r": "Rscript", ".jl": "julia"}
_NOT_OURS: Final = ("test", "tests", "docs", "node_modules", "setup.py", "conftest.py")
_RATES: Final = ("lr", "learning_rate", "learning-rate")
_CHECKPOINT: Final = re.compile(r"(checkpoint|ckpt)s?[-_]?(dir|folder)|save[-_]?(dir|folder)", re.I)
_OUTPUT: Final = re.compile(r"(out(put)?|results?|work|model)[-_]?(dir|path|folder)|output|out", re.I)
_SAVE: Final = re.compile(r"save([-_]?(path|file|model|to))?|(model|checkpoint)[-_]?(path|file)", re.I)
_DATA: Final = re.compile(r"data(set)?|(data(set)?|input|train)[-_]?(dir|path|root|folder|file)|root", re.I)
#: What reads options in ways that only its help shows.
_ONLY_HELP: Final = ("LightningCLI", "jsonargparse", "fire", "tyro", "typer", "simple_parsing")
_PRINTS: Final = ("print", "info", "write", "set_description", "set_postfix")
#: A counter before a value that is filled in; what counts is a whole number.
_COUNTED: Final = re.compile(r"(?i)(\b(?:epoch|step|iter|iteration|batch|trial)s?\b\W{0,3})0\.5")
_FILLED_IN: Final = re.compile(r"%[-+ #0-9.]*[a-z]")
_SAVES: Final = ("save", "savez", "dump", "save_weights", "save_model")
_LOADS: Final = ("load", "open", "read_csv", "read_parquet", "loadtxt")
_A_PATH: Final = re.compile(r"(\.{1,2}/)?\w[\w./-]*|(\.{1,2}/)[\w./-]+")
_OF_DATA: Final = re.compile(r"(data|dataset|input)s?(/|$)")
#: A directory of data of so many bytes is not for the code, which is copied for every run.
_LARGE_BYTES: Final = 20_000_000
_KEPT: Final = 'only what is below "$TRAINMASTER_OUTPUT_DIR" is kept as its model'
_HELP_S: Final = 60.0
_HELP_OPTION: Final = re.compile(r"^[\s│*]*(?:-\w,\s+)?--([A-Za-z][\w.-]*)(?:[ =]([^\s,]+))?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ScriptOption:
    """What a script takes on its command line.

    Attributes:
        flag: as a command has it, ``--lr`` or ``lr=``; empty for an argument by its place.
        name: without signs.
        default: None where there is none, or it is not known.
        required: the script does not start without it.
        is_switch: it has no value.
    """

    flag: str
    name: str
    default: Any = None
    required: bool = False
    is_switch: bool = False

    def given(self, value: str) -> str:
        """It with a value, as it stands in a command."""
        return f"{self.flag}{value}" if self.flag.endswith("=") else f"{self.flag} {value}".strip()


@dataclass
class FirstRecipe:
    """What was found out about a script.

    Attributes:
        script: its path below the directory.
        others: scripts that it could have been.
        framework: by what it imports; empty if none is known.
        by: how it reads its options.
        options: those that are known.
        metrics: that are read from what it prints.
        data: paths that it names and that are there, and those that are not.
        notes: what was not found, and what to do.
        recipe: YAML.
    """

    script: str
    others: list[str] = field(default_factory=list)
    framework: str = ""
    by: str = ""
    options: list[ScriptOption] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    data: dict[str, bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    recipe: str = ""


def first_recipe(directory: Path, script: str | None, *, may_run: bool, name: str = "") -> FirstRecipe:
    """Look at a directory, and write a recipe for it.

    Args:
        directory: of the code.
        script: below it; None looks for one.
        may_run: run it with ``--help`` where its text does not say which options it has.
        name: of the recipe; that of the directory without.

    Raises:
        UsageError: there is no script, or what runs it is not known.
    """
    others: list[str] = []
    if script is None:
        if not (scripts := scripts_in(directory)):
            raise UsageError(f"{directory}: there is no script", _without_script(directory))
        script, *others = scripts
    path = directory / script
    with fails_as(str(path), "Name a script in this directory."):
        source = path.read_text(encoding="utf-8", errors="replace")
    found = FirstRecipe(script, others)
    if path.suffix != ".py" and (command := _other_command(path, script)):
        found.notes.append(_KEPT)
        found.recipe = _recipe(name or directory.name, [command])
        return found
    hint = "Name another script, or make it executable (`chmod +x`) if it says by itself what runs it."
    with fails_as(f"{path} is no Python", hint, on=(SyntaxError, ValueError)):
        tree = ast.parse(source)
    modules = set(_imported(tree))
    found.framework = next((name for name, its in _FRAMEWORKS.items() if modules & set(its)), "")
    found.by, found.options = _options(tree, path, modules)
    if not found.options and found.by in _ONLY_HELP:
        _ask_for_help(found, directory, may_run=may_run)
    elif not found.by:
        found.notes.append("it takes no options that were found; what it needs may be set by `env`")
    found.metrics = sorted({name for line in _printed(tree) for name in prints(line)})
    found.data = {each: (directory / each).exists() for each in _paths(tree)}
    _note_metrics(found, modules, tree)
    _write(found, directory, tree, name or directory.name)
    return found


def _without_script(directory: Path) -> str:
    notebooks = sorted(each.name for each in directory.glob("*.ipynb"))
    if notebooks:
        return f"`jupyter nbconvert --to script {shlex.quote(notebooks[0])}` makes one of a notebook."
    return "Name one: trainmaster init SCRIPT. What is not Python, R, Julia or bash has to be executable."


def _other_command(path: Path, script: str) -> str:
    """What runs a script that is not Python's; empty if that is not known."""
    if program := _OTHERS.get(path.suffix):
        return f"{program} {shlex.quote(script)}"
    return f"./{shlex.quote(script)}" if os.access(path, os.X_OK) else ""


def options_in(source: str, path: Path | None = None) -> list[ScriptOption]:
    """What a script takes on its command line, as far as its text says; none of what is no Python.

    Args:
        source: the text.
        path: of it, beside which Hydra's configuration lies; None looks at nothing else.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    return _options(tree, path, set(_imported(tree)))[1]


def scripts_in(directory: Path) -> list[str]:
    """Scripts that may be meant, the likeliest first."""
    ranked = []
    paths = sorted([*directory.glob("*.py"), *directory.glob("*/*.py")])
    for path in paths or sorted(each for each in directory.glob("*") if each.suffix in _OTHERS):
        name = str(path.relative_to(directory))
        if any(part.startswith((".", "test_")) or part in _NOT_OURS for part in Path(name).parts):
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        starts = "__main__" in source or "add_argument" in source or "configurator.py" in source
        likely = next((at for at, word in enumerate(_LIKELY) if path.stem.startswith(word)), len(_LIKELY))
        ranked.append((likely, not starts, len(Path(name).parts), name))
    best = sorted(ranked)
    return [each[-1] for each in best if not each[1]] or [each[-1] for each in best]


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _options(tree: ast.Module, path: Path | None, modules: set[str]) -> tuple[str, list[ScriptOption]]:
    """How a script reads its options, and which those are."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    arguments = [_option(call) for call in calls if _called(call) == "add_argument"]
    if arguments:
        return "argparse", [each for each in arguments if each is not None]
    clicked = [call for call in calls if _called(call) in ("option", "argument") and "click" in modules]
    if clicked:
        return "click", [each for each in map(_option, clicked) if each is not None]
    if flags := list(_of_flags(calls)):
        return "absl", flags
    if "hydra" in modules:
        main = next(
            (call for call in calls if _called(call) == "main" and _keyword(call, "config_name")), None
        )
        return "Hydra", _of_hydra(path, main) if path else []
    for name in _ONLY_HELP:
        if name in modules or any(_called(call) == name for call in calls):
            return name, []
    if any(_called(call) == "exec" and "configurator" in ast.unparse(call) for call in calls):
        return "configurator.py", list(_of_assignments(tree))
    if "ArgumentParser" in ast.unparse(tree) or "argparse" in modules:
        return "argparse", []
    return "", []


def _option(call: ast.Call) -> ScriptOption | None:
    texts = [_literal(each) for each in call.args]
    flags = [each for each in texts if isinstance(each, str)]
    long = next((each for each in flags if each.startswith("--")), flags[0] if flags else "")
    if not long:
        return None
    long = long.partition("/")[0]  # click: --flag/--no-flag
    action, is_flag = _keyword(call, "action"), _keyword(call, "is_flag")
    is_positional = not long.startswith("-")
    return ScriptOption(
        "" if is_positional else long,
        long.lstrip("-"),
        _keyword(call, "default"),
        bool(_keyword(call, "required")) or (is_positional and _keyword(call, "nargs") not in ("?", "*")),
        bool(is_flag) or (isinstance(action, str) and action.startswith("store_")),
    )


def _of_flags(calls: list[ast.Call]) -> Iterator[ScriptOption]:
    """Flags of absl, and of TensorFlow 1, which had the same."""
    marks = [call for call in calls if re.fullmatch("mark_flags?_as_required", _called(call))]
    words = [each for call in marks for each in ast.walk(call) if isinstance(each, ast.Constant)]
    required = [each.value for each in words]
    for call in calls:
        _, is_flag, kind = _called(call).partition("DEFINE_")
        name, default = ([_literal(each) for each in call.args[:2]] + [None, None])[:2]
        if is_flag and isinstance(name, str):
            is_required = name in required or bool(_keyword(call, "required"))
            default = _keyword(call, "default") if default is None else default
            yield ScriptOption(f"--{name}", name, default, is_required, is_switch=kind in ("bool", "boolean"))


def _of_hydra(path: Path, main: ast.Call | None) -> list[ScriptOption]:
    """Scalars at the top of the configuration that `hydra.main` names."""
    if main is None:
        return []
    place, name = _keyword(main, "config_path") or ".", _keyword(main, "config_name")
    file = path.parent / str(place) / str(name)
    file = file if file.suffix in (".yaml", ".yml") else file.with_name(f"{file.name}.yaml")
    if not file.is_file():
        return []
    try:
        content = parsed_yaml(file.read_text(encoding="utf-8"))
    except ValueError:
        return []
    return list(_flattened(content, "")) if isinstance(content, dict) else []


def _flattened(content: dict[Any, Any], above: str) -> Iterator[ScriptOption]:
    for key, value in content.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and key != "hydra":
            yield from _flattened(value, f"{name}.")
        elif isinstance(value, str | int | float | bool):
            yield ScriptOption(f"{name}=", name, value, required=value == "???")


def _of_assignments(tree: ast.Module) -> Iterator[ScriptOption]:
    """Constants at the top of a script whose options are those (nanoGPT's way)."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = _literal(node.value)
            if isinstance(value, str | int | float | bool):
                yield ScriptOption(f"--{node.targets[0].id}=", node.targets[0].id, value)


def _ask_for_help(found: FirstRecipe, directory: Path, *, may_run: bool) -> None:
    command = f"python {shlex.quote(found.script)}{' fit' * (found.by == 'LightningCLI')} --help"
    if not may_run:
        found.notes.append(f"its options are read by {found.by}: `{command}` shows them (--yes has it asked)")
        return
    words = [sys.executable, *shlex.split(command)[1:]]
    try:
        done = subprocess.run(
            words,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_HELP_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        found.notes.append(f"`{command}` did not end within {_HELP_S:.0f} s")
        return
    shown = _HELP_OPTION.findall(done.stdout)
    names = dict.fromkeys(name for name, _ in shown if not name.endswith("help"))
    ours = sorted(names, key=lambda name: name.startswith("trainer."))  # of Lightning: after the model's
    found.options = [ScriptOption(f"--{name}", name) for name in ours]
    if not found.options:
        last = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1][:200]
        found.notes.append(f"`{command}` shows no options here: {last}")


def _printed(tree: ast.AST) -> Iterator[str]:
    """Lines that a script prints, with a number for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in _PRINTS:
            line = " ".join(filter(None, map(_sample, node.args)))
            if _called(node) == "info":  # logging fills in what stands behind the text
                line = _FILLED_IN.sub("0.5", line)
            yield _COUNTED.sub(r"\g<1>3", line)


def _sample(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_sample(each) if isinstance(each, ast.Constant) else "0.5" for each in parts)
        case ast.Call(func=ast.Attribute(value=text, attr="format")):
            return re.sub(r"\{[^}]*\}", "0.5", _sample(text))
        case ast.BinOp(left=text, op=ast.Mod()):
            return _FILLED_IN.sub("0.5", _sample(text))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sample(left) + _sample(right)
        case _:
            return "0.5"


def _paths(tree: ast.AST) -> Iterator[str]:
    """Paths of data that stand in a script, and files that it reads by their names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 100:
            text = node.value
            if "/" in text and _A_PATH.fullmatch(text) and _OF_DATA.search(text):
                yield text.rstrip("/")
        elif isinstance(node, ast.Call) and _called(node) in _LOADS and node.args:
            name, mode = _literal(node.args[0]), _literal(node.args[1]) if len(node.args) > 1 else "r"
            if isinstance(name, str) and _A_PATH.fullmatch(name) and str(mode).startswith("r"):
                yield name


def _note_metrics(found: FirstRecipe, modules: set[str], tree: ast.AST) -> None:
    logged = modules & {"lightning", "pytorch_lightning", "tensorboard", "tensorboardX", "wandb", "mlflow"}
    if any(map(says_how_good, found.metrics)) or "SummaryWriter" in ast.unparse(tree):
        return
    if logged:
        found.notes.append(f"no loss was found in what it prints; {', '.join(sorted(logged))} may write some")
    else:
        found.notes.append(
            "it prints no loss or accuracy that was found here: write to TRAINMASTER_METRICS, or set "
            r"metrics: {pattern: 'loss (?P<loss>\S+)'}"
        )


def _write(found: FirstRecipe, directory: Path, tree: ast.AST, called: str) -> None:
    """The recipe, with notes on what it leaves open."""
    words, data, parameters = [f"python {shlex.quote(found.script)}"], {}, {}
    if "get_ipython(" in ast.unparse(tree):
        words = [f"ipython {shlex.quote(found.script)}"]
        found.notes.append("it calls get_ipython, as exported notebooks do: IPython has to be installed")
    if found.by == "LightningCLI":
        words += ["fit", '--trainer.default_root_dir "$TRAINMASTER_OUTPUT_DIR"']
    words += ['hydra.run.dir="$TRAINMASTER_OUTPUT_DIR"'] if found.by == "Hydra" else []
    keeps = found.by in ("Hydra", "LightningCLI")
    for each in found.options:
        if each.is_switch:
            continue
        path = str(each.default or "")
        if each.name.rpartition(".")[2] in _RATES and isinstance(each.default, int | float):
            parameters[re.sub(r"\W", "_", each.name)] = each.default
            words.append(each.given("{{" + re.sub(r"\W", "_", each.name) + "}}"))
        elif _CHECKPOINT.fullmatch(each.name):
            words.append(each.given('"$TRAINMASTER_CHECKPOINT_DIR"'))
            keeps = True
        elif _OUTPUT.fullmatch(each.name):
            words.append(each.given('"$TRAINMASTER_OUTPUT_DIR"'))
            keeps = True
        elif _SAVE.fullmatch(each.name) and Path(path).suffix:
            words.append(each.given(f'"$TRAINMASTER_OUTPUT_DIR/{Path(path).name}"'))
            keeps = True
        elif _DATA.fullmatch(each.name) and path and (directory / path).is_dir():
            if _size(directory / path) > _LARGE_BYTES or path.startswith(".."):
                data["data"] = {"dir": path}
                words.append(each.given('"$TRAINMASTER_DATA_DATA"'))
        elif each.required:
            found.notes.append(f"it needs {each.flag or each.name}, which is not in the command yet")
    for path, is_there in found.data.items():
        if path.startswith("../") and "data" not in data and "/" not in path[3:]:
            if is_there:
                data["data"] = {"dir": path, "at": path}
            else:
                found.notes.append(f"it reads {path}, which is not there: each task may download it")
        elif not is_there and not path.startswith("../"):
            found.notes.append(f"it names {path}, which is not there")
    command = [" ".join(words)]
    if not keeps and "TRAINMASTER_OUTPUT_DIR" not in _texts(tree):
        saved = sorted(set(_saved(tree)))
        if saved:
            # `|| true`: many scripts save only with an option, and of a gang only the first member does.
            command.append(f'mv {" ".join(map(shlex.quote, saved))} "$TRAINMASTER_OUTPUT_DIR" || true')
            found.notes.append(
                f"it writes {', '.join(saved)} beside itself: `mv` takes that to where models are kept"
            )
        else:
            found.notes.append(f"no option says where it saves: {_KEPT}")
    lines = [_recipe(called, command).rstrip()]
    listed = json.dumps({key: [value] for key, value in parameters.items()})
    lines += [f"    parameters: {listed}"] * bool(parameters)
    lines += [f"    data: {json.dumps(data, ensure_ascii=False)}"] * bool(data)
    if found.framework:
        lines += [f"    # framework: {found.framework}  # by its imports; for `distributed`"]
    known = [each.flag or each.name for each in found.options]
    if known:
        more = f" and {len(known) - 20} more" if len(known) > 20 else ""
        lines += [f"    # its options ({found.by}): {' '.join(known[:20])}{more}"]
    found.recipe = "\n".join(lines) + "\n"


def _recipe(called: str, command: list[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", called).strip("-._") or "first"
    lines = [json.dumps(each, ensure_ascii=False) for each in command]
    text = lines[0] if len(lines) == 1 else "".join(f"\n      - {each}" for each in lines)
    return f"name: {name}\nexperiments:\n  train:\n    command:{' ' * (len(lines) == 1)}{text}\n"


def _saved(tree: ast.AST) -> Iterator[str]:
    """Files that a script saves under a name of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in _SAVES:
            yield from (each for each in map(_literal, node.args) if isinstance(each, str) and "." in each)


def _size(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            total += path.lstat().st_size
            if total > _LARGE_BYTES:
                return total
    return total


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _keyword(call: ast.Call, name: str) -> Any:  # noqa: ANN401 - whatever stands there
    return next((_literal(each.value) for each in call.keywords if each.arg == name), None)


def _literal(node: ast.expr) -> Any:  # noqa: ANN401 - whatever stands there
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _texts(tree: ast.AST) -> set[str]:
    """Texts that stand in a script."""
    return {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
