"""Reports what an HDFS has of the experiment's data, as its NameNode counts it: files and bytes."""

import json
import os
from pathlib import Path
from urllib.request import urlopen

host, _, folder = os.environ["TRAINMASTER_DATA_IMAGES_WEBHDFS"].removeprefix("webhdfs://").partition("/")
with urlopen(f"http://{host}/webhdfs/v1/{folder}?op=GETCONTENTSUMMARY", timeout=60) as answer:
    found = json.load(answer)["ContentSummary"]
with Path(os.environ["TRAINMASTER_METRICS"]).open("a") as file:
    kept = {name: found[name] for name in ("length", "spaceConsumed")}
    file.write(json.dumps({"files": found["fileCount"], **kept}) + "\n")
