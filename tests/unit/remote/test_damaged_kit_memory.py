"""The kits that are remembered, damaged: what they are, or they are found out anew."""

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings

from hostile_bytes import changed_json
from trainmaster.remote import kit_memory
from trainmaster.remote.kit import Kit, Layer

KIT = Kit(
    (3, 11),
    "soabi",
    Layer("packages", "n", (), 5),
    Layer("source", "m", (("a", Path("/dev/null")),), 5),
    ("p",),
    ("i",),
)
DOCUMENT = {
    "places": [("/dev/null", kit_memory._stamp("/dev/null"))],
    "kits": [json.loads(json.dumps(kit_memory._row(KIT)))],
}


@settings(max_examples=60)
@given(changed_json(json.loads(json.dumps(DOCUMENT))))
def test_any_memory(data):
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "kits.json"
        path.write_bytes(data)
        found = kit_memory._recall(path)
        for kit in found or ():
            assert all(
                isinstance(text, str) for text in (kit.soabi, *kit.pins, *kit.imports, kit.source.name)
            )
            assert all(isinstance(file, Path) for _, file in kit.source.files)
        path.write_text(json.dumps(DOCUMENT))
        assert kit_memory._recall(path) == (KIT, KIT)
