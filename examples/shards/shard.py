"""One part of the preprocessing: real text in, filtered and tokenised paragraphs out as TFRecord.

The text is Python's own manual, which ships with every interpreter (`pydoc_data.topics`).
"""

import argparse
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import tfrecord

MIN_WORDS = 8


def paragraphs(part: int, of: int) -> Iterator[tuple[str, str]]:
    """(topic, paragraph) of the topics that belong to this part."""
    for number, name in enumerate(sorted(topics)):
        if number % of == part:
            for text in re.split(r"\n\s*\n", topics[name]):
                if len(text.split()) >= MIN_WORDS and not text.startswith("   "):  # prose, not listings
                    yield name, " ".join(text.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--of", type=int, default=1)
    arguments = parser.parse_args()
    output = Path(os.environ.get("TRAINMASTER_OUTPUT_DIR", "output"))
    output.mkdir(parents=True, exist_ok=True)

    def examples() -> Iterator[bytes]:
        for name, text in paragraphs(arguments.part, arguments.of):
            words = re.findall(r"[a-z]+|\d+", text.lower())
            tokens = [zlib.crc32(word.encode()) % 50_000 for word in words]  # a hashed vocabulary
            yield tfrecord.example(topic=name, text=text, tokens=tokens)

    path = output / f"text-{arguments.part:05d}-of-{arguments.of:05d}.tfrecord"
    count = tfrecord.write(path, examples())
    print(f"{path.name}: examples={count} bytes={path.stat().st_size}")


if __name__ == "__main__":
    main()
