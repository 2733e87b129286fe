# ruff: noqa: D102
# What the methods of a method mean is said once, in `Method`.
"""Ways of reading that get one object for each file: obstore, boto3, s3torchconnector, fsspec's s3fs."""

from __future__ import annotations

import asyncio

from peers_method import Method, Read, Seen, at_once, in_threads
from peers_place import Place, store


class Objects(Method):
    """One object for each file; nothing is kept, so what is read again is as cold as before."""

    layout = "objects"
    caches = False


class Obstore(Objects):
    """The library that Trainmaster uses."""

    settings = "asynchronous, 64 requests at once"

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

            await asyncio.gather(*(run() for _ in range(at_once(place, 64))))

        return lambda seen: asyncio.run(read(seen))


class Boto3(Objects):
    """Amazon's library for Python."""

    settings = "16 threads, 64 far away, as many connections, no check of the answer's checksum"

    def prepare(self) -> None:
        import boto3  # noqa: F401

    def cold(self, place: Place, seed: int) -> Read:
        return in_threads(self.shuffled(seed), self._getter(place), at_once(place, 16))

    def _getter(self, place: Place):
        import boto3
        from botocore.config import Config

        client = boto3.client(
            "s3",
            endpoint_url=place.endpoint,
            aws_access_key_id=place.key,
            aws_secret_access_key=place.secret,
            region_name="us-east-1",
            config=Config(
                max_pool_connections=64,
                s3={"addressing_style": "path"},
                response_checksum_validation="when_required",
            ),
        )
        return lambda name: client.get_object(Bucket=place.bucket, Key=f"objects/{name}")["Body"].read()


class TorchConnector(Objects):
    """Amazon S3 Connector for PyTorch."""

    peer = "s3torchconnector"
    settings = "S3MapDataset, 64 threads"

    def prepare(self) -> None:
        import s3torchconnector  # noqa: F401

    def cold(self, place: Place, seed: int) -> Read:
        return in_threads(self.shuffled(seed), self._getter(place), at_once(place, 64))

    def _getter(self, place: Place):
        from s3torchconnector import S3ClientConfig, S3MapDataset

        urls = [f"s3://{place.bucket}/objects/{name}" for name in self.names]
        dataset = S3MapDataset.from_objects(
            urls,
            region="us-east-1",
            endpoint=place.endpoint,
            transform=lambda reader: reader.read(),
            s3client_config=S3ClientConfig(force_path_style=True),
        )
        rows = {name: row for row, name in enumerate(self.names)}
        return lambda name: dataset[rows[name]]


class FsspecS3(Objects):
    """fsspec's s3fs."""

    peer = "fsspec_s3fs"
    settings = "s3fs of fsspec, asynchronous, 64 requests at once"

    def prepare(self) -> None:
        import s3fs  # noqa: F401

    def _filesystem(self, place: Place, **options):
        import s3fs

        return s3fs.S3FileSystem(
            key=place.key,
            secret=place.secret,
            endpoint_url=place.endpoint,
            client_kwargs={"region_name": "us-east-1"},
            config_kwargs={"max_pool_connections": 64, "s3": {"addressing_style": "path"}},
            skip_instance_cache=True,
            **options,
        )

    def cold(self, place: Place, seed: int) -> Read:
        there, loop = self._filesystem(place, asynchronous=True), asyncio.new_event_loop()
        session = loop.run_until_complete(there.set_session())

        async def read(seen: Seen) -> None:
            waiting = iter(self.shuffled(seed))

            async def run() -> None:
                for name in waiting:
                    seen.note(name, await there._cat_file(f"{place.bucket}/objects/{name}"))
                    if seen.over:
                        return

            try:
                await asyncio.gather(*(run() for _ in range(at_once(place, 64))))
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
