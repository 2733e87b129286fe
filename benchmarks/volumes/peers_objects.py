# ruff: noqa: D102
# What the methods of a method mean is said once, in `Method`.
"""Ways of reading that get one object for each file: obstore, boto3, s3torchconnector, fsspec's s3fs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from peers_method import Method, Read, Seen, at_once, in_threads
from peers_place import Place, store


class Objects(Method):
    """One object for each file; nothing is kept, so what is read again is as cold as before."""

    layout = "objects"
    caches = False


class Obstore(Objects):
    """The library that Trainmaster uses."""

    settings = "asynchronous, 64 requests at once, far away as many more as a round trip needs: 194 at 50 ms"

    def cold(self, place: Place, seed: int) -> Read:
        import obstore

        async def read(seen: Seen) -> None:
            there, waiting = store(place, "objects"), iter(self.shuffled(seed))

            async def run() -> None:
                for name in waiting:
                    answer = await obstore.get_async(there, name)
                    data = await answer.bytes_async()
                    seen.note(name, memoryview(data))
                    if seen.over:
                        return

            await asyncio.gather(*(run() for _ in range(at_once(place, 64, 2600))))

        return lambda seen: asyncio.run(read(seen))


class Boto3(Objects):
    """Amazon's library for Python."""

    settings = "16 threads, 66 at 50 ms, as many connections, no check of the answer's checksum"

    def prepare(self) -> None:
        import boto3  # noqa: F401

    def cold(self, place: Place, seed: int) -> Read:
        threads = at_once(place, 16)
        client = self.client(place, threads)

        def get(name: str) -> bytes:
            return client.get_object(Bucket=place.bucket, Key=f"objects/{name}")["Body"].read()

        return in_threads(self.shuffled(seed), get, threads)

    def client(self, place: Place, connections: int):
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=place.endpoint,
            aws_access_key_id=place.key,
            aws_secret_access_key=place.secret,
            region_name="us-east-1",
            config=Config(
                max_pool_connections=connections,
                s3={"addressing_style": "path"},
                response_checksum_validation="when_required",
            ),
        )


class TorchConnector(Objects):
    """Amazon S3 Connector for PyTorch."""

    peer = "s3torchconnector"
    settings = "S3MapDataset, 64 threads, 194 at 50 ms"

    def prepare(self) -> None:
        import s3torchconnector  # noqa: F401

    def cold(self, place: Place, seed: int) -> Read:
        dataset = self.dataset(place, lambda reader: reader.read())
        rows = {name: row for row, name in enumerate(self.names)}
        return in_threads(self.shuffled(seed), lambda name: dataset[rows[name]], at_once(place, 64, 2600))

    def dataset(self, place: Place, transform: Callable[[Any], Any], readers: Any = None):
        from s3torchconnector import S3ClientConfig, S3MapDataset

        urls = [f"s3://{place.bucket}/objects/{name}" for name in self.names]
        return S3MapDataset.from_objects(
            urls,
            region="us-east-1",
            endpoint=place.endpoint,
            transform=transform,
            reader_constructor=readers,
            s3client_config=S3ClientConfig(force_path_style=True),
        )


class FsspecS3(Objects):
    """fsspec's s3fs."""

    peer = "fsspec_s3fs"
    settings = "s3fs of fsspec, asynchronous, 64 requests at once, 114 at 50 ms"

    def prepare(self) -> None:
        import s3fs  # noqa: F401

    def _filesystem(self, place: Place, connections: int):
        import s3fs

        return s3fs.S3FileSystem(
            key=place.key,
            secret=place.secret,
            endpoint_url=place.endpoint,
            client_kwargs={"region_name": "us-east-1"},
            config_kwargs={"max_pool_connections": connections, "s3": {"addressing_style": "path"}},
            skip_instance_cache=True,
            asynchronous=True,
        )

    def cold(self, place: Place, seed: int) -> Read:
        return self.gathered(place, iter(self.shuffled(seed)), at_once(place, 64))

    async def one(self, there: Any, place: Place, seen: Seen, name: str) -> None:
        seen.note(name, await there._cat_file(f"{place.bucket}/objects/{name}"))

    def gathered(self, place: Place, waiting: Iterator[Any], tasks: int) -> Read:
        """Calls :meth:`one` for each, by so many tasks."""
        there, loop = self._filesystem(place, tasks), asyncio.new_event_loop()
        session = loop.run_until_complete(there.set_session())

        async def read(seen: Seen) -> None:
            async def run() -> None:
                for what in waiting:
                    await self.one(there, place, seen, what)
                    if seen.over:
                        return

            try:
                await asyncio.gather(*(run() for _ in range(tasks)))
            finally:
                await session.close()

        return lambda seen: loop.run_until_complete(read(seen))


class PlainChunks(Method):
    """What the wire gives: the chunks of the volume by parallel range GETs, to nowhere; nobody reads so."""

    layout = "volume"
    caches = False
    whole = True
    shuffle = "none"
    settings = (
        "obstore, ranges of 8 MiB, 8 at once, 16 far away; bytes compared with the volume's, no content"
    )

    def cold(self, place: Place, seed: int) -> Read:
        from reading_bench import plain_get

        from trainmaster.volumes import Volume

        volume = Volume.open(f"s3://{place.bucket}/volume", self.cache, limit_bytes=1 << 30)

        def read(seen: Seen) -> None:
            got = plain_get(volume, 16 if place.latency_ms else 8)
            assert got == sum(volume.table.chunk_sizes)
            seen.bytes, seen.files = volume.table.total_bytes, len(volume)

        return read
