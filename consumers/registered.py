"""Finds for an operation the profile that it was approved with, and the client of its provider."""

from dataclasses import dataclass
from typing import Any

import psycopg

from consumers.operations import providers
from consumers.providers.answer import Answer
from consumers.providers.client import ProviderClient
from consumers.providers.listing import Interval, Listed, read_page, render_listing
from consumers.providers.observation import Observation, asks_for_result, classify_observation
from consumers.providers.profile import Listing, Profile
from consumers.providers.request import render_observe, render_result, require_settings
from relay.errors import UsageError
from relay.settings import ProviderSettings, Settings


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider as this process may use it."""

    profile: Profile
    base_url: str
    secret: str | None
    client: ProviderClient


class Providers:
    """Profiles by (provider, digest), read once each: a registered document never changes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[tuple[str, str], Profile] = {}

    async def profile(self, connection: psycopg.AsyncConnection[Any], provider: str, digest: str) -> Profile:
        """Raises SchemaError when the profile isn't registered."""
        key = (provider, digest)
        if key not in self._known:
            self._known[key] = await providers.profile(connection, provider, digest)
        return self._known[key]

    def require(self, name: str) -> ProviderSettings:
        """The settings of the provider `name`. Raises UsageError when it has no URL."""
        configured = self._settings.providers.get(name)
        if configured is None or configured.url is None:
            raise UsageError(
                f"The provider {name} has no URL.", remedy=f"Set {_variable(name)}_URL to where it is."
            )
        return configured

    def require_settings(self, profile: Profile) -> None:
        """Raises UsageError when this process' settings could not send by `profile`."""
        configured = self.require(profile.name)
        require_settings(profile, configured.url or "", secret_of(profile.name, configured))

    def provider(self, profile: Profile) -> Provider:
        """`profile` with the URL and credential of this process' settings. Raises UsageError without them."""
        configured = self.require(profile.name)
        base_url = configured.url or ""
        secret = secret_of(profile.name, configured)
        client = ProviderClient(profile, base_url=base_url, secret=secret)
        return Provider(profile, base_url, secret, client)

    async def observe(self, profile: Profile, job_id: str) -> tuple[Answer, Observation]:
        """One GET for `job_id`, and what it says. Whatever goes wrong is an observation too, a missing URL or
        credential as well: the job goes on without us, and is asked for again when the setting is mended."""
        result: Answer | None = None
        try:
            provider = self.provider(profile)
            request = render_observe(profile, provider.base_url, job_id, provider.secret)
            answer = await provider.client.observe(request, profile.observe.deadline_s)
            if asks_for_result(profile, answer, job_id=job_id):
                request = render_result(profile, provider.base_url, job_id, provider.secret)
                result = await provider.client.observe(request, profile.observe.deadline_s)
        except (UsageError, ValueError) as error:
            answer = Answer(error=str(error))
        return answer, classify_observation(profile, answer, job_id=job_id, result=result)

    async def list_page(
        self,
        profile: Profile,
        listing: Listing,
        listed: Listed,
        *,
        operation_id: str,
        interval: Interval,
    ) -> Answer:
        """One GET for the next page of the provider's list, read into `listed`. Whatever goes wrong makes the
        list incomplete, a missing URL or credential as well."""
        try:
            provider = self.provider(profile)
            request = render_listing(
                profile,
                listing,
                provider.base_url,
                operation_id=operation_id,
                interval=interval,
                cursor=listed.cursor,
                secret=provider.secret,
            )
        except UsageError as error:
            answer = Answer(error=str(error))
        else:
            answer = await provider.client.observe(request, listing.deadline_s)
        read_page(listing, answer, listed, operation_id=operation_id)
        return answer

    def secrets(self, name: str) -> tuple[str, ...]:
        """Texts that evidence from the provider `name` must not contain, if any is configured here."""
        configured = self._settings.providers.get(name)
        secret = None if configured is None else secret_of(name, configured)
        return (secret,) if secret else ()


def secret_of(name: str, configured: ProviderSettings) -> str | None:
    """The credential of the provider `name`; a file is read each time, so that a rotated one is taken up.
    Raises UsageError, without the credential in it, when the file can't be read."""
    if configured.secret_file is None:
        return configured.secret.get_secret_value() if configured.secret else None
    try:
        return configured.secret_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        variable = f"{_variable(name)}_SECRET_FILE"
        raise UsageError(f"{variable} ({configured.secret_file}) can't be read: {error}.") from None
    except UnicodeDecodeError:
        # Its text would say where in the credential it is.
        variable = f"{_variable(name)}_SECRET_FILE"
        raise UsageError(f"{variable} ({configured.secret_file}) is not UTF-8 text.") from None


def _variable(name: str) -> str:
    return f"RELAY_PROVIDER_{name.upper().replace('-', '_')}"
