# ruff: noqa: D102
# What the methods of a method mean is said once, in `Method`.
"""Ways of reading that stream chunks in a shuffled order: ours, MosaicML Streaming, WebDataset."""

from __future__ import annotations

import os
import random
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers_method import Method, Read, Seen, at_once, in_threads, one_by_one
from peers_place import Place

WINDOW = 4
BATCH = 32
Sample = tuple[str, Any]


class Stream(Method):
    """Samples in the order of a shuffle, in this process or by the workers of a `DataLoader`.

    Attributes:
        workers: of the loader; 0: in this process, without a loader where batches are not wanted.
        full: a uniform shuffle, instead of one within :data:`WINDOW` chunks.
    """

    whole = True
    shuffle = f"within {WINDOW} chunks"

    def __init__(self, place: Place, name: str, *, workers: int = 0, full: bool = False) -> None:
        super().__init__(place, name)
        self.workers, self.full = workers, full
        if full:
            self.shuffle = "full"

    def samples(self, place: Place, seed: int, share: float) -> Any:
        """An iterable of (name, data), a new epoch each time; torch's if there are workers.

        Args:
            place: where.
            seed: of the shuffle.
            share: how much of the volume the cache may hold.
        """
        raise NotImplementedError

    def loader(self, place: Place, seed: int, share: float, collate: Any, **how: Any) -> Any:
        """Batches of them."""
        from torch.utils.data import DataLoader

        options = {"prefetch_factor": 4, "persistent_workers": True} if self.workers else {}
        return DataLoader(
            self.samples(place, seed, share, **how),
            batch_size=BATCH,
            num_workers=self.workers,
            collate_fn=collate,
            **options,
        )

    def prepare(self) -> None:
        import torch.utils.data

        torch.set_num_threads(1)

    def cold(self, place: Place, seed: int) -> Read:
        from peers_training import collate, note_batch

        def read(seen: Seen) -> None:
            for name, data in self.samples(place, seed, 2.0):
                seen.note(name, data)

        def read_batches(seen: Seen) -> None:
            for batch in self.loader(place, seed, 2.0, collate):
                note_batch(seen, batch)

        return read_batches if self.workers else read


class Ours(Stream):
    """`Volume` natively: by `samples` cold, by `read` warm, by `VolumeLoader` in batches."""

    layout = "volume"
    settings = "known order, prefetch; each chunk verified by its hash when it is fetched"

    def volume(self, place: Place, share: float = 2.0) -> Any:
        from trainmaster.volumes import Volume

        limit_bytes = self.limit_bytes(place, share)
        return Volume.open(f"s3://{place.bucket}/volume", self.cache, limit_bytes=limit_bytes)

    def samples(self, place: Place, seed: int, share: float) -> Iterator[Sample]:
        from trainmaster.volumes.reading import SampleOrder, samples

        volume = self.volume(place, share)
        names = list(volume.paths())
        order = SampleOrder(volume, seed=seed, window=0 if self.full else WINDOW)
        return ((names[row], volume.read(row)) for row in samples(order))

    def loader(self, place: Place, seed: int, share: float, collate: Any, **_: Any) -> Any:
        from trainmaster.volumes.reading import VolumeLoader, VolumeStream

        stream = VolumeStream(
            self.volume(place, share),
            lambda data, path: (path, data),
            seed=seed,
            window=0 if self.full else WINDOW,
        )
        options = {"prefetch_factor": 4, "persistent_workers": True} if self.workers else {}
        return VolumeLoader(stream, BATCH, num_workers=self.workers, collate_fn=collate, **options)

    def warm(self, place: Place, seed: int) -> Read:
        return self.by_row(place, seed, self.volume(place).read)

    def by_row(self, place: Place, seed: int, get: Any) -> Read:
        """Reads rows in a random order."""
        volume = self.volume(place)
        names = self.shuffled(seed)
        return one_by_one(names, get, [volume.row_of(name) for name in names])

    def prepare(self) -> None:
        super().prepare()
        import obstore.store  # noqa: F401
        import pyarrow.parquet  # noqa: F401

        import trainmaster.volumes.reading.datasets
        import trainmaster.volumes.reading.filesystem  # noqa: F401


class OursView(Ours):
    """Warm without a copy."""

    settings = "view: nothing is copied, eight bytes are looked at; the cache of ours"

    @property
    def cache(self) -> Path:
        return self.root.with_name("ours") / "cache"

    def warm(self, place: Place, seed: int) -> Read:
        return self.by_row(place, seed, self.volume(place).view)


class OursAgain(Ours):
    """A node that has been in use: the cache is empty, but its slots are there."""

    settings = "as ours, slots of an earlier cold run used again"

    def start(self, place: Place) -> None:
        if not self.cache.exists():
            super().start(place)

    def cold(self, place: Place, seed: int) -> Read:
        if not any(self.cache.glob("chunks/*/slots")):
            for _ in super().samples(place, seed, 2.0):
                pass
        return super().cold(place, seed)

    def samples(self, place: Place, seed: int, share: float) -> Iterator[Sample]:
        from reading_bench import forget_chunks

        forget_chunks(self.volume(place, share))
        return super().samples(place, seed, share)


class OursFsspec(Ours):
    """`trainmaster://` by path, its order unknown."""

    shuffle = "full"
    settings = "cat_file by path, full shuffle, no known order; cold: 16 threads, 66 at 50 ms"

    def getter(self, place: Place) -> Any:
        """What gives files, or parts of them, by path."""
        import fsspec

        os.environ["TRAINMASTER_CACHE"] = str(self.cache)
        volume = f"s3://{place.bucket}/volume@1"
        there = fsspec.filesystem("trainmaster", volume=volume, skip_instance_cache=True)
        return there.cat_file

    def cold(self, place: Place, seed: int) -> Read:
        return lambda seen: in_threads(self.shuffled(seed), self.getter(place), at_once(place, 16))(seen)

    def warm(self, place: Place, seed: int) -> Read:
        return one_by_one(self.shuffled(seed), self.getter(place))


class WebDataset(Stream):
    """Cold through `pipe:curl` without a cache, which is its quickest; later epochs from tars on the disk."""

    peer = "webdataset"
    layout = "tar"
    settings = (
        "shards shuffled, then a buffer of 4 shards' samples; cold: pipe:curl, nothing kept or verified; "
        "warm and training: cache_dir"
    )

    def prepare(self) -> None:
        super().prepare()
        import webdataset  # noqa: F401

    def urls(self, place: Place) -> list[str]:
        import boto3
        from botocore.config import Config

        client = boto3.client(
            "s3",
            endpoint_url=place.endpoint,
            aws_access_key_id=place.key,
            aws_secret_access_key=place.secret,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
        )
        keys = [f"tar/{number:05}.tar" for number in range(place.shards)]
        signed = [
            client.generate_presigned_url(
                "get_object", Params={"Bucket": place.bucket, "Key": key}, ExpiresIn=86400
            )
            for key in keys
        ]
        return [f"pipe:curl -sfL '{url}'" for url in signed]

    def samples(
        self, place: Place, seed: int, share: float, *, urls: list[str] | None = None, cached: bool = True
    ) -> Any:
        import webdataset

        warnings.filterwarnings("ignore")
        per_shard = len(self.names) / place.shards
        cache: dict[str, Any] = {}
        if cached:
            cache = {"cache_dir": str(self.cache), "url_to_name": _tar_name}
            if share < 1:
                cache["cache_size"] = self.limit_bytes(place, share)
        return webdataset.WebDataset(
            urls or self.urls(place), shardshuffle=place.shards, empty_check=False, seed=seed, **cache
        ).compose(_shuffled_by(int(WINDOW * per_shard / max(self.workers, 1))), _named)

    def cold(self, place: Place, seed: int) -> Read:
        from peers_training import collate, note_batch

        urls = self.urls(place)

        def read(seen: Seen) -> None:
            for name, data in self.samples(place, seed, 2.0, urls=urls, cached=self.filling):
                seen.note(name, data)

        def read_batches(seen: Seen) -> None:
            for batch in self.loader(place, seed, 2.0, collate, urls=urls, cached=False):
                note_batch(seen, batch)

        return read_batches if self.workers else read

    def warm(self, place: Place, seed: int) -> Read:
        def read(seen: Seen) -> None:
            for number, (name, data) in enumerate(samples):
                seen.note(name, data)
                if number & 63 == 0 and seen.over:
                    return

        samples = self.samples(place, seed, 2.0)
        return read


def _tar_name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def _shuffled_by(count: int) -> Any:
    import webdataset

    # `initial` samples are there before the first is given: more of them would be a better shuffle, later.
    return webdataset.shuffle(count, initial=count)


def _named(source: Any) -> Iterator[Sample]:
    for one in source:
        yield f"{one['__key__'].replace('_', '/', 1)}.jpg", one["jpg"]


class MosaicML(Stream):
    """`StreamingDataset`."""

    peer = "mosaicml"
    layout = "mosaicml"
    settings = (
        "py1br in blocks of 4 shards (full: py1e), predownload of 4 shards; xxh64 of each shard verified"
    )

    def prepare(self) -> None:
        super().prepare()
        streaming()

    def samples(self, place: Place, seed: int, share: float) -> Any:
        per_shard = max(
            1, int(len(self.names) * place.shard_bytes / sum(one[0] for one in self.index.values()))
        )
        return _NamedStream.made(
            remote=f"s3://{place.bucket}/mosaicml",
            local=str(self.cache),
            batch_size=BATCH,
            shuffle=True,
            shuffle_seed=seed + 1,
            shuffle_algo="py1e" if self.full else "py1br",
            shuffle_block_size=1 << 18 if self.full else WINDOW * per_shard,
            num_canonical_nodes=1,
            predownload=(WINDOW if share > 1 else 1) * per_shard,
            validate_hash="xxh64",
            cache_limit=self.limit_bytes(place, share) if share < 1 else None,
        )

    def warm(self, place: Place, seed: int) -> Read:
        # What a StreamingDataset has fetched, without its shared memory: that is one training's alone.
        dataset = streaming().LocalDataset(str(self.cache))
        rows = {dataset[row]["name"]: row for row in range(len(dataset))}
        names = self.shuffled(seed)
        return one_by_one(names, lambda row: dataset[row]["data"], [rows[name] for name in names])


class _NamedStream:
    """Gives its samples as pairs, which all others do; made late, because its base is imported late."""

    @staticmethod
    def made(**options: Any) -> Any:
        module = streaming()
        module.base.util.clean_stale_shared_memory()

        class Pairs(module.StreamingDataset):
            def __getitem__(self, at: int) -> Sample:
                one = super().__getitem__(at)
                return one["name"], one["data"]

        dataset = Pairs(**options)
        for stream in dataset.streams:
            # Workers would inherit its connection and read each other's answers, until a minute is over.
            stream._downloader.clean_up()
        return dataset


def streaming() -> types.ModuleType:
    """MosaicML's package, which imports much that reading does not use."""
    for name, classes in (
        ("transformers", ()),
        ("transformers.feature_extraction_utils", ("BatchFeature",)),
        ("transformers.tokenization_utils_base", ("BatchEncoding",)),
        ("transformers.models", ()),
        ("transformers.models.auto", ()),
        ("transformers.models.auto.tokenization_auto", ("AutoTokenizer",)),
        ("torchvision", ()),
        ("torchvision.datasets", ("VisionDataset",)),
        ("torchvision.transforms", ()),
        ("torchvision.transforms.functional", ("to_tensor",)),
    ):
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = []
            for one in classes:
                setattr(module, one, type(one, (), {}))
            sys.modules[name] = module
    warnings.filterwarnings("ignore")
    import streaming as module

    return module


def write_mosaicml(place: Place, prefix: str) -> dict[str, float]:
    """Writes the shards by its writer, which sends them meanwhile.

    Returns:
        CPU seconds and seconds that it took, without the import.
    """
    import json
    import shutil
    import time

    module = streaming()
    names = list(json.loads(Path(place.index).read_text()))
    random.Random(1).shuffle(names)
    local = Path(place.root, f"mds-{prefix.replace('/', '-')}")
    spent, began = sum(os.times()[:4]), time.perf_counter()
    with module.MDSWriter(
        out=(str(local), f"s3://{place.bucket}/{prefix}"),
        columns={"name": "str", "data": "bytes"},
        hashes=["xxh64"],
        size_limit=place.shard_bytes,
        max_workers=4,
    ) as writer:
        for name in names:
            writer.write({"name": name, "data": Path(place.source, name).read_bytes()})
    took = time.perf_counter() - began
    shutil.rmtree(local, ignore_errors=True)
    return {"seconds": took, "cpu_s": sum(os.times()[:4]) - spent}
