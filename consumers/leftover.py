"""What an entry of a spool means for its attempt: the dispatcher that adopts it and an import on another host
read it alike. It opens nothing and decides nothing.
"""

from consumers.providers.answer import from_record
from consumers.providers.outcome import Submission, classify_submission
from consumers.providers.profile import Profile
from consumers.providers.spool import SpoolEntry


def told(entry: SpoolEntry, profile: Profile, secrets: tuple[str, ...]) -> Submission:
    """What an earlier process left: its answer, or only that it was about to send."""
    if entry.answer is not None and not entry.damaged:
        try:
            answer = from_record(entry.answer, secrets=secrets)
        except (KeyError, ValueError, TypeError) as error:
            # The file stays readable by people until it is applied; nothing in it can be believed.
            evidence = {"spool": "unreadable answer", "error": repr(error)}
            return Submission(verdict="unknown", reason="sender_lost", evidence=evidence)
        return classify_submission(profile, answer)
    return Submission(
        verdict="unknown",
        reason="sender_lost",
        evidence={"spool": "damaged" if entry.damaged else "sending, and no answer"},
    )
