"""`OfferFilter`: which offers are wanted; `nothing_with`: why there are none. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.offer import Offer
from trainmaster.spec.hardware import Hardware, Most, several
from trainmaster.spec.reading import keys_of

_WORDS: Final = re.compile(r"[^a-z0-9.]+")
_MAKERS: Final = frozenset({"nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "radeon", "intel"})
_ROUNDED: Final = 0.99
_GIB: Final = 2**30
#: Of a model's name: the memory that it is to have.
_SIZE: Final = re.compile(r"-\d+GI?B$", re.IGNORECASE)
#: Wishes that recipes and options call otherwise.
_KEYS: Final = {
    "instances": "instance",
    "memory_bytes": "memory",
    "gpu_memory_bytes": "gpu_memory",
    "max_price_usd_per_hour": "max_price",
}
#: Of an offer, where it is not called as the wish.
_FACTS: Final = {"gpus": "accelerators", "cpus": "vcpus", "gpu_memory_bytes": "accelerator_memory_bytes"}
_VARIANT: Final = re.compile(r"[0-9]+(?:gb|gib|g)|sxm[0-9]*|pcie|nvl|hbm[0-9]?e?")


@dataclass(frozen=True, slots=True)
class OfferFilter:
    """Wishes; None (or empty) is any.

    Attributes:
        gpu: model of the GPUs, as people write it: ``v100`` is a V100 of any memory, ``a100-80gb`` is one.
            Of several any will do.
        gpus: at least so many; 0 is machines without any.
        cpus: at least so many vCPUs.
        memory_bytes: at least so much.
        max_price_usd_per_hour: at most so dear.
        region: a pattern such as ``eu-*``, matched with the region and with the zone; or several.
        provider: its name.
        instances: patterns of instance types, one of which must match.
        spot: only those that may be taken back (True) or only the others (False).
        gpu_memory_bytes: each GPU has at least so much; 1 % less will do, as makers round.
        any_of: one of these accepts it, too; empty is any.
        most: it has no more than this.
    """

    gpu: str | tuple[str, ...] | None = None
    gpus: int | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    max_price_usd_per_hour: float | None = None
    region: str | tuple[str, ...] | None = None
    provider: str | None = None
    instances: tuple[str, ...] = ()
    spot: bool | None = None
    gpu_memory_bytes: int | None = None
    any_of: tuple[OfferFilter, ...] = ()
    most: Most | None = None

    @classmethod
    def from_hardware(cls, hardware: Hardware) -> OfferFilter:
        """What a recipe's ``hardware`` asks for; without ``spot``, machines on demand."""
        return cls(
            gpu=hardware.gpu,
            gpus=hardware.gpus,
            gpu_memory_bytes=hardware.gpu_memory_bytes,
            cpus=hardware.cpus,
            memory_bytes=hardware.rented_memory_bytes,
            region=hardware.region,
            instances=hardware.instance,
            spot=bool(hardware.spot),
            most=hardware.most,
            any_of=tuple(
                cls(
                    gpu=each.gpu,
                    gpu_memory_bytes=each.gpu_memory_bytes,
                    region=each.region,
                    instances=each.instance,
                )
                for each in hardware.any_of
            ),
        )

    def accepts(self, offer: Offer) -> bool:
        """Whether an offer is all that was wished for."""
        return (
            (self.spot is None or offer.spot == self.spot)
            and (self.provider is None or offer.provider == self.provider.lower())
            and (not self.instances or any(_like(offer.instance_type, name) for name in self.instances))
            and (self.region is None or any(_is_in(offer, region) for region in several(self.region)))
            and (self.cpus is None or offer.vcpus >= self.cpus)
            and (self.memory_bytes is None or offer.memory_bytes >= self.memory_bytes)
            and (
                self.max_price_usd_per_hour is None or offer.price_usd_per_hour <= self.max_price_usd_per_hour
            )
            and (
                self.gpus is None
                or (offer.accelerators >= self.gpus if self.gpus else not offer.accelerators)
            )
            and (
                self.gpu_memory_bytes is None
                or (offer.accelerator_memory_bytes or 0) >= _ROUNDED * self.gpu_memory_bytes
            )
            and (self.most is None or _is_within(offer, self.most))
            and (not self.any_of or any(each.accepts(offer) for each in self.any_of))
            and (self.gpu is None or any(same_gpu(gpu, offer.accelerator) for gpu in several(self.gpu)))
        )

    def blamed(self, offers: Iterable[Offer]) -> tuple[str, ...]:
        """Which wishes leave nothing, by the names of the fields. Meant for when nothing is left.

        Those that nothing meets by itself; if there are none, those without any one of which something
        would be left; if there are none either, all of them.
        """
        everything = tuple(offers)
        given = {name: value for name in self.__slots__ if (value := getattr(self, name)) not in (None, ())}

        def some(**wishes: Any) -> bool:  # noqa: ANN401 - the fields of this class
            asked = OfferFilter(**wishes)
            return any(asked.accepts(offer) for offer in everything)

        alone = tuple(name for name, value in given.items() if not some(**{name: value}))
        one_too_many = (name for name in given if some(**{n: v for n, v in given.items() if n != name}))
        return alone or tuple(one_too_many) or tuple(given)


@lru_cache(maxsize=4096)  # a catalogue has 50,000 rows and a few dozen models
def same_gpu(wish: str, model: str) -> bool:
    """Whether a model of GPU is the one that somebody wrote; the makers' names do not matter.

    >>> same_gpu("v100", "V100-32GB"), same_gpu("NVIDIA Tesla V100", "V100"), same_gpu("A10", "A100")
    (True, True, False)
    >>> same_gpu("a100-80gb", "A100-SXM4-80GB"), same_gpu("a100-80gb", "A100"), same_gpu("l 4", "L4")
    (True, False, True)
    """
    wanted, variants_wanted = _parts(wish)
    found, variants_found = _parts(model)
    return bool(found) and wanted == found and variants_wanted <= variants_found


def _parts(model: str) -> tuple[str, frozenset[str]]:
    """The model proper, and its memory and socket."""
    words = [word for word in _WORDS.split(model.lower()) if word and word not in _MAKERS]
    variants = frozenset(word for word in words if _VARIANT.fullmatch(word))
    return "".join(word for word in words if word not in variants), variants


def _is_within(offer: Offer, most: Most) -> bool:
    has = (offer.accelerators, offer.accelerator_memory_bytes, offer.vcpus, offer.memory_bytes)
    ends = (most.gpus, most.gpu_memory_bytes, most.cpus, most.memory_bytes)
    return all(end is None or (have or 0) <= end for have, end in zip(has, ends, strict=True))


def _is_in(offer: Offer, region: str) -> bool:
    return _like(offer.region, region) or _like(offer.zone, region)


def _like(text: str, pattern: str) -> bool:
    return fnmatchcase(text.lower(), pattern.lower())


def nothing_with(wishes: OfferFilter, offers: Iterable[Offer]) -> tuple[str, str]:
    """What was asked for where nothing has it, and what to change: two texts for people."""
    everything = tuple(offers)
    if not everything:
        return _asked(wishes) or "that", "It has no offers at all."
    blamed = wishes.blamed(everything)
    hints = [hint for name in blamed if (hint := _nearest(everything, wishes, name))]
    keys = ", ".join(_KEYS.get(name, name) for name in blamed)
    return _asked(wishes) or "that", " ".join([f"Change {keys}.", *hints])


def _asked(wishes: OfferFilter) -> str:
    return ", ".join(
        f"{_KEYS.get(name, name)}: {_shown(name, getattr(wishes, name))}"
        for name in wishes.__slots__
        if getattr(wishes, name) not in (None, ()) and (name != "spot" or wishes.spot)
    )


def _nearest(offers: Sequence[Offer], wishes: OfferFilter, name: str) -> str:
    """What there is instead of one wish."""
    if name == "instances":
        import difflib

        known = sorted({offer.instance_type for offer in offers})
        near = [close for wish in wishes.instances for close in difflib.get_close_matches(wish, known, n=3)]
        return f"The nearest types are {', '.join(dict.fromkeys(near))}." if near else ""
    if name == "gpu":
        models = sorted({offer.accelerator for offer in offers if offer.accelerator})
        other = "".join(_of_other_size(offers, gpu) for gpu in several(wishes.gpu))
        return f"Its GPUs are {', '.join(models)}.{other}" if models else "It has no GPUs."
    if name in ("region", "provider"):
        return f"Its {name}s are {', '.join(sorted({getattr(offer, name) for offer in offers} - {''}))}."
    if name in ("any_of", "most"):
        return ""
    if name == "spot":
        kind, change = ("on demand", "false") if wishes.spot else ("spot machines", "true")
        return f"What it has are {kind} only: set spot: {change}."
    given: dict[str, Any] = {key: getattr(wishes, key) for key in wishes.__slots__ if key != name}
    without = OfferFilter(**given)
    left = [offer for offer in offers if without.accepts(offer)] or offers
    if name == "max_price_usd_per_hour":
        cheapest = min(left, key=lambda offer: offer.price_usd_per_hour)
        return f"The cheapest is {cheapest.instance_type}, for ${cheapest.price_usd_per_hour:g} an hour."
    fact = _FACTS.get(name, name)
    most = max(left, key=lambda offer: float(getattr(offer, fact) or 0))
    return f"The most {_KEYS.get(name, name)} has {most.instance_type}: {_shown(name, getattr(most, fact))}."


def _of_other_size(offers: Sequence[Offer], gpu: str) -> str:
    """The same model with another memory, where a name such as A100-80GB says how much is wanted."""
    plain = _SIZE.sub("", gpu)
    if plain == gpu:
        return ""
    found = [offer for offer in offers if same_gpu(plain, offer.accelerator)]
    sizes = {size // _GIB for offer in found if (size := offer.accelerator_memory_bytes)}
    known = f", with {' or '.join(map(str, sorted(sizes)))} GiB each" if sizes else ""
    return f" `gpu: {plain}` is there{known}." if found else ""


def _shown(name: str, value: object) -> str:
    if name.endswith(("memory_bytes", "memory")) and isinstance(value, int | float):
        return f"{value / _GIB:.4g} GiB"
    if isinstance(value, OfferFilter):
        return f"{{{_asked(value)}}}"
    if isinstance(value, Most):
        ends = ((key.name, getattr(value, field)) for field, key in keys_of(Most))
        return f"{{{', '.join(f'{key}: {_shown(key, end)}' for key, end in ends if end is not None)}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(_shown(name, each) for each in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if value is True else str(value)
