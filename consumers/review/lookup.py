"""Asks the provider about a job before a person's word for it is taken: one GET, and never anything else."""

from dataclasses import dataclass
from typing import Any

import psycopg

from consumers.operations.decisions import Refused
from consumers.operations.records import Whole
from consumers.registered import Providers
from consumers.review.proposal import KNOWN
from relay.errors import UsageError
from relay.settings import Settings


@dataclass(frozen=True, slots=True)
class Lookup:
    """What the provider says of the job, or why it could not be asked."""

    job_id: str
    state: str | None
    sentence: str
    evidence: dict[str, Any]

    @property
    def confirmed(self) -> bool:
        return self.state in KNOWN


async def look_up(
    connection: psycopg.AsyncConnection[Any], settings: Settings, seen: Whole, job_id: str
) -> Lookup:
    """GET `job_id` of the operation's provider, by the profile that it was approved with. `connection` must
    have no open transaction: none is kept while the provider is asked."""
    operation = seen.operation
    if operation.provider is None or operation.profile_digest is None:
        raise Refused(f"The operation is a {operation.kind}: it has no provider, and no job.")
    providers = Providers(settings)
    try:
        providers.require(operation.provider)
    except UsageError as error:
        return Lookup(job_id, None, str(error), {"asked": False, "why": error.message})
    async with connection.transaction():
        profile = await providers.profile(connection, operation.provider, operation.profile_digest)
    answer, observation = await providers.observe(profile, job_id)
    sentence = f"The provider says of the job {job_id}: {observation.state} ({observation.reason})."
    if answer.error is not None:
        sentence = f"The provider could not be asked about the job {job_id}: {answer.error}."
    return Lookup(job_id, observation.state, sentence, {"asked": True} | observation.evidence)


def require_confirmed(lookup: Lookup, unverified: str | None) -> dict[str, Any]:
    """The evidence to keep. Raises Refused when the provider didn't confirm the job and `unverified`, the
    reason to take it all the same, is missing."""
    kept: dict[str, Any] = {"job_id": lookup.job_id, "state": lookup.state, "answer": lookup.evidence}
    if lookup.confirmed:
        return kept
    if not unverified:
        raise Refused(
            lookup.sentence,
            meaning="A job that isn't there would be observed for ever; nothing was changed.",
            remedy="If it is the job all the same, say --unverified with the reason.",
        )
    return kept | {"unverified": unverified}
