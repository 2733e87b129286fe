"""`PluginRegistry`: what recipes call by a name: built in first, then what installed packages bring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import MissingPartError, TrainmasterError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class PluginRegistry:
    """All of one kind of plug-in. A plug-in never takes the place of what is built in.

    Attributes:
        kind: what messages call one, such as ``launcher``.
        built_in: name -> ``MODULE:ATTRIBUTE``. Modules are loaded when somebody wants them, so that nobody
            waits for libraries that are not used.
        also: names that mean something besides, for messages.
        group: of the entry points of packages, ``NAME = "MODULE:ATTRIBUTE"``; without, it is
            ``trainmaster.KIND`` with an ``s``.
    """

    kind: str
    built_in: Mapping[str, str]
    also: Iterable[str] = ()
    group: str = ""

    def load(self, name: str) -> Any:  # noqa: ANN401 - a class or function of this kind
        """What the name stands for.

        Raises:
            UsageError: the name is unknown; the message lists those that are known.
            MissingPartError: a plug-in has the name, but cannot be loaded.
        """
        if name in self.built_in:
            module, _, attribute = self.built_in[name].partition(":")
            return getattr(import_module(module), attribute)
        point = self._point(name)
        return self._guarded(point, point.load)

    def make(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - what the plug-in makes
        """What the name stands for, called with arguments. Raises as `load` does."""
        if name in self.built_in:
            return self.load(name)(*arguments)
        point = self._point(name)
        return self._guarded(point, lambda: point.load()(*arguments))

    def plug_ins(self) -> dict[str, EntryPoint]:
        """What installed packages bring, by name; all of them are looked through."""
        from importlib.metadata import entry_points  # reads every installed package: only if needed

        group = self.group or f"trainmaster.{self.kind}s"
        return {point.name: point for point in entry_points(group=group)}

    def stated(self, name: str, attribute: str) -> Any:  # noqa: ANN401 - whatever it is
        """What the module that names one, built in or a plug-in's, has under another name; None without it.

        Raises as `load`.
        """
        self.load(name)
        built_in = self.built_in.get(name, "").partition(":")[0]
        return vars(import_module(built_in or self._point(name).module)).get(attribute)

    def check(self, name: str) -> None:
        """Refuse an unknown name; nothing is loaded.

        Raises:
            UsageError: with the names that there are.
        """
        if name not in self.built_in:
            self._point(name)

    def _point(self, name: str) -> EntryPoint:
        from trainmaster.spec.node import nearest

        points = self.plug_ins()
        if name in points:
            return points[name]
        known = sorted({*self.built_in, *self.also, *points})
        near = nearest(name, known)
        hint = f"Did you mean {near!r}? " if near else ""
        raise UsageError(f"there is no {self.kind} {name!r}", f"{hint}Known are {', '.join(known)}.")

    def _guarded(self, point: EntryPoint, step: Callable[[], Any]) -> Any:  # noqa: ANN401 - as `step` returns
        try:
            return step()
        except TrainmasterError:  # says itself what to do
            raise
        except Exception as error:  # a plug-in may raise anything
            package = f" (pip uninstall {point.dist.name})" if point.dist else ""
            raise MissingPartError(
                f"the {self.kind} {point.name!r} ({point.value}) is installed but cannot be loaded: "
                f"{str(error) or type(error).__name__}",
                f"Install what it needs, or remove it{package}.",
            ) from error
