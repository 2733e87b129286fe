"""What a recipe needs from outside: told before anything is dialled, rented or started if it is not there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlencode, urlsplit

from trainmaster.artifacts.code_tree import CodeTree, NotSent, not_sent_note
from trainmaster.control.checks.preflight import (
    check_all,
    check_data_parts,
    check_directories,
    check_urls,
    check_volumes,
)
from trainmaster.control.task.layout import Home
from trainmaster.lazy import regex
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.data_source import DataSource
from trainmaster.spec.errors import PublishError, TrainmasterError, UsageError, fails_as, one_line
from trainmaster.spec.recipe_parts import named_places
from trainmaster.spec.template import placeholders

if TYPE_CHECKING:
    from trainmaster.executors.containers.engines import ContainerEngine

#: A server that has not answered by then is not waited for: the task will ask it again.
_ANSWER_S: Final = 10.0
#: So many files of the code are looked through for a metric, and no larger ones.
_MOST_FILES: Final = 1000
_MOST_BYTES: Final = 1 << 20
_ESTIMATOR: Final = regex(r"\b(?:tf|tensorflow)\.(?:estimator|contrib)\b")
_TENSORFLOW: Final = regex(r"tensorflow/tensorflow:(\d+)\.(\d+)")
#: A call that saves, and a name without a folder that is given to it.
_SAVES: Final = regex(r"\.(?:save\w*|dump|to_csv|to_parquet)\([^()\n]*?['\"]([\w.-]+\.\w+)['\"]")
_REFUSALS: Final = (401, 403, 404, 410)
_CORRECT: Final = "Correct the URL."
_HUB: Final = "registry-1.docker.io"
_KINDS: Final = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_CHALLENGE: Final = regex(r'(\w+)="([^"]*)"')


def check_inputs(
    recipe: Recipe,
    home: Home,
    environ: Mapping[str, str],
    values: Mapping[str, Mapping[str, str]],
    *,
    measures: bool = False,
    asks_urls: bool = True,
) -> list[str]:
    """Look for the code, data, images and the object store of a run, without bringing anything here.

    Args:
        recipe: of any provider.
        home: where volumes and models lie.
        environ: the caller's.
        values: secrets, by experiment.
        measures: tasks run on this machine, and nothing is kept: a store that takes nothing is only a note.
        asks_urls: False where others have sent it: this machine may reach what they may not.

    Returns:
        Notes for the user: what does not answer here, but may where the tasks run.

    Raises:
        UsageError: naming all that is not there, each with its key; nothing was started.
    """
    not_sent: list[NotSent] = []
    scripts: list[str] = []
    check_all(
        lambda: check_data_parts(recipe),
        lambda: check_directories(recipe),
        lambda: not_sent.extend(not_sent_of(recipe, home)),
        lambda: check_urls(recipe),
        lambda: scripts.extend(missing_script_notes(recipe, home.nothing_sent)),
    )
    notes = [*recipe.notes, *scripts, *([note] if (note := not_sent_note(not_sent)) else [])]
    if any(each.framework or each.container for each in recipe.experiments.values()):
        from trainmaster.control.checks.framework_notes import framework_notes

        notes += framework_notes(recipe, environ)  # the network is asked if nothing is wrong on this machine
    here = measures or capabilities_of(recipe.provider).is_here
    if measures:
        try:
            check_store(home)
        except UsageError as error:
            notes.append(f"a run would be refused: {one_line(error)}")
    check_all(
        *([] if measures else [lambda: check_store(home)]),
        lambda: check_volumes(recipe, home.store_url),
        *([lambda: notes.extend(_check_answers(recipe, home, values, here=here))] if asks_urls else []),
        *([lambda: notes.extend(_check_images(recipe, environ, here=here))] if asks_urls else []),
    )
    return [*notes, *_script_notes(recipe), *_overwriting_notes(recipe), *_unused_parameters(recipe)]


def _unused_parameters(recipe: Recipe) -> Iterator[str]:
    """Parameters without a placeholder, where others have one: a slip, unless the script asks for them."""
    code = recipe.directory / Path(recipe.code).expanduser()
    for name, experiment in recipe.experiments.items():
        named = {each.name for each in placeholders(experiment.command)}
        unused = [each for each in experiment.parameters if each not in named]
        script = code / (_first_script(experiment.command) or "-")
        text = experiment.command
        if script.is_file() and script.stat().st_size <= _MOST_BYTES:
            text += script.read_text(errors="replace")
        if len(unused) < len(experiment.parameters) and "TRAINMASTER_PARAM_" not in text:
            for each in unused:
                only = f"only TRAINMASTER_PARAM_{each.upper()} tells tasks of it"
                yield f"experiments.{name}: no {{{{{each}}}}} is in its command: {only}"


def _overwriting_notes(recipe: Recipe) -> Iterator[str]:
    """Of experiments whose tasks save under the same name, in the working directory that they share."""
    code = recipe.directory / Path(recipe.code).expanduser()
    for name, experiment in recipe.experiments.items():
        script = code / (_first_script(experiment.command) or "-")
        if experiment.serve or len(experiment.tasks(0)) == 1 or not script.is_file():
            continue
        text = script.read_text(errors="replace") if script.stat().st_size <= _MOST_BYTES else ""
        saved = sorted(set(_SAVES.findall(text)))
        if saved and "TRAINMASTER_OUTPUT_DIR" not in text:
            yield (
                f"experiments.{name}: its tasks share one working directory, and {script.name} writes "
                f"{', '.join(saved[:3])} there: each overwrites what another one has left. Give each its "
                'own: `code=$PWD; cd "$TRAINMASTER_OUTPUT_DIR"` before the script, which is "$code/..." then'
            )


def _script_notes(recipe: Recipe) -> Iterator[str]:
    """What the scripts in the code seem to do, and what will hardly come of it; a slip, perhaps."""
    code, experiments = recipe.directory / Path(recipe.code).expanduser(), recipe.experiments
    staged = {name for name, each in experiments.items() if "hdfs" in {of.stage for of in each.data.values()}}
    is_read = staged or any(each.ends_at or each.launcher == "tensorflow" for each in experiments.values())
    if not is_read or not code.is_dir():
        return
    files = [file for file in islice(code.rglob("*.py"), _MOST_FILES) if file.stat().st_size <= _MOST_BYTES]
    text = "\n".join(file.read_text(errors="replace") for file in files)
    for name, experiment in experiments.items():
        until, pattern = experiment.ends_at, experiment.metrics_pattern
        known = f"{experiment.command}\n{pattern or ''}\n{text}"
        if until is not None and text and until.metric not in known:
            yield (
                f"experiments.{name}.{until.key}: neither the command nor the code names {until.metric}; it "
                "ends nothing unless that is reported: "
                f"trainmaster.report({until.metric}=...), or metrics.pattern"
            )
        if name in staged and "hdfs://" in known and "TRAINMASTER_OUTPUT_HDFS" not in known:
            yield (
                f"experiments.{name}: what its script writes to hdfs:// is lost with the cluster, but for "
                "what is below TRAINMASTER_OUTPUT_HDFS: that becomes part of the model"
            )
        image = _TENSORFLOW.search(experiment.container or "")
        lacks = image is None or (int(image[1]), int(image[2])) >= (2, 16)
        brings = experiment.setup is not None or (experiment.container is not None and image is None)
        if experiment.launcher == "tensorflow" and _ESTIMATOR.search(text) and lacks and not brings:
            yield (
                f"experiments.{name}: the code uses tf.estimator, which TensorFlow has no more from 2.16 on; "
                "take container: docker.io/tensorflow/tensorflow:1.15.5-py3 (or 2.15.0), and chief: worker"
            )


def check_store(home: Home) -> None:
    """Refuse an object store elsewhere that cannot be written: a model that cannot be kept is worth nothing.

    Raises:
        UsageError: it cannot be reached, or refuses our credentials.
    """
    from trainmaster.objects import ObjectStore

    with fails_as("TRAINMASTER_STORE", on=(PublishError, UsageError)):
        store = ObjectStore(home.store_url)
        if not store.is_local:  # a directory is made when the run is written down
            store.check_writable()


def not_sent_of(recipe: Recipe, home: Home) -> list[NotSent]:
    """What .gitignore leaves out of the code, but for what the recipe names as data anyway.

    Raises:
        UsageError: there is no such code, it is over 100 MB, or it has what data are to be shown as.
    """
    from trainmaster.artifacts.snapshot import check_code

    excluded = (home.root, home.cache, *recipe.secret_files)
    tree = check_code(recipe.code, recipe.directory, exclude=excluded, include=recipe.include)
    _check_places(recipe, tree)
    found = tree.not_sent()
    if not found:
        return []
    code = recipe.directory / Path(recipe.code).expanduser()
    named = [
        Path(os.path.abspath(recipe.directory / Path(source.directory).expanduser()))  # noqa: PTH100
        for experiment in recipe.experiments.values()
        for source in experiment.data.values()
        if source.directory is not None
    ]
    places = {each: Path(os.path.abspath(code / each.path)) for each in found}  # noqa: PTH100
    return [each for each, place in places.items() if not any(map(place.is_relative_to, named))]


def _check_places(recipe: Recipe, tree: CodeTree) -> None:
    """Refuse ``at: PATH`` where the code has something: the task would, after those before it."""
    taken = {*tree.folders, *(name for name, _ in tree.links), *(file.path for file in tree.files)}
    wrong = [
        (
            ("experiments", experiment.name, "data", name, "at"),
            UsageError(
                f"{source.at} is in the code already",
                f"Choose another path, or copy what you need from $TRAINMASTER_DATA_{name.upper()} there.",
            ),
        )
        for experiment in recipe.experiments.values()
        for name, source in experiment.data.items()
        if source.at is not None and os.path.normpath(source.at) in taken
    ]
    if wrong:
        raise recipe.refused(wrong)


def _check_answers(
    recipe: Recipe, home: Home, values: Mapping[str, Mapping[str, str]], *, here: bool
) -> Iterator[str]:
    """Ask for the first bytes of what URLs name."""
    for experiment in recipe.experiments.values():
        known = {**experiment.env, **values.get(experiment.name, {})}
        for name, source in experiment.data.items():
            if source.url is None:
                continue
            from trainmaster.control.attempt.data_urls import url_directory

            if url_directory(home.cache, source.url, source.sha256).is_dir():
                continue
            where = f"experiments.{experiment.name}.data.{name}.url"
            try:
                _ask(source, source.url_with(known))
            except (UsageError, _NoAnswerError) as error:
                if here or isinstance(error, UsageError):
                    raise UsageError(f"{where}: {error.args[0]}", error.hint) from error
                # Machines elsewhere may have another network than this one.
                yield f"{where}: cannot be read from this machine: {one_line(error)}"


class _NoAnswerError(TrainmasterError):
    """The store does not answer just now, or not on this machine."""


def _ask(source: DataSource, url: str) -> None:
    """Ask for what a URL names.

    Raises:
        UsageError: there is no such thing, or it refuses us.
        _NoAnswerError: it cannot be asked.
    """
    import http.client
    import urllib.error

    from trainmaster.control.attempt.data_urls import open_web
    from trainmaster.objects import ObjectStore

    scheme = urlsplit(url).scheme
    if scheme == "file":  # machines elsewhere get it from this one
        if not (path := Path(unquote(urlsplit(url).path))).exists():
            raise UsageError(f"there is no {path}", _CORRECT)
    elif scheme in ("http", "https"):
        try:
            try:
                open_web(url, _ANSWER_S, "HEAD").close()
            except urllib.error.HTTPError:  # not every server knows HEAD; signed URLs are for GET
                open_web(url, _ANSWER_S).close()
        except urllib.error.HTTPError as error:
            if error.code in _REFUSALS:
                raise UsageError(f"{source.url}: {error.code} {error.reason}", _CORRECT) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error or type(error).__name__
            raise _NoAnswerError(f"{source.url}: {reason}", "Is it there? Look at the URL.") from error
    else:
        try:
            found = next(iter(ObjectStore(url).list()), None)
        except PublishError as error:
            from trainmaster.control.decide.store_verdicts import NoticedAt, StoreVerdict, verdict
            from trainmaster.objects.errors import trouble_of

            is_fault = verdict(NoticedAt.CHECK, trouble_of(error)) is StoreVerdict.USER_ERROR
            kind = UsageError if is_fault else _NoAnswerError
            raise kind(error.args[0], error.hint) from error
        if found is None:
            raise UsageError(f"{source.url}: there are no objects below", _CORRECT)


def _check_images(recipe: Recipe, environ: Mapping[str, str], *, here: bool) -> Iterator[str]:
    """Look for the images of containers, here and at their registries."""
    wanted = {e.container: e.name for e in recipe.experiments.values() if e.container is not None}
    if not wanted:
        return
    from trainmaster.executors.containers.engines import find_engine
    from trainmaster.objects.errors import FullStoreError

    try:
        engine = find_engine(environ)
    except UsageError:
        if here:
            raise
        engine = None
    for image, name in wanted.items():
        where = f"experiments.{name}.container"
        if engine is not None and engine.image(image) is not None:
            continue  # machines elsewhere that find it nowhere are sent ours
        if here and engine is not None:
            if not _is_offered(engine, image):  # it says little; the registry may ask for a login
                with fails_as(where, on=(UsageError, FullStoreError)):
                    engine.pull(image, set())
            continue
        if image.startswith("/"):
            yield f"{where}: this file must be on the machines"
            continue
        found = look_for_image(image)
        if found.is_missing and all(
            capabilities_of(each).rents for each in named_places(recipe)
        ):  # hosts of one's own may have it
            raise UsageError(
                f"{where}: {found.words}",
                "Check its name, push it, or build it on this machine: then it is sent to the others.",
            )
        if found.words:
            yield f"{where}: {found.words}; it must be on the machines, or they must be let in there"


def _is_offered(engine: ContainerEngine, image: str) -> bool:
    """Whether a registry says that it has an image."""
    from trainmaster.executors.containers.engines import APART

    if engine.kind in APART:
        return engine.ask("manifest", "inspect", image)[0] == 0
    return not image.startswith("/") and not look_for_image(image).words


#: A file that Python is to run, after options without a value; no placeholder, variable, glob or quote.
_STARTS: Final = regex(
    r"(?:(?:exec|[A-Za-z_]\w*=[^\s$`]*)\s+)*python[\d.]*(?:\s+-[uBOIEsSbv]+)*\s+([\w./-]+\.py)(?=\s|$)"
)
#: A comment may hold what ends a statement.
_COMMENT: Final = regex(r"^[ \t]*#.*$", re.MULTILINE)
#: What neither makes files nor goes elsewhere.
_HARMLESS: Final = regex(r"(?:set\s|export\s|[A-Za-z_]\w*=\S*$|echo\s[^>|]*$|:|true$)")
_ENDS: Final = regex(r"\n|;|&&")


def missing_script_notes(recipe: Recipe, nothing_sent: Path | None = None) -> Iterator[str]:
    """Notes on scripts that the code has not, and that something else may bring.

    Args:
        recipe: as it was read.
        nothing_sent: its directory if it came without code; see `Home.nothing_sent`.

    Raises:
        UsageError: nothing could bring some; all of these are named.
    """
    wrong = []
    lacks, hint = "in the code", "A path begins at the code's top."
    if recipe.directory == nothing_sent:
        lacks = "as no code was sent with the recipe"
        hint = (
            "Send the code, too, in the tab Code of the page New run. "
            "By REST that is `PUT /api/v1/code/SHA256`; "
            'a quote does without it where it measures nothing (`"measure": false`).'
        )
    for name, script, is_sure in missing_scripts(recipe):
        key = ("experiments", name, "command")
        what = f"there is no {script} {lacks}"
        if is_sure:
            wrong.append((key, UsageError(what, hint)))
        else:
            brings = "setup, the image, data or an earlier experiment"
            yield f"{'.'.join(key)}: {what}; unless {brings} bring it, the task will fail"
    if wrong:
        raise recipe.refused(wrong)


def missing_scripts(recipe: Recipe) -> Iterator[tuple[str, str, bool]]:
    """Scripts that are not there: the experiment, the path, and whether nothing else could bring it.

    Only the first thing that a command does is judged: what comes later may find what was made before it.
    """
    code = recipe.directory / Path(recipe.code).expanduser()
    if not code.is_dir():  # what a wheel or a repository has is not known here
        return
    for name, experiment in recipe.experiments.items():
        script = _first_script(experiment.command)
        if script and not (code / script).exists() and not _leads_out(script):
            yield name, script, not _may_be_brought(experiment)


def _first_script(command: str) -> str:
    r"""The file that a command starts with.

    >>> _first_script("set -e; export A=1\npython -u train.py --lr {lr}"), _first_script("python -m train")
    ('train.py', '')
    >>> _first_script("cd src && python train.py"), _first_script("python {{script}}.py")
    ('', '')
    """
    for statement in map(str.strip, _ENDS.split(_COMMENT.sub("", command).replace("\\\n", " "))):
        if statement and not _is_harmless(statement):
            found = _STARTS.match(statement)
            return found[1] if found else ""
    return ""


def _is_harmless(statement: str) -> bool:
    """Whether nothing has changed after it. A substitution runs anything; half a text in quotes is none."""
    is_whole = not any(statement.count(quote) % 2 for quote in "'\"")
    return is_whole and "$(" not in statement and "`" not in statement and bool(_HARMLESS.match(statement))


def _leads_out(script: str) -> bool:
    """Whether it lies beside the code: an absolute path may be of an image, or of a node."""
    return script.startswith("/") or ".." in PurePosixPath(script).parts


def _may_be_brought(experiment: Experiment) -> bool:
    """Whether setup, roles, an image, data in the code or an earlier experiment could have put it there."""
    is_placed = any(source.at is not None for source in experiment.data.values())
    brings = (experiment.setup, experiment.container, experiment.roles)
    is_later = bool(experiment.depends_on)  # on one machine they work in the same directory
    return is_placed or is_later or "||" in experiment.command or any(each is not None for each in brings)


class Reference(NamedTuple):
    """An image's name in its parts."""

    host: str
    name: str
    version: str


class ProbeResult(NamedTuple):
    """Result of a look at one input.

    Attributes:
        is_missing: there certainly is no such image for whoever has no login.
        words: what is wrong; empty if it is there.
    """

    is_missing: bool
    words: str


def split_reference(image: str) -> Reference:
    """The registry, the repository and the tag or digest that an image's name means.

    >>> split_reference("python:3.12")
    Reference(host='registry-1.docker.io', name='library/python', version='3.12')
    >>> split_reference("localhost:5000/me/x@sha256:12")
    Reference(host='localhost:5000', name='me/x', version='sha256:12')
    """
    rest, _, digest = image.partition("@")
    host, slash, path = rest.partition("/")
    if not slash or not (set(".:") & set(host) or host == "localhost"):
        host, path = "docker.io", rest
    path, _, tag = path.partition(":")
    if host in ("docker.io", "index.docker.io"):
        host, path = _HUB, path if "/" in path else f"library/{path}"
    return Reference(host, path, digest or tag or "latest")


def look_for_image(image: str) -> ProbeResult:
    """Ask the registry of an image whether it has it."""
    import http.client
    import urllib.error

    from trainmaster.spec.addresses import is_loopback

    host, name, version = split_reference(image)
    scheme = "http" if is_loopback(host) else "https"
    url = f"{scheme}://{host}/v2/{name}/manifests/{version}"
    try:
        try:
            _open(url)
        except urllib.error.HTTPError as error:
            if error.code != http.client.UNAUTHORIZED:
                raise
            _open(url, _token(error.headers.get("WWW-Authenticate", "")))
    except urllib.error.HTTPError as error:
        if error.code == http.client.NOT_FOUND:
            return ProbeResult(True, f"{host} has no image {name}:{version}")
        if error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            # The hub says so of all that it does not have, too.
            return ProbeResult(
                host == _HUB, f"{host} has no image {name}:{version}, or only for those who log in"
            )
        return ProbeResult(False, f"{host} cannot say whether it has {name}:{version} ({error.code})")
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        return ProbeResult(False, f"{host} cannot be asked for {name}:{version} ({reason})")
    return ProbeResult(False, "")


def _open(url: str, token: str = "") -> bytes:
    import urllib.request

    request = urllib.request.Request(url, headers={"Accept": _KINDS})  # noqa: S310 - http(s) only
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310
        return bytes(answer.read(_MOST_BYTES))


def _token(challenge: str) -> str:
    """What lets anybody in, as the registry says; empty if it wants something else."""
    fields = dict(_CHALLENGE.findall(challenge))
    realm = fields.pop("realm", "")
    if not challenge.lower().startswith("bearer") or not realm.startswith(("https://", "http://")):
        return ""
    asked = {key: fields[key] for key in ("service", "scope") if key in fields}
    answer = json.loads(_open(f"{realm}?{urlencode(asked)}"))
    return str(answer.get("token") or answer.get("access_token") or "") if isinstance(answer, dict) else ""
