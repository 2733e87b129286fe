"""The page of a new run: what is filled in becomes a recipe, which is quoted and sent."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Form, Request, UploadFile
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, Field, ValidationError

from trainmaster.advisor.papers.policy_quote import POLICIES
from trainmaster.api.rest.hidden_places import TYPED
from trainmaster.api.rest.registry import registry_of
from trainmaster.api.rest.runs import planned
from trainmaster.api.rest.state import Runs, ServerState, State, Submitter, asks_places
from trainmaster.artifacts.code_sources import as_git
from trainmaster.control.attempt.data_sources import BUILT_IN
from trainmaster.control.checks.framework_notes import framework_notes
from trainmaster.db.ledger import ALL
from trainmaster.providers.capabilities import BUILT_IN as PROVIDERS
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.loading import NAMED as CATALOGUES
from trainmaster.service import Quote
from trainmaster.service.conversion.converting import is_command_line
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.endpoints.serving_recipe import batch_recipe, must_be_servable, serving_recipe
from trainmaster.service.first_recipe import ScriptOption, scripts_in
from trainmaster.service.models.starting_models import with_versions
from trainmaster.service.places.quote import quote_in_places
from trainmaster.service.places.settling import settled_place
from trainmaster.service.places.table import PlaceTable
from trainmaster.service.quotes.quote_ask import QuoteAsk
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.service.quotes.quote_requests import QUOTE
from trainmaster.service.quotes.worker_counts import with_fewest
from trainmaster.service.renting.cheapest import plans_of
from trainmaster.service.teams.team_budget import OWNER, Budgets
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.service.teams.team_volumes import TeamVolumes
from trainmaster.service.uploads.code_uploads import CodeUploads
from trainmaster.service.uploads.git_code import GitCode
from trainmaster.service.users.caller import Caller
from trainmaster.spec import Recipe
from trainmaster.spec.configuration import configured_rows
from trainmaster.spec.errors import TrainmasterError, UsageError, fails_as
from trainmaster.spec.foreign import foreign_kind
from trainmaster.spec.recipe_parts import parts_by_place
from trainmaster.spec.recipe_source import own_configuration
from trainmaster.spec.units import parse_dollars, parse_duration
from trainmaster.sweeps.plugins import PRUNERS, SAMPLERS
from trainmaster.web.recipe_form import (
    RecipeForm,
    Typed,
    amount_of,
    key_of,
    mistakes_of,
    new_key,
    unix_lines,
    without_triggers,
    wrong_fields,
)
from trainmaster.web.rendering import is_part, page, part, redirect
from trainmaster.web.workflows import begin

router = APIRouter(include_in_schema=False)
STRATEGIES: Final = ("allreduce", "ps-async", "ps-sync")
FRAMEWORKS: Final = ("pytorch", "tensorflow", "jax", "mpi", "ray", "spark", "mxnet", "plain")
#: A main script that is looked for in the code; others are the user's own affair.
_SCRIPT: Final = re.compile(r"(?!.*\.\.)\w[\w./-]*\.py")
_COUNT: Final = re.compile(r"[0-9]{1,18}")
_ALSO: Final = 3
#: As of `POST /runs`.
_MOST_KEEP_S: Final = 86_400


class NewRunPage(RecipeForm):
    """All of the page: what is filled in, the recipe, what it may cost, if it waits, its key.

    ``was`` has the fields when they and the recipe said the same, as JSON: what differs was filled in since.
    The ``catalogue`` is the one that a quote takes prices from; empty is the provider's. ``bandwidth`` and
    ``measurements`` are CSV that a quote takes. Machines are kept warm for ``keep``.
    """

    recipe: Annotated[str, AfterValidator(unix_lines)] = ""
    was: Typed = ""
    max_usd: Typed = ""
    wait: Typed = ""
    keep: Typed = ""
    catalogue: Typed = ""
    bandwidth: Typed = ""
    measurements: Typed = ""
    key: Typed = Field(default_factory=new_key)

    def fields(self) -> RecipeForm:
        """The fields alone."""
        return RecipeForm(**self.model_dump(include=set(RecipeForm.model_fields)))

    def fields_before(self) -> RecipeForm:
        """The fields when they and the recipe said the same.

        Raises:
            UsageError: somebody has changed what the page keeps.
        """
        if not self.was:
            return self.fields()
        try:
            return RecipeForm.model_validate_json(self.was)
        except ValidationError as error:
            found = error.errors()[0]
            key = ".".join(["was", *map(str, found["loc"])])
            what = f"{key}: {found['msg']}"
            raise UsageError(what, "Load this page again, or leave `was` empty.") from None

    def merged(self) -> NewRunPage:
        """With the recipe in which the fields that have changed are written, and the fields that it has now.

        Raises:
            UsageError: the recipe or ``was`` cannot be read, or a field cannot be written into it.
        """
        was = self.fields_before()
        recipe = self.fields().written(self.recipe, was)
        kept = {"digest": self.digest, "most_workers": self.most_workers}
        fields = (RecipeForm.of(recipe) or self.fields()).model_copy(update=kept)
        return self.model_copy(
            update={**fields.model_dump(), "recipe": recipe, "was": fields.model_dump_json()}
        )

    def request(self) -> RunRequest:
        """What is to be run.

        Raises:
            UsageError: the amount is none.
        """
        most_usd = amount_of(self.max_usd)
        if most_usd is None and self.budget:
            with suppress(ValueError):  # what it cannot be is said where the recipe is read
                most_usd = parse_dollars(self.budget)
        code = self.digest or None
        return RunRequest(self.recipe, code, None, most_usd, wait=bool(self.wait), keep_s=self.keep_s)

    @property
    def keep_s(self) -> float:
        """For how long machines are kept warm.

        Raises:
            UsageError: it is no duration, or longer than a day.
        """
        with fails_as("keep rented machines warm", "Leave it empty to give them back.", on=ValueError):
            seconds = parse_duration(self.keep) if self.keep else 0.0
        if seconds > _MOST_KEEP_S:
            raise UsageError(
                f"keep rented machines warm: {self.keep!r} is longer than a day", "Write 24h or less."
            )
        return seconds

    def ask(self) -> QuoteAsk:
        """What is to be quoted.

        Raises:
            UsageError: the number of workers is none.
        """
        if self.most_workers and not _COUNT.fullmatch(self.most_workers):
            raise UsageError(f"{self.most_workers!r} is no number of workers", "Write one, such as 8.")
        return QuoteAsk(
            self.recipe,
            self.digest or None,
            policy="" if self.policy == QUOTE else self.policy,
            catalogue=self.catalogue or None,
            parameter_server=self.server or None,
            max_workers=int(self.most_workers) if self.most_workers else None,
            bandwidth=self.bandwidth or None,
            measurements=self.measurements or None,
            keep_s=self.keep_s,
        )


class NewRunWithFile(NewRunPage):
    """The same as a browser without JavaScript sends it, with code in a file."""

    file: UploadFile | None = None


Filled = Annotated[NewRunPage, Form()]


@router.get("/new")
def new(
    request: Request,
    found: Runs,
    state: State,
    caller: Submitter,
    again: str = "",
    model: str = "",
    files: str = "",
    serve: str = "",
    workflow: str = "",
) -> Response:
    """Nothing filled in yet; or the recipe of an earlier run, of a workflow, or one that uses a model."""
    if workflow and (team := request.query_params.get("team")):  # what is sent here is for the team in use
        return redirect(f"/workflows/{quote(workflow)}?team={quote(team)}")
    is_shared = state.submissions.is_shared(caller)
    provider = _providers(state, caller)[0] if is_shared else ""
    recipe, mistake, sent, last = RecipeForm(provider=provider).text(), None, "", ""
    digest: str | None = None
    if again:
        recipe = without_triggers(found.recipe(again))
        with suppress(TrainmasterError):  # it is of a directory that is not here: code is sent again
            digest = state.submissions.code_of(caller, again)
        sent = f"The code is that of {again}." if digest else ""
    elif workflow:
        about = state.workflows(caller).show(workflow)
        recipe, digest = about["recipe"], about["code"]
        sent = f"The code is that of {workflow}." if digest else ""
    elif model:
        recipe = batch_recipe(model, files, provider, _files_of(state, caller, found, model))
    elif serve:
        names = _files_of(state, caller, found, serve)
        if is_shared:  # services of others run on rented machines only
            rented = (each for each in _providers(state, caller) if not capabilities_of(each).is_here)
            provider = next(rented, provider)
        recipe = serving_recipe(serve, provider=provider, model_files=names)
        try:
            must_be_servable(names)
        except UsageError as error:  # code that is sent may have a serve.py
            mistake = UsageError(error.args[0], "Send code with a serve.py, or write another command.")
    else:
        last = next((run["run"] for run in found.page(1)["runs"]), "")
    form = page_of(recipe, digest=digest or "")
    return show_form(request, state, caller, form, mistake, sent=sent, last=last, serves=bool(serve))


def page_of(recipe: str, **more: str) -> NewRunPage:
    """The page that shows a recipe."""
    return NewRunPage(**{**(RecipeForm.of(recipe) or RecipeForm()).model_dump(), "recipe": recipe, **more})


def _files_of(state: ServerState, caller: Caller, found: TeamRuns, model: str) -> list[str]:
    """Paths in a registered model, or in that of a task."""
    run, experiment, task = model.split("/") if model.count("/") == 2 else ("", "", "")
    if not task.isdecimal():
        version = registry_of(state, caller).version(model)
        run, experiment, task = version["run"], version["experiment"], str(version["task"])
    _, manifest = found.manifest(run, experiment, int(task))
    return [entry.path for entry in manifest.files]


@router.post("/new/recipe")
def make_recipe(request: Request, state: State, caller: Submitter, form: Filled) -> Response:
    """The recipe with what was filled in, and what is wrong with it; for our script as JSON."""
    mistake: TrainmasterError | None = None
    notes: list[str] = []
    try:
        form, notes = _merged(state, caller, form)
        notes += framework_notes(state.submissions.read(caller, form.request()), state.environ)
    except TrainmasterError as error:
        mistake = error
    if is_part(request):
        return _as_json(caller, form, mistake, notes, takes=_takes(state, caller, form))
    return show_form(request, state, caller, form, mistake)


def _as_json(
    caller: Caller,
    form: NewRunPage,
    mistake: TrainmasterError | None,
    notes: Sequence[str] = (),
    http: int = 200,
    takes: Mapping[str, Any] | None = None,
) -> Response:
    """What the page becomes; ``takes`` is what the script takes, None where it was not looked at again."""
    checked = part("checked.html", **_checked(mistake, caller, notes, form.recipe))
    fields = form.model_dump(include=set(RecipeForm.model_fields))
    told = {"checked": checked, "wrong": wrong_fields(mistake)}
    told |= {} if takes is None else {"takes": part("takes.html", **takes)}
    answer = {"recipe": form.recipe, "was": form.was, "fields": fields, **told}
    return JSONResponse(answer, http, headers={TYPED: "1"})


@router.post("/new/estimate")
def estimate(request: Request, state: State, caller: Submitter, form: Filled) -> Response:
    """What is known of the job while it is filled in, for our script; nothing is measured or rented."""
    made: Quote | None = None
    why: list[str] = []
    try:
        recipe, cap_usd = state.submissions.read(caller, form.request()), amount_of(form.budget)
    except TrainmasterError:  # said where the recipe is
        return Response(status_code=204)
    try:
        with state.submissions.processor_limit(caller):
            made = _estimated(state, caller, recipe, form.keep_s)
    except TrainmasterError as error:  # what it starts from, and its place: nothing else has looked at them
        why = mistakes_of(error, caller)
    return page(request, "estimate.html", made=made, why=why, cap=cap_usd)


def _estimated(state: ServerState, caller: Caller, recipe: Recipe, keep_s: float) -> Quote:
    """What is known of a recipe."""
    service = state.service.of_team(caller.team or None)
    recipe = with_versions(service, recipe)
    seen = PlaceTable(service, recipe, state.environ, QuoteOptions(keep_s=keep_s))
    settled = settled_place(service, recipe, state.environ, lambda _: None, seen, state.places)
    if settled.budget is not None and settled.budget.total_usd is not None:
        plans_of(service, with_fewest(settled), state.environ)  # a cap that pays for no start is refused
    if len(parts_by_place(settled)) > 1:
        return quote_in_places(settled, seen, state.places)
    return seen.quote_of(settled, seen.quote_settled)


@router.post("/new/convert")
def make_of_foreign(request: Request, state: State, caller: Submitter, form: Filled) -> Response:
    """Makes a recipe of a file of another tool that stands in its place, and says what is wrong with it."""
    mistake: TrainmasterError | None = None
    try:
        made = state.submissions.convert(caller, form.recipe, "job")["recipe"]
        kept = form.model_dump(include={"digest", "max_usd", "wait", "keep", "catalogue", "key"})
        form = page_of(made, **kept)
        state.submissions.read(caller, form.request())
    except TrainmasterError as error:
        mistake = error
    return show_form(request, state, caller, form, mistake)


@router.post("/new/dry-run")
@asks_places
def show_plan(request: Request, state: State, caller: Submitter, form: Filled) -> Response:
    """What a run would do, in the words of what does it; nothing of it is done."""
    try:
        form, _ = _merged(state, caller, form)
        plan = planned(state, caller, form.request())
        return page(request, "dry_run.html", plan=plan, filled=form.model_dump())
    except TrainmasterError as error:
        return show_form(request, state, caller, form, error, 422)


@router.post("/new/git")
def fetch(request: Request, state: State, caller: Submitter, form: Filled) -> Response:
    """Fetches the code from a public repository: what is run is what it is now."""
    try:
        source = as_git(form.code)
        if source is None:
            raise UsageError(f"{form.code!r} is no git URL", "Write https://HOST/PROJECT@REF.")
        code, commit = GitCode(CodeUploads(state.service.home, caller.team)).add(
            source.url, source.ref or "HEAD"
        )
    except TrainmasterError as error:
        return show_form(request, state, caller, form, error, 422)
    sent = f"{source.shown} is here, as of {commit[:12]}."
    return _with_code(request, state, caller, form, code, sent)


@router.post("/new/code")
def take(
    request: Request,
    state: State,
    caller: Submitter,
    form: Annotated[NewRunWithFile, Form(media_type="multipart/form-data")],
) -> Response:
    """Takes code that is small, from a browser without JavaScript."""
    plain = NewRunPage(**form.model_dump(exclude={"file"}))
    try:
        if form.file is None or not (name := form.file.filename):
            raise UsageError("no file was chosen", "Choose one, then send it.")
        with tempfile.NamedTemporaryFile() as received:
            shutil.copyfileobj(form.file.file, received)
            received.flush()
            code = CodeUploads(state.service.home, caller.team).add(Path(received.name), name)
    except TrainmasterError as error:
        return show_form(request, state, caller, plain, error, 422)
    return _with_code(request, state, caller, plain, code, f"{name} is sent.")


def _with_code(
    request: Request, state: ServerState, caller: Caller, form: NewRunPage, code: str, sent: str
) -> Response:
    mistake: TrainmasterError | None = None
    notes: list[str] = []
    form = form.model_copy(update={"code": "", "digest": code})
    try:
        form, notes = _merged(state, caller, form)
        state.submissions.read(caller, form.request())
    except TrainmasterError as error:
        mistake = error
    return show_form(request, state, caller, form, mistake, sent=sent, notes=notes)


def _merged(state: ServerState, caller: Caller, form: NewRunPage) -> tuple[NewRunPage, list[str]]:
    """What was filled in, in the recipe; of code that has just come the likeliest script is the main one.

    Returns:
        The page, and what is to be said of the script.

    Raises:
        UsageError: see `NewRunPage.merged`.
    """
    was = form.fields_before().digest if form.was else ""
    form = form.merged()
    if not form.digest or not _SCRIPT.fullmatch(form.main):
        return form, []
    try:
        code = CodeUploads(state.service.home, caller.team).find(form.digest)
    except TrainmasterError:  # who reads the recipe says it
        return form, []
    if (code / form.main).is_file():
        return form, []
    first, *others = [*scripts_in(code), ""]
    if not first:
        return form, [f"The code that was sent has no `{form.main}`."]
    if was == form.digest:  # somebody has named it since
        return form, [f"The code that was sent has no `{form.main}`; it has `{first}`."]
    form = form.model_copy(update={"main": first}).merged()
    also = ", ".join(f"`{each}`" for each in others[:_ALSO] if each)
    return form, [f"`{first}` is run; write another Main script if that should be {also}."] if also else []


@router.post("/new/quote")
def ask_quote(request: Request, state: State, caller: Submitter, form: Filled) -> Response:
    """Has it quoted."""

    def ask(form: NewRunPage) -> Response:
        return redirect(f"/quotes/{state.quotes.send(caller, QUOTE, form.ask())['id']}")

    return _sent(request, state, caller, form, ask)


@router.post("/new")
@asks_places
def send(request: Request, state: State, caller: Submitter, form: Filled) -> Response:
    """Runs it, or keeps it as a workflow."""

    def run(form: NewRunPage) -> Response:
        asked = form.request()
        return begin(request, state, caller, asked, key_of(form.key, asked))

    return _sent(request, state, caller, form, run)


def _sent(
    request: Request,
    state: ServerState,
    caller: Caller,
    form: NewRunPage,
    act: Callable[[NewRunPage], Response],
) -> Response:
    """Does it with what was filled in last. Our script is told where to go, or what is wrong."""
    try:
        form, _ = _merged(state, caller, form)
        answer = act(form)
    except TrainmasterError as error:
        if is_part(request):
            return _as_json(caller, form, error, http=422)
        return show_form(request, state, caller, form, error, 422)
    if is_part(request) and "location" in answer.headers:
        return Response(status_code=204, headers={"hx-redirect": answer.headers["location"]})
    return answer


def show_form(
    request: Request,
    state: ServerState,
    caller: Caller,
    form: NewRunPage,
    mistake: TrainmasterError | None = None,
    http: int = 200,
    sent: str = "",
    notes: Sequence[str] = (),
    last: str = "",
    serves: bool = False,
) -> Response:
    """The page, with what is filled in, which code was ``sent``, and the ``last`` run to begin from.

    What ``serves`` a model has no end: it is not to be quoted first.
    """
    if not form.was:
        form = form.model_copy(update={"was": form.fields().model_dump_json()})
    database = state.service.database
    budgets = Budgets(database.read, database.clock_s())
    choices: dict[str, Any] = {
        "last": last,
        "serves": serves,
        "configured": configured_rows(own_configuration(state.environ)),
        "sent": sent or ("Code was sent." if form.digest else ""),
        "is_shared": state.submissions.is_shared(caller),
        "has_budget": any(budgets[whose].monthly_usd is not None for whose in (caller.team or OWNER, ALL)),
        "may_keep": _may_keep(state, caller),
        "providers": _providers(state, caller),
        "policies": POLICIES,
        "catalogues": [name for name in CATALOGUES if name != "local"],
        "sources": [*volumes_of(state, caller), *sorted(BUILT_IN)],
        "strategies": STRATEGIES,
        "frameworks": FRAMEWORKS,
        "samplers": SAMPLERS.built_in,
        "pruners": PRUNERS.built_in,
        **_takes(state, caller, form),
    }
    choices |= _checked(mistake, caller, notes, form.recipe)
    return page(request, "new.html", http, form=form, **choices)


def _takes(state: ServerState, caller: Caller, form: NewRunPage) -> dict[str, Any]:
    """What the main script takes on its command line, and what of that it does not start without."""
    options: list[ScriptOption] = []
    if form.digest and _SCRIPT.fullmatch(form.main):
        with suppress(TrainmasterError):  # what is wrong with it is said elsewhere
            found = state.submissions.options_of(caller, form.digest, form.main)
            options = [ScriptOption(**each) for each in found]
    given = {word.partition("=")[0] for word in form.arguments.split()}
    given |= {f"--{line.partition(':')[0].strip()}" for line in form.parameters.splitlines()}
    missing = [
        each.flag for each in options if each.required and each.flag and each.flag.rstrip("=") not in given
    ]
    return {"options": options, "missing": missing, "main": form.main}


def _may_keep(state: ServerState, caller: Caller) -> bool:
    with suppress(UsageError):
        state.submissions.check_keeping(caller.team, caller.wallet, 1.0)
        return True
    return False


def _providers(state: ServerState, caller: Caller) -> list[str]:
    return [name for name in PROVIDERS if state.submissions.may_run_on(caller, name)]


def volumes_of(state: ServerState, caller: Caller) -> list[str]:
    """Names of volumes that the caller may use."""
    try:
        return TeamVolumes(state.service.home, state.service.database, caller).names()
    except TrainmasterError:  # a store that is away: the name can be typed
        return []


def _checked(
    error: TrainmasterError | None, caller: Caller, notes: Sequence[str], recipe: str
) -> dict[str, Any]:
    foreign = foreign_kind(recipe) or ("a command line" if is_command_line(recipe) else "")
    return {"mistakes": mistakes_of(error, caller), "notes": notes, "foreign": foreign}
