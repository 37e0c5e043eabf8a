"""Provider profiles from folders: the shipped ones, then the user's. It reads files and nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from consumers.providers.profile import Profile
from relay.errors import UsageError

SHIPPED: Final = Path(__file__).resolve().parent / "profiles"


def load_profiles(folders: Sequence[Path]) -> dict[str, Profile]:
    """Profile name to profile, from `*.yaml` of the shipped folder and then of `folders`; a later one wins.
    Raises UsageError for a folder or file that can't be read, and for one name twice in one folder."""
    profiles: dict[str, Profile] = {}
    for folder in (SHIPPED, *folders):
        profiles |= _load(folder)
    return profiles


def read_profile(path: Path) -> Profile:
    """The profile in one file. Raises UsageError when it can't be read, or isn't one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The profile {path} can't be read: {error}.") from None
    return Profile.parse(text, source=str(path))


def _load(folder: Path) -> dict[str, Profile]:
    if not folder.is_dir():
        raise UsageError(f"RELAY_PROFILES names {folder}, which is not a folder.")
    found: dict[str, Profile] = {}
    for path in sorted(folder.glob("*.yaml")):
        profile = read_profile(path)
        if profile.name in found:
            raise UsageError(
                f"The folder {folder} has two profiles called {profile.name}; {path} is the second."
            )
        found[profile.name] = profile
    return found
