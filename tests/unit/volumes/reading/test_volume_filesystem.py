# ruff: noqa: F811 - fixtures are imported
"""``trainmaster://`` as programs meet it: through fsspec alone."""

import pytest
from read_volumes import home, tree, volume  # noqa: F401 - fixtures

from trainmaster.volumes.packed.pushing import push

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def _fresh():
    """fsspec keeps file systems by their arguments, and each test has volumes of its own."""
    fsspec.get_filesystem_class("trainmaster").clear_instance_cache()


def test_files_by_url(volume, home, tree):
    for url in (
        "trainmaster://pets/d1/f 001",
        "trainmaster://pets@1/d1/f 001",
        f"trainmaster://{volume.uri}/d1/f 001",
        f"trainmaster://{home}/store/volumes/pets!/d1/f 001",
    ):
        with fsspec.open(url) as file:
            assert file.read() == tree["d1/f 001"]
    found = fsspec.open_files("trainmaster://pets/d3/*")
    assert len(found) == len([path for path in tree if path.startswith("d3/")])


def test_as_a_file_system(volume, tree):
    fs = fsspec.filesystem("trainmaster", volume="pets")
    assert {*fs.find("")} >= {*tree}
    assert fs.isdir("d1")
    assert fs.isfile("to file")
    assert not fs.exists("nope")
    assert fs.size("large") == len(tree["large"])
    assert fs.cat_file("large", -10) == tree["large"][-10:]
    assert fs.cat_file("large", 5, 8) == tree["large"][5:8]
    assert fs.cat("d1/f*")["d1/f 001"] == tree["d1/f 001"]
    assert fs.fsid == volume.uri
    assert fs.modified("large").year >= 2026
    assert [name for name in fs.ls("", detail=False) if name.startswith("d")] == [f"d{n}" for n in range(5)]
    with pytest.raises(FileNotFoundError):
        fs.cat_file("nope")
    with pytest.raises(IsADirectoryError):
        fs.cat_file("d1")
    with pytest.raises(OSError, match="can only be read"):
        fs.open("new", "wb")


def test_as_a_file_system_of_all_volumes(volume, home, tree):
    fs = fsspec.filesystem("trainmaster")
    for base in ("pets", "pets@1", volume.uri, f"{home}/store/volumes/pets!"):
        for path in (f"{base}/d1/f 001", f"trainmaster://{base}/d1/f 001"):
            assert fs.cat_file(path) == fs.cat(path) == tree["d1/f 001"]
            assert fs.open(path).read() == tree["d1/f 001"]
            assert fs.info(path)["name"] == f"{base}/d1/f 001"
        assert {*fs.find(base)} >= {f"{base}/{name}" for name in tree}
        assert fs.glob(f"{base}/d1/*") == sorted(fs.ls(f"{base}/d1", detail=False))
        assert fs.isdir(f"{base}/d1")
        assert fs.exists(base)
        assert not fs.exists(f"{base}/nope")
    assert fs.ls("", detail=False) == ["pets"]
    assert not fs.exists("dogs/x")
    assert fs.unstrip_protocol("pets/large") == "trainmaster://pets/large"
    with pytest.raises(FileNotFoundError):
        fs.cat_file("pets/nope")
    with pytest.raises(OSError, match="can only be read"):
        fs.open("pets/new", "wb")


def test_pandas(home):
    pandas = pytest.importorskip("pandas")

    frame = pandas.DataFrame({"a": range(100), "b": [str(n) for n in range(100)]})
    (home / "tables").mkdir()
    frame.to_csv(home / "tables/x.csv", index=False)
    push(home / "tables", "tables")
    assert pandas.read_csv("trainmaster://tables/x.csv", dtype={"b": str}).equals(frame)


def test_parquet_by_pyarrow(home):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    (home / "tables").mkdir()
    table = pyarrow.table({"a": list(range(1000))})
    parquet.write_table(table, home / "tables/x.parquet")
    push(home / "tables", "tables")
    fs = fsspec.filesystem("trainmaster", volume="tables")
    assert parquet.read_table("x.parquet", filesystem=fs).equals(table)
