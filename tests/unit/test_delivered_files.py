"""Names of delivered files, and when a download is the file that was announced."""

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.deliver import differs
from consumers.operations.deliveries import Part
from consumers.providers.download import Downloaded
from consumers.storage import open_storage
from consumers.storage.keys import output_key, segment
from relay.errors import UsageError


@given(st.text(max_size=300), st.text(max_size=300))
def test_a_key_never_leaves_its_folder(owner: str, name: str) -> None:
    parts = output_key(owner, UUID(int=1), 0, name).split("/")
    assert len(parts) == 3
    assert parts[1] == str(UUID(int=1))
    for part in parts:
        assert part not in {"", ".", ".."}
        assert not part.startswith(".")
        assert len(part.encode()) <= 255


def test_a_key_is_readable_where_it_can_be() -> None:
    assert output_key("studio/1", UUID(int=1), 2, "frame 1.png") == f"studio_1/{UUID(int=1)}/2-frame_1.png"
    assert segment("../../etc/passwd") == "_.._etc_passwd"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "RELAY_OUTPUTS_URL is not set"),
        ("s3:///outputs", "s3://bucket/prefix"),
        ("s3://key:secret@bucket/outputs", "s3://bucket/prefix"),
        ("s3://bucket/outputs?secret=1", "s3://bucket/prefix"),
        ("file://host/outputs", "absolute folder"),
        ("outputs", "absolute folder"),
    ],
)
def test_a_storage_that_is_not_there_is_refused_in_one_sentence(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_storage(url)


def test_a_folder_that_can_not_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be used"):
        open_storage((tmp_path / "file" / "outputs").as_uri())


def part(*, size: int | None = None, sha256: str | None = None, content_type: str | None = None) -> Part:
    return Part(
        ordinal=0,
        name="a",
        url="",
        content_type=content_type,
        expected_bytes=size,
        expected_sha256=sha256,
        stored_key=None,
    )


def got(content_type: str | None = None, *, framed: bool = True) -> Downloaded:
    return Downloaded(sha256="a" * 64, size=3, content_type=content_type, final_url="", framed=framed)


@pytest.mark.parametrize(
    ("announced", "downloaded", "same"),
    [
        (part(), got(), True),
        (part(size=3, sha256="a" * 64, content_type="image/png"), got("image/png"), True),
        (part(size=4), got(), False),
        (part(sha256="b" * 64), got(), False),
        (part(content_type="image/png"), got("text/html; charset=utf-8"), False),
        (part(content_type="image/png"), got("Image/PNG; q=1"), True),
        (part(content_type="image/png"), got("binary/octet-stream"), True),
        (part(content_type="image/png", sha256="a" * 64), got("text/html"), True),
        (part(), got(framed=False), False),
        (part(size=3), got(framed=False), True),
        (part(sha256="a" * 64), got(framed=False), True),
    ],
)
def test_a_download_is_the_file_that_was_announced(
    announced: Part, downloaded: Downloaded, same: bool
) -> None:
    assert (differs(announced, downloaded) is None) is same
