"""`Prices`: the price list that ships, with what the user's own account has told since."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.errors import TrainmasterError, UsageError, fails_as, one_line
from trainmaster.spec.private_files import write_private

if TYPE_CHECKING:
    from trainmaster.providers import Catalogue, Offer
    from trainmaster.providers.base import ProviderPlace
    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Recipe

#: Names the catalogue whose prices are rented by, instead of the one that ships: a name or a file.
CATALOGUE: Final = "TRAINMASTER_CATALOGUE"
#: Older prices are asked for again before a quote: those on demand change rarely, spot prices by the hour.
OLD_DAYS: Final = 7
OLD_SPOT_DAYS: Final = 1
#: A quote waits for new prices no longer.
PATIENCE_S: Final = 4.0
#: Nor are they asked for again so soon after they could not be had.
_AGAIN_S: Final = 600.0
#: Whose they are.
_PROVIDER: Final = "aws"
#: Where credentials are that can be seen without asking anybody; a role of this machine itself is not.
_KEYS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


@dataclass(frozen=True)
class Prices:
    """Of a home, or of a team that rents with its own keys: zones have other names in other accounts.

    Attributes:
        place: that keeps them, with settings and credentials of AWS.
        is_named: the caller names prices to rent by: no others are asked for.
        today: the day.
    """

    place: ProviderPlace
    is_named: bool
    today: date

    @classmethod
    def of(cls, service: OpenHome, environ: Mapping[str, str], today: date | None = None) -> Prices:
        """What a team sees in a home; ``today``: as of another day."""
        from trainmaster.providers.base import ProviderPlace

        place = service.with_login(_PROVIDER, ProviderPlace(service.home.root, "", dict(environ)))
        return cls(place, bool(environ.get(CATALOGUE)), today or datetime.now(UTC).date())

    def catalogue(self) -> Catalogue:
        """What ships, with the newer prices of those regions that were asked for."""
        from trainmaster.providers import load_catalogue
        from trainmaster.providers.aws.prices import refreshed

        shipped = load_catalogue(None, today=self.today)
        newer = self._kept()
        return shipped.with_offers(refreshed(shipped.offers, newer)) if newer else shipped

    def refresh(self, regions: Iterable[str]) -> dict[str, int]:
        """Ask AWS for the prices of regions, and keep them; how many there are, by region.

        Raises:
            UsageError: no credentials, no permission, no such region, or they cannot be written down.
            ProviderError: AWS does not answer.
        """
        found = {region: self._read(region) for region in dict.fromkeys(regions)}
        self._keep(found)
        return {region: len(offers) for region, offers in found.items()}

    def keep_fresh(
        self,
        recipe: Recipe,
        tell: Callable[[str], None],
        patience_s: float = PATIENCE_S,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Ask for the prices that a recipe is quoted by if they are old; never takes long, never fails.

        Args:
            recipe: of any provider.
            tell: shows a line to the user.
            patience_s: for AWS.
            is_wanted: asked before anybody is dialled: False for a recipe that will be refused anyway.
        """
        if not capabilities_of(recipe.provider).tells_prices or self.is_named:
            return
        here = self.catalogue().where(provider=recipe.provider)
        ages = {
            region: age
            for region in _regions(recipe, self.place.environ)
            if (age := self._age(here, recipe, region)) and (age < math.inf or self._exists(region))
        }
        if not ages or not is_wanted():
            return
        days = max(ages.values())
        old = f"{days:.0f} {'day' if days == 1 else 'days'} old" if days < math.inf else "not known"
        old = f"of aws in {', '.join(ages)} are {old}"
        if not self._has_keys():
            tell(f"note: prices {old}; with AWS credentials `trainmaster offers --refresh` brings new ones")
            return
        if time.time() - _changed_at(self._tried) < _AGAIN_S:
            return
        why = self._ask(list(ages), patience_s)
        if why:
            _touch(self._tried)
            tell(f"note: prices {old} and could not be refreshed: {why}")
        else:
            tell(f"prices {old}: refreshed")

    # --- private -----------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        return self.place.root / "prices" / f"{_PROVIDER}.csv"

    @property
    def _tried(self) -> Path:
        return self._file.with_name("tried")

    def _ask(self, regions: Sequence[str], patience_s: float) -> str:
        """Why new prices are not there in time; empty if they are. Those that come later are kept, too."""
        from trainmaster.service.background import begun

        try:
            begun(lambda: self.refresh(regions), "prices").result(patience_s)
        except TimeoutError:
            return f"AWS has not answered within {patience_s:g} s"
        except TrainmasterError as error:
            return one_line(error)
        except Exception as error:  # noqa: BLE001 - a quote by old prices is better than none
            return f"{type(error).__name__}: {error}"
        return ""

    def _read(self, region: str) -> list[Offer]:
        from trainmaster.providers import load_catalogue
        from trainmaster.providers.aws.client import AwsClient
        from trainmaster.providers.aws.prices import read_prices
        from trainmaster.providers.aws.team_login import settings_of

        settings = replace(settings_of(self.place), attempts=2)
        client = AwsClient(settings)
        known = load_catalogue(None, today=self.today).where(provider=settings.name)
        try:
            found = read_prices(client, region, known, self.today)
        finally:
            client.close()
        if not found:
            raise UsageError(
                f"AWS lists no prices of {region!r}", "Is that the name of a region, such as eu-west-1?"
            )
        return found

    def _kept(self) -> list[Offer]:
        """Those that were asked for; none also if the file is damaged: they are asked for again."""
        from trainmaster.providers import load_catalogue

        try:
            return list(load_catalogue(self._file, today=self.today)) if self._file.exists() else []
        except (TrainmasterError, OSError, ValueError):
            return []

    def _keep(self, found: Mapping[str, Sequence[Offer]]) -> None:
        from trainmaster.providers.own_csv import write_own_csv

        others = [offer for offer in self._kept() if offer.region not in found]
        text = write_own_csv([*others, *(offer for new in found.values() for offer in new)])
        with fails_as(f"{self._file} cannot be written", "Make room there."):
            write_private(self._file, text.encode())
            self._tried.unlink(missing_ok=True)

    def _age(self, here: Catalogue, recipe: Recipe, region: str) -> float:
        """Days since the prices that a recipe is quoted by held in a region; 0 if new, infinite if none."""
        spot = any(experiment.hardware.spot for experiment in recipe.experiments.values())
        age = 0.0
        for kind, most in ((False, OLD_DAYS), (True, OLD_SPOT_DAYS)) if spot else ((False, OLD_DAYS),):
            days = [(self.today - offer.as_of).days for offer in here.where(region=region, spot=kind)]
            if min(days, default=math.inf) > most:
                age = max(age, min(days, default=math.inf))
        return age

    def _exists(self, region: str) -> bool:
        """Whether there is such a region, as far as boto3 knows; a mistyped one is refused later."""
        from trainmaster.providers.aws.client import AwsClient
        from trainmaster.providers.aws.team_login import settings_of

        try:
            return region in AwsClient(settings_of(self.place)).known_regions()
        except UsageError:
            return False

    def _has_keys(self) -> bool:
        environ = self.place.environ
        own = Path(environ.get("HOME", "~")).expanduser() / ".aws"
        files = (
            Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or own / "credentials"),
            Path(environ.get("AWS_CONFIG_FILE") or own / "config"),
        )
        return any(environ.get(name) for name in _KEYS) or any(file.is_file() for file in files)


def named_regions(pattern: str | None, known: Catalogue, environ: Mapping[str, str]) -> list[str]:
    """The regions that somebody means.

    Args:
        pattern: as of ``offers --region``; None for that of the AWS settings.
        known: offers, for what a pattern stands for.
        environ: of the caller.

    Raises:
        UsageError: none is named.
    """
    from fnmatch import fnmatchcase

    from trainmaster.providers.aws.settings import configured_region

    regions = sorted({offer.region for offer in known if capabilities_of(offer.provider).tells_prices})
    if pattern and not any(sign in pattern for sign in "*?["):
        return [pattern]
    found = [region for region in regions if pattern and fnmatchcase(region, pattern.lower())]
    found = found or ([] if pattern else [configured_region(environ)])
    if not any(found):
        raise UsageError(
            "--refresh: of which region?",
            f"Name it with --region, set AWS_REGION, or run `aws configure`. Known are {', '.join(regions)}.",
        )
    return found


def _regions(recipe: Recipe, environ: Mapping[str, str]) -> list[str]:
    """Those that a recipe names, else that of the AWS settings."""
    from trainmaster.providers.aws.settings import configured_region

    named = [region for e in recipe.experiments.values() for region in e.hardware.regions]
    found = [region for region in named if "*" not in region] if named else [configured_region(environ)]
    return [region for region in dict.fromkeys(found) if region]


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _touch(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch()
    except OSError:  # it is asked again sooner, that is all
        return
