# ruff: noqa: F811 - fixtures are imported
"""Volumes in PyTorch's DataLoader; a test loads it, as all processes of the tests read this file."""

import multiprocessing
from importlib.util import find_spec

import pytest
from read_volumes import home, tree, volume  # noqa: F401 - fixtures

from trainmaster.spec.errors import UsageError
from trainmaster.volumes import reading

pytestmark = [pytest.mark.torch, pytest.mark.skipif(find_spec("torch") is None, reason="there is no PyTorch")]


def pair(data, path):
    return path, bytes(data)


def loader(volume, workers=0, batch=7, **options):
    stream = reading.VolumeStream(volume, pair, window=2, seed=4, **options)
    return reading.VolumeLoader(stream, batch, num_workers=workers, collate_fn=list)


def test_the_order_is_the_same_for_any_number_of_workers(volume, tree):
    alone = list(loader(volume))
    assert {path: data for batch in alone for path, data in batch} == tree
    assert list(loader(volume, workers=2)) == alone
    assert len(alone) == len(loader(volume))


def test_resumed_in_mid_epoch_with_another_number_of_workers(volume):
    whole = list(loader(volume))
    first = loader(volume, workers=2)
    seen = []
    for batch in first:
        seen.append(batch)
        if len(seen) == 5:
            break
    state = first.state_dict()
    assert state == {"seed": 4, "epoch": 0, "consumed": [[1, 35]]}
    second = loader(volume)
    second.load_state_dict(state)
    assert len(second) == len(whole) - 5
    assert seen + list(second) == whole
    assert second.state_dict() == {"seed": 4, "epoch": 1, "consumed": []}


def test_resumed_with_another_number_of_ranks(volume, tree, monkeypatch):
    seen = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        one = loader(volume, padding="uneven")
        for number, batch in enumerate(one):
            seen += batch
            if number == 2:
                break
    state = one.state_dict()
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        other = loader(volume, padding="uneven")
        other.load_state_dict(state)
        for batch in other:
            seen += batch
    assert len(seen) == len(tree)
    assert dict(seen) == tree


def test_workers_that_live_on_see_the_next_epoch(volume, tree):
    stream = reading.VolumeStream(volume, pair, window=2)
    both = reading.VolumeLoader(stream, 10, num_workers=2, collate_fn=list, persistent_workers=True)
    first, second = list(both), list(both)
    assert {path for batch in second for path, _ in batch} == {*tree}
    assert first != second
    fresh = reading.VolumeStream(volume, pair, window=2)
    fresh.next_epoch()
    assert list(reading.VolumeLoader(fresh, 10, collate_fn=list)) == second


#: A worker has read a sample.
has_begun = multiprocessing.Event()


def pair_told(data, path):
    has_begun.set()
    return pair(data, path)


def late(worker):
    assert worker == 0 or has_begun.wait(60), "the first worker reads nothing"


def test_a_worker_that_starts_late_begins_where_the_others_did(volume):
    stream = reading.VolumeStream(volume, pair_told, window=2, seed=4)
    slow = reading.VolumeLoader(
        stream, 7, num_workers=2, collate_fn=list, worker_init_fn=late, prefetch_factor=1
    )
    assert list(slow) == list(loader(volume))


def test_a_pass_that_was_broken_off_goes_on(volume):
    whole, both = list(loader(volume)), loader(volume, workers=2)
    first = []
    for batch in both:
        first.append(batch)
        if len(first) == 3:
            break
    assert first + list(both) == whole


def test_the_dataset_and_its_sampler(volume, tree):
    from torch.utils.data import DataLoader

    dataset = reading.VolumeDataset(volume, pair)
    sampler = reading.VolumeSampler(dataset, window=2, seed=3)
    batches = list(DataLoader(dataset, batch_size=9, sampler=sampler, num_workers=2, collate_fn=list))
    assert {path: data for batch in batches for path, data in batch} == tree
    assert len(sampler) == len(dataset) == len(tree)
    again = [sample for batch in DataLoader(dataset, sampler=sampler, collate_fn=list) for sample in batch]
    assert [sample for batch in batches for sample in batch] != again
    with pytest.raises(IndexError, match="there are samples 0 to"):
        dataset[len(dataset)]


def test_samples_without_decoding_are_bytes(volume, tree):
    stream = reading.VolumeStream(volume.uri)
    assert sorted(stream) == sorted(tree.values())
    assert stream.quality().displacement > 0


def test_too_many_changes_are_refused(volume):
    stream = reading.VolumeStream(volume)
    with pytest.raises(UsageError, match="changed 63 times"):
        stream.load_state_dict({"seed": 0, "epoch": 0, "consumed": [[n % 2 + 1, 0] for n in range(63)]})
