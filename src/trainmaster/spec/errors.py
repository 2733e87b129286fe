"""Everything Trainmaster raises on purpose.

* TrainmasterError            exit code 1
  + UsageError                exit code 2: the recipe or the call is wrong; nothing was started
    - RecipeError             one or more mistakes in a recipe, each with file, line, column, key
    - MeasurementNeeded       nothing is known of the job, and it is measured on rented machines only
    - MissingPartError        a key, provider or option whose machinery is not installed or not there yet
  + NotFoundError             exit code 2: no such run, task, model, ...
  + StoreError                the database cannot be used
    - LeaseLostError          somebody else drives this run now; nothing was changed
    - FullDiskError           there is no room for what is to be written; with room it goes on
  + ProviderError             a provider or a machine cannot be reached, or refuses; later may help
  + PublishError              an artifact could not be published or read back whole
  + ExecutorError             the node's supervisor cannot be reached or refused
    - OtherVersionError       another version of Trainmaster has started it; also a `ValueError`
  + RunError                  a run is not what the caller needs it to be
    - RunFailedError          it has ended, and did not succeed
    - UndrivenError           it has not ended, and no process drives it
    - WaitTimeoutError        it had not ended when the caller stopped to wait; also a `TimeoutError`
  + AccessError               a server does not know who asks, or refuses it to them
  + InterruptedByUser         exit code 130

Each message says what was wrong and where; ``hint`` says what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from trainmaster.dataclass import dataclass
from trainmaster.spec.redaction import redacted


class TrainmasterError(Exception):
    """Base of all errors meant for the user.

    Attributes:
        hint: what to do next, a full sentence or empty.
        exit_code: what the command line exits with.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        # Libraries repeat URLs with all that is in them, and messages go to terminals, logs and databases.
        super().__init__(redacted(message))
        self.hint = redacted(hint)

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n{self.hint}" if self.hint else message


def one_line(error: BaseException) -> str:
    """Message and hint on one line, for where a line is all there is room for.

    >>> one_line(TrainmasterError("no such run", "See `trainmaster status`."))
    'no such run. See `trainmaster status`.'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(line if line[-1] in ".:;,!?" or line is lines[-1] else f"{line}." for line in lines)


class UsageError(TrainmasterError):
    """The recipe or the call is wrong; nothing was started."""

    exit_code = 2


@contextmanager
def fails_as(
    what: str,
    hint: str | None = None,
    kind: type[TrainmasterError] = UsageError,
    *,
    on: type[Exception] | tuple[type[Exception], ...] = (OSError, UnicodeDecodeError),
) -> Iterator[None]:
    """What is raised within is an error for people.

    Args:
        what: has failed, such as ``FILE cannot be read``; why is said after it.
        hint: what to do next; None is what the error says itself.
        kind: of the error.
        on: what is raised within; by default what the system refuses, or a file that is no text.

    >>> with fails_as("--monthly", "Write an amount.", on=ValueError):
    ...     float("much")
    Traceback (most recent call last):
    trainmaster.spec.errors.UsageError: --monthly: could not convert string to float: 'much'
    Write an amount.
    """
    try:
        yield
    except on as error:
        own = error.hint if isinstance(error, TrainmasterError) else ""
        raise kind(f"{what}: {_why(error)}", own if hint is None else hint) from error


def _why(error: Exception) -> str:
    if isinstance(error, TrainmasterError):
        return str(error.args[0])
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    return (isinstance(error, OSError) and error.strerror) or str(error)


class MeasurementNeeded(UsageError):  # noqa: N818 - the name of what happened
    """Nothing can be quoted before something was measured on machines that are rented for it.

    Attributes:
        types: of machines that may be rented, by experiment, as `measuring_runs` takes them; empty if
            measuring would not help.
    """

    types: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Mistake:
    """One mistake in a recipe.

    Attributes:
        line: 1-based line in the file.
        column: 1-based column in the file.
        key_path: dotted keys, such as ``experiments.train.after``; empty for the whole file.
        message: ``what was found; what would be right``.
        file: another than the recipe's, which that includes.
        lacks: the key that is missing there, if that is the mistake.
    """

    line: int
    column: int
    key_path: str
    message: str
    file: str = ""
    lacks: str = ""


class RecipeError(UsageError):
    """One or more mistakes in a recipe, printed as ``FILE:LINE:COL: KEY.PATH: message``."""

    def __init__(self, file: str, mistakes: Sequence[Mistake]) -> None:
        self.file = file
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(self._line(mistake) for mistake in self.mistakes))

    def _line(self, mistake: Mistake) -> str:
        where = f"{mistake.file or self.file}:{mistake.line}:{mistake.column}: "
        return where + (f"{mistake.key_path}: " if mistake.key_path else "") + mistake.message


class MissingPartError(UsageError):
    """A key, provider or option whose machinery is not installed or not there yet."""


class imports_of:  # noqa: N801 - it is called like a function
    """Within it stands imported what comes with an extra.

    Args:
        extra: its name.
        what: needs it, for people.

    Raises:
        MissingPartError: something of it cannot be imported.
    """

    def __init__(self, extra: str, what: str) -> None:
        self._extra, self._what = extra, what

    def __enter__(self) -> None:
        """Nothing is done before."""

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ImportError):
            is_there = not isinstance(error, ModuleNotFoundError)
            why = f"cannot be imported: {error}" if is_there else "is not installed"
            message = f"{self._what} needs {error.name or 'a library'}, which {why}"
            raise MissingPartError(message, f"pip install 'trainmaster[{self._extra}]'") from error


class NotFoundError(TrainmasterError):
    """No such run, task, model, ..."""

    exit_code = 2


def no_such_member(run: str, member: str, known: Iterable[str]) -> NotFoundError:
    """That a run, or what is chosen of it, has no member of a name, with those that there are.

    >>> no_such_member("job-a1", "worker-9", ["worker-1", "ps-0", "worker-2", "worker-0"]).hint
    'There are ps-0, worker-0 to worker-2.'
    """
    most: dict[str, int] = {}
    for role, _, index in (each.rpartition("-") for each in sorted(known)):
        most[role] = max(most.get(role, 0), int(index))
    names = (
        f"{role}-0" + (f"{' to' if last > 1 else ','} {role}-{last}" if last else "")
        for role, last in most.items()
    )
    return NotFoundError(f"{run} has no member {member!r} there", f"There are {', '.join(names)}.")


class StoreError(TrainmasterError):
    """The database cannot be used."""


class LeaseLostError(StoreError):
    """Somebody else drives this run now; nothing was changed."""

    @classmethod
    def of(cls, run: str) -> LeaseLostError:
        """What to tell a driver whose lease is stale."""
        return cls(
            f"another process drives {run} now; this one changes nothing any more",
            f"Watch it with `trainmaster status {run}` or `trainmaster logs -f {run}`.",
        )


class FullDiskError(StoreError):
    """There is no room for what is to be written, in the database or beside it; with room it goes on."""


class ProviderError(TrainmasterError):
    """A provider, or a machine, cannot be reached, or refuses; trying again later may help."""


class PublishError(TrainmasterError):
    """An artifact could not be published or read back whole."""


class ExecutorError(TrainmasterError):
    """The node's supervisor cannot be reached or refused."""


class OtherVersionError(ExecutorError, ValueError):
    """Another version of Trainmaster has started the supervisor: it is not understood, and never will be."""


class RunError(TrainmasterError):
    """A run is not what the caller needs it to be.

    Attributes:
        run: its id; empty where there is none yet.
    """

    def __init__(self, message: str, hint: str = "", *, run: str = "") -> None:
        self.run = run
        super().__init__(f"{run}: {message}" if run else message, hint)


class RunFailedError(RunError):
    """The run has ended, and did not succeed."""


class UndrivenError(RunError):
    """The run has not ended, and no process drives it: its driver was killed, or its machine started anew."""


class WaitTimeoutError(RunError, TimeoutError):
    """The run had not ended when the caller stopped to wait for it; it goes on."""


class AccessError(TrainmasterError):
    """A server does not know who asks, refuses it to them, or is not who it should be."""


class InterruptedByUser(TrainmasterError):  # noqa: N818 - it is no error of anybody
    """The user pressed Ctrl-C (or SIGTERM came) and the members were asked to stop."""

    exit_code = 130


class NotListeningError(ProviderError):
    """Nothing listens at a port of a member."""
