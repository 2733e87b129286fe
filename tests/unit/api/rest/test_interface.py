"""The interface that programs rely on only grows."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from trainmaster.api.rest.app import make_app, make_state
from trainmaster.control.task.layout import Home
from trainmaster.service import Service

ROOT = Path(__file__).parents[4]
DOCUMENT = ROOT / "docs" / "openapi.json"


def test_nothing_is_taken_out_of_the_interface(tmp_path):
    """What docs/openapi.json has, clients rely on; `python scripts/dump_openapi.py` adds to it."""

    def entries(document):
        for path, methods in document["paths"].items():
            for method, found in methods.items():
                yield method, path
                yield from ((method, path, each["in"], each["name"]) for each in found.get("parameters", ()))
        for name, schema in document["components"]["schemas"].items():
            yield from ((name, key) for key in schema.get("properties", {}))

    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/a.db")
    service = Service(home)
    app = make_app(make_state(service, {}))
    released, now = set(entries(json.loads(DOCUMENT.read_text()))), set(entries(app.openapi()))
    assert released <= now
    assert now <= released, "not in docs/openapi.json yet"
    service.close()


def test_the_reference_for_people_says_the_same():
    page = runpy.run_path(str(ROOT / "scripts" / "dump_openapi.py"))["page"]
    shown = page(json.loads(DOCUMENT.read_text()))
    assert (ROOT / "docs" / "rest.md").read_text() == shown, "python scripts/dump_openapi.py writes it"
    assert "### `POST /runs`" in shown
    assert "- `runs` (body, needed; array)" in shown
