"""Write docs/openapi.json and docs/rest.md: the server's REST interface, for programs and for people."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# REST reference

Every route of a server, and what it takes. All paths are below `/api/v1`. A token needs the
[scope](server/teams.md#tokens) `read` for GET and `run` for all else, where nothing else is said.

```console
$ curl -H "Authorization: Bearer tm_..." http://127.0.0.1:8470/api/v1/runs
```

How to begin, and what errors look like: [How does a program send a run?](server/programs.md)
For programs: [openapi.json](openapi.json). Written by `scripts/dump_openapi.py`.

`wait_s` is a number in the query: answer when there is news, or after so many seconds; at once if 32 answers
wait, and without it.
"""
METHODS = ("get", "post", "put", "patch", "delete", "head")


def page(document: Mapping[str, Any]) -> str:
    """The reference as Markdown: routes by their tag, each with what it takes.

    Args:
        document: of OpenAPI 3.1.
    """
    routes = [
        (route.get("tags", ["others"])[0], path.removeprefix("/api/v1"), method, route)
        for path, methods in document["paths"].items()
        for method, route in methods.items()
        if method in METHODS
    ]
    lines = [HEAD]
    told: dict[str, str] = {}
    for tag in dict.fromkeys(tag for tag, *_ in routes):
        lines.append(f"## {tag.capitalize()}\n")
        for _, path, method, route in (each for each in routes if each[0] == tag):
            scope = route.get("x-scope", "none")
            said = "" if scope == ("read" if method == "get" else "run") else f" Scope: `{scope}`."
            lines += [f"### `{method.upper()} {path}`\n", route["description"].strip() + said + "\n"]
            name, body = _body(document, route)
            if len(body) > 4 and name in told:
                body = [f"- a body as that of {told[name]}"]
            anchor = f"{method}-{re.sub(r'[^a-z-]', '', path)}"
            told.setdefault(name, f"[`{method.upper()} {path}`](#{anchor})")
            if taken := [*_parameters(route), *body]:
                lines += [*_joined(taken), ""]
    return "\n".join(lines).rstrip() + "\n"


def _joined(lines: list[str]) -> Iterator[str]:
    """Those of which nothing is said but where they stand and what they are, on one line."""
    bare: dict[str, list[str]] = {}
    for line in lines:
        if found := re.fullmatch(r"- (`[^`]+`) \((.*)\)", line):
            bare.setdefault(found[2], []).append(found[1])
        else:
            yield line
    for kind, names in bare.items():
        yield f"- {', '.join(names)} ({kind})"


def _parameters(route: Mapping[str, Any]) -> Iterator[str]:
    for each in route.get("parameters", ()):
        if each["name"] == "wait_s":  # the page's head says what that is
            yield "- `wait_s`"
        elif each["in"] != "path" or each.get("description"):
            yield _line(each["name"], each["in"], each["schema"], each.get("description", ""))


def _body(document: Mapping[str, Any], route: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Its name, and a line for each key."""
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    schema = document["components"]["schemas"][name] if name else {}
    return name, [
        _line(
            key,
            "body" + (", needed" if key in schema.get("required", ()) else ""),
            field,
            field.get("description", ""),
        )
        for key, field in schema.get("properties", {}).items()
    ]


def _line(name: str, where: str, schema: Mapping[str, Any], meaning: str) -> str:
    kind = " or ".join(
        each.get("type", "object")
        for each in schema.get("anyOf", [schema])
        if each.get("type", "object") != "null"
    )
    # What is empty or off needs no word.
    given = f", default `{json.dumps(schema['default'])}`" if schema.get("default") else ""
    return f"- `{name}` ({where}; {kind}{given})" + (f": {meaning}" if meaning else "")


if __name__ == "__main__":
    from trainmaster.api.rest.app import make_app, make_state
    from trainmaster.service import Service

    with tempfile.TemporaryDirectory() as directory:
        service = Service.from_environment({"TRAINMASTER_HOME": directory})
        found = make_app(make_state(service, {})).openapi()
        service.close()
    found["info"]["version"] = "1"
    (DOCS / "openapi.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    (DOCS / "rest.md").write_text(page(found))
