import pytest

from trainmaster.spec.errors import MissingPartError, imports_of


def test_what_is_missing_is_named_with_the_extra_that_brings_it():
    with pytest.raises(MissingPartError) as refused, imports_of("volumes", "a volume"):
        raise ModuleNotFoundError("No module named 'blake3'", name="blake3")
    assert str(refused.value).splitlines() == [
        "a volume needs blake3, which is not installed",
        "pip install 'trainmaster[volumes]'",
    ]


def test_a_library_that_is_there_and_broken_says_why():
    with (
        pytest.raises(MissingPartError, match="needs a library, which cannot be imported: no pq wrapper"),
        imports_of("postgres", "PostgreSQL"),
    ):
        raise ImportError("no pq wrapper")


def test_other_errors_pass():
    with pytest.raises(KeyError), imports_of("volumes", "a volume"):
        raise KeyError("x")
