"""What all pages share: templates, how numbers are shown, whole pages and parts of them."""

from __future__ import annotations

import datetime
import hashlib
import math
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from trainmaster.service.users.caller import Caller
from trainmaster.spec.labels import selecting
from trainmaster.spec.metric_names import in_order
from trainmaster.spec.units import dollars, format_bytes, format_duration, left_text, worked_s

HERE: Final = Path(__file__).parent
#: Rows of a list on one page.
PAGE_ROWS: Final = 50
#: The end of the year 9999: no calendar here goes further.
_LAST_S: Final = 253_402_300_800.0


def duration(seconds: float | None) -> str:
    """How long."""
    return "–" if seconds is None else format_duration(seconds)


def usd(amount: float | None) -> str:
    """US dollars."""
    return "–" if amount is None else dollars(amount)


def when(at: float | None, clock: str = "%H:%M") -> str:
    """Unix seconds as date and time, as long as page.js shows it in the reader's zone: nothing moves then.

    >>> print(when(0.0), when(None), when(1e17))
    <time datetime="1970-01-01T00:00:00Z">Thu, Jan 1, 1970, 00:00<span class="zone"> UTC</span></time> – –
    """
    if at is None or not at < _LAST_S:
        return "–"
    date, today = datetime.datetime.fromtimestamp(at, datetime.UTC), datetime.datetime.now(datetime.UTC)
    year = "" if date.year == today.year else f"{date.year}, "
    day = "" if date.date() == today.date() else f"{date:%a, %b} {date.day}, {year}"
    said = Markup('<time datetime="{}">{}<span class="zone"> UTC</span></time>')
    return said.format(f"{date:%Y-%m-%dT%H:%M:%SZ}", day + date.strftime(clock))


def exactly(at: float) -> str:
    """The same, with seconds."""
    return when(at, "%H:%M:%S")


def number(value: object) -> str:
    """Numbers with four digits, everything else unchanged."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    return str(value)


def with_code(text: str) -> Markup:
    """A message with what stands in backquotes as code, and a page that it names as a link.

    >>> str(with_code("`a` <b>")), str(with_code("The page /team#logins says how."))
    ('<code>a</code> &lt;b&gt;', 'The page <a href="/team#logins">/team#logins</a> says how.')
    """
    found = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\bpage (/[a-z#-]+)", r'page <a href="\1">\1</a>', found))  # noqa: S704 - it is escaped


def for_readers(hint: str, caller: Caller | None = None) -> str:
    """A hint without what only a shell, its variables or the docs' files are good for; whole for an admin.

    What `trainmaster` lists stands on a page of its own: for that no admin is asked.

    >>> for_readers("Choose another one. `trainmaster status` lists the runs.")
    'Choose another one.'
    >>> for_readers("`trainmaster status` lists the runs."), for_readers("Run `aws configure`.")
    ('', 'Ask an admin of this server.')
    >>> for_readers('Say what it may cost at most: `"max_usd": 20`.'), for_readers("See docs/rest.md.")
    ('Say what it may cost at most.', '')
    """
    if caller is not None and "admin" in caller.scopes:
        return hint
    plain = re.sub(r': `"\w+": [^`]+`', "", hint)  # what a program sends
    said = [each for each in re.split(r"(?<=[.!?]) +", plain) if not _OF_A_SHELL.search(each)]
    is_listed = bool(_LISTED.match(hint)) or hint.startswith("See docs/")
    return " ".join(said) or ("Ask an admin of this server." if hint and not is_listed else "")


def for_waiting(words: str, caller: Caller | None = None) -> str:
    """What a run waits for, without how an admin changes that at a shell; whole for an admin.

    >>> for_waiting("$1 of $2, and an admin raises it: `trainmaster budget --monthly 5`; else it goes on")
    '$1 of $2, and an admin raises it; else it goes on'
    """
    if caller is not None and "admin" in caller.scopes:
        return words
    return re.sub(r": `trainmaster [^`]*`|, and `trainmaster [^`]*` raises it", "", words)


def for_a_form(message: str) -> str:
    """What is wrong in a form: not what somebody at a shell or a program would do about it.

    >>> for_a_form("no code; send it. By REST that is `PUT /api/v1/code/SHA256`.")
    'no code; send it.'
    >>> for_a_form("there is no run 'x'; `trainmaster status` lists the runs")
    "there is no run 'x'"
    >>> for_a_form("a script: `trainmaster convert FILE` makes one of it; docs/migrate.md has more")
    'a script: the button below makes one of it'
    """
    message = message.replace("`trainmaster convert FILE` makes", "the button below makes")
    message = re.sub(r"; docs/[^;]*", "", message)
    first, *more = re.split(r"(?<=[.!?]) +", _LISTED.sub("", message))
    return " ".join([first, *(each for each in more if not _OF_A_SHELL.search(each))])


def as_title(text: str) -> str:
    """A message as a title.

    >>> as_title("there is no run 'x'")
    "There is no run 'x'"
    >>> as_title("digits@3 is gone")
    'digits@3 is gone'
    >>> as_title("the server's disk is full")
    "The server's disk is full"
    """
    first = text.split(maxsplit=1)[:1]
    # A name, such as digits@production, stays.
    if first and not first[0].rstrip(",.:;").replace("'", "").isalpha():
        return text
    return text[:1].upper() + text[1:]


#: As a hint of its own, or behind a mistake in a recipe.
_LISTED: Final = re.compile(r"(; )?`(trainmaster|GET) [^`]+` (lists|shows)\b[^;]*")
_OF_A_SHELL: Final = re.compile(
    r"`(trainmaster|aws|gcloud|az|pip|apt-get|GET|POST|PUT)\b|docs/|\b[A-Z]+_[A-Z_]+\b|--[a-z]|~/"
)
#: How ends are shown: as what (its shape and colour), and the word for it.
_ENDS: Final = {
    "SUCCEEDED": ("ok", "succeeded"),
    "UNTIL": ("ok", "succeeded early"),
    "PRUNED": ("cut", "pruned"),
    "CANCELLED": ("off", "cancelled"),
    "DRAINED": ("off", "not needed"),
    "SKIPPED": ("off", "skipped"),
    "USER_ERROR": ("bad", "failed"),
    "OOM": ("bad", "out of memory"),
    "TIMEOUT": ("bad", "timed out"),
    "BUDGET": ("bad", "over budget"),
    "NODE_LOST": ("bad", "machine lost"),
    "GATE_REFUSED": ("bad", "refused by its gate"),
}
#: The same in the title of a tab.
_MARKS: Final = {"ok": "✓", "bad": "✕", "run": "●", "wait": "○", "off": "–", "cut": "▸"}


def look_of(state: str, reason: str | None = None, *, waits: bool = False) -> tuple[str, str]:
    """How a state is shown, the same on all pages: as what, and its word.

    What holds no machine and does no work waits, whatever it is called inside.

    >>> look_of("RUNNING"), look_of("RUNNING", waits=True), look_of("DONE", "OOM")
    (('run', 'running'), ('wait', 'waiting'), ('bad', 'out of memory'))
    """
    if reason:
        return _ENDS.get(reason, ("bad", reason.replace("_", " ").lower()))
    if state in ("WAITING", "ACQUIRING") or (waits and state == "RUNNING"):
        return "wait", "waiting"
    return "run", state.replace("_", " ").lower()


def mark_of(kind: str) -> str:
    """The mark of a state in the title of a tab."""
    return _MARKS[kind]


_TEMPLATES: Final = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
_TEMPLATES.filters |= {
    "duration": duration,
    "usd": usd,
    "left_of": left_text,
    "when": when,
    "exactly": exactly,
    "number": number,
    "size": format_bytes,
    "worked": worked_s,
}
_TEMPLATES.filters |= {"in_order": in_order, "selecting": selecting}
_TEMPLATES.filters |= {"with_code": with_code, "as_title": as_title, "for_readers": for_readers}
_TEMPLATES.filters |= {"for_waiting": for_waiting}


@cache
def asset(name: str) -> str:
    """The path of a static file, which changes when the file does: browsers keep it."""
    return f"/static/{name}?{hashlib.sha256((HERE / 'static' / name).read_bytes()).hexdigest()[:10]}"


_TEMPLATES.globals |= {"asset": asset, "look_of": look_of, "mark_of": mark_of}


def page(request: Request, template: str, http: int = 200, **values: Any) -> Response:  # noqa: ANN401
    """A template with values, and with ``caller`` (None before the login) and ``path``."""
    who = getattr(request.state, "caller", None)
    html = _TEMPLATES.get_template(template).render(caller=who, path=request.url.path, **values)
    return Response(html, http, media_type="text/html", headers={"cache-control": "no-store"})


def part(template: str, **values: Any) -> str:  # noqa: ANN401
    """A template of a part of a page."""
    return _TEMPLATES.get_template(template).render(**values)


def is_part(request: Request) -> bool:
    """Whether htmx asks, for a part of the page that it has."""
    return request.headers.get("hx-request") == "true"


def redirect(path: str) -> RedirectResponse:
    """To another page of ours, after a form was sent."""
    return RedirectResponse(path, 303)
