"""Write docs/openapi.json: what the server's REST interface is."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from trainmaster.api.rest.app import make_app, make_state
from trainmaster.service import Service

with tempfile.TemporaryDirectory() as directory:
    service = Service.from_environment({"TRAINMASTER_HOME": directory})
    document = make_app(make_state(service, {})).openapi()
    service.close()
document["info"]["version"] = "1"
path = Path(__file__).parent.parent / "docs" / "openapi.json"
path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
