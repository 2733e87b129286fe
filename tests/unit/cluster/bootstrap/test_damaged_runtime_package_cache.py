"""The kits that are remembered, damaged: what they are, or they are found out anew."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from hypothesis import given, settings

from hostile_bytes import changed_json
from trainmaster.cluster.bootstrap import runtime_package
from trainmaster.cluster.bootstrap.runtime_package import RuntimeLayer, RuntimePackage

KIT = RuntimePackage(
    (3, 11),
    "soabi",
    RuntimeLayer("packages", "n", (), 5),
    RuntimeLayer("source", "m", (("a", Path("/dev/null")),), 5),
    ("p",),
    ("i",),
)
DOCUMENT = {
    "places": [("/dev/null", runtime_package._stamp("/dev/null"))],
    "kits": [json.loads(json.dumps(asdict(KIT), default=str))],
}


@settings(max_examples=60)
@given(changed_json(json.loads(json.dumps(DOCUMENT))))
def test_any_memory(data):
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "kits.json"
        path.write_bytes(data)
        found = runtime_package._recall(path)
        for package in found or ():
            assert all(
                isinstance(text, str)
                for text in (package.soabi, *package.pins, *package.imports, package.source.name)
            )
            assert all(isinstance(file, Path) for _, file in package.source.files)
        path.write_text(json.dumps(DOCUMENT))
        assert runtime_package._recall(path) == (KIT, KIT)
