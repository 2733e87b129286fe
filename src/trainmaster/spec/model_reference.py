"""How versions of registered models are named: ``digits@3``, ``digits@production``, ``digits@newest``."""

from __future__ import annotations

import re
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import UsageError

#: What registered models and aliases may be called. An alias of digits only would be a version.
NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
ALIAS: Final = r"[A-Za-z][A-Za-z0-9._-]{0,63}"
#: What no alias is called, and what a name alone means.
NEWEST: Final = "newest"
#: For what an alias must mean to be moved: whatever it means, it is moved all the same.
ANY_VERSION: Final = -1
#: What a reference is, and what is right, in recipes.
REFERENCE: Final = rf"{NAME}(@([1-9][0-9]{{0,8}}|{ALIAS}))?"
REFERENCE_RIGHT: Final = "write a registered model such as digits@production or digits@3"
PROMOTION: Final = rf"{NAME}@(?!{NEWEST}$){ALIAS}"
PROMOTION_RIGHT: Final = "write a name and an alias such as digits@production"
_RIGHT: Final = "Write such as digits@production, or digits@3."


@dataclass(frozen=True, slots=True)
class ModelReference:
    """Which version of a registered model is meant.

    Attributes:
        name: of the model.
        version: its number; None if an alias says it, or the newest is meant.
        alias: that says it.
    """

    name: str
    version: int | None = None
    alias: str | None = None

    @property
    def tail(self) -> str:
        """What is behind the ``@``."""
        return self.alias or (NEWEST if self.version is None else str(self.version))

    def __str__(self) -> str:
        return self.name if self.tail == NEWEST else f"{self.name}@{self.tail}"

    @classmethod
    def parse(cls, text: str) -> ModelReference:
        """Read one.

        Raises:
            UsageError: it is none.

        >>> [str(ModelReference.parse(each)) for each in ("digits", "digits@newest", "digits@3", "digits@x")]
        ['digits', 'digits', 'digits@3', 'digits@x']
        """
        name, mark, tail = text.partition("@")
        if not re.fullmatch(NAME, name):
            raise UsageError(f"{text!r} names no registered model", _RIGHT)
        if not mark or tail == NEWEST:
            return cls(name)
        if re.fullmatch(r"[1-9][0-9]{0,8}", tail):
            return cls(name, int(tail))
        return cls(name, alias=checked_alias(tail))

    @property
    def must_alias(self) -> str:
        """The alias, where one is needed.

        Raises:
            UsageError: it has none.
        """
        if self.alias is None:
            raise UsageError(f"{self} names no alias", f"Write such as {self.name}@production.")
        return self.alias


def checked_alias(text: str) -> str:
    """An alias, such as ``production``.

    Raises:
        UsageError: it is none.
    """
    if text == NEWEST or not re.fullmatch(ALIAS, text):
        raise UsageError(
            f"{text!r} is no alias",
            "Use up to 64 letters, digits, '.', '_' and '-', a letter first; `newest` is taken.",
        )
    return text


def checked_name(text: str) -> str:
    """A name of a registered model.

    Raises:
        UsageError: it is none.
    """
    if not re.fullmatch(NAME, text):
        raise UsageError(
            f"{text!r} is no name of a model",
            "Use up to 128 letters, digits, '.', '_' and '-'; begin with a letter or digit.",
        )
    return text
