"""A profile is read whole or refused with one sentence that says where."""

import hashlib
from pathlib import Path

import pytest

from consumers.providers.profile import Pacing, Profile
from consumers.providers.profiles_folder import SHIPPED, load_profiles
from provider_samples import profile
from relay.errors import UsageError

GENACE = (SHIPPED / "genace.yaml").read_text()


def refused(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        Profile.parse(text, source="p.yaml")
    message = str(caught.value)
    assert "\n" not in message
    assert "p.yaml" in message
    return message


def test_the_digest_is_that_of_the_documents_bytes() -> None:
    parsed = Profile.parse(GENACE, source="genace.yaml")
    assert parsed.text == GENACE
    assert parsed.digest == hashlib.sha256(GENACE.encode()).hexdigest()
    assert Profile.parse(GENACE + "\n", source="genace.yaml").digest != parsed.digest


def test_genace_says_only_what_is_published() -> None:
    genace = profile("genace")
    assert [(rule.status, rule.job_id, rule.accounting) for rule in genace.accept] == [
        ("2xx", "$.job_id", "reserved"),
        (502, "$.error.job_id", "unsettled"),
    ]
    assert (genace.reject, genace.idempotency, genace.cost) == ((), "none", "reserved")
    assert genace.account == "default"
    assert genace.late_delivery_s == 900
    assert {"submit.path", "observe.path", "observe.words", "observe.outputs"} <= set(genace.unverified)


def test_every_shipped_profile_is_found_under_its_name() -> None:
    assert {"genace", "simulator", "replicate", "kling"} <= set(load_profiles([]))


def test_a_later_folder_replaces_a_shipped_profile(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GENACE.replace("max_unsent: 8", "max_unsent: 3"))
    assert load_profiles([tmp_path])["genace"].max_unsent == 3


def test_two_profiles_of_one_name_in_one_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GENACE)
    (tmp_path / "b.yaml").write_text(GENACE)
    with pytest.raises(UsageError, match=r"two profiles called genace; .*b\.yaml"):
        load_profiles([tmp_path])


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such"):
        load_profiles([tmp_path / "no-such"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("deadline_s: 60", "deadline_s: soon", ("line 19", "submit.deadline_s")),
        ("deadline_s: 60", "deadline_s: 0", ("line 19", "submit.deadline_s")),
        ("margin_s: 15", "margn_s: 15", ("margn_s", "unknown", "column 1", "Did you mean margin_s?")),
        ("    Content-Type: application/json", "    Content-Type: 2024-11-06", ("a date", "quotes")),
        (
            "cost: reserved",
            "cost: reserved\nlimits: {polls_at_once: 0}",
            ("limits.polls_at_once", "at least 1"),
        ),
        ("cost: reserved", "cost: reserved\nvariables: {model: x}", ("variables.model", "nothing")),
        ("cost: reserved", "cost: reserved\nvariables: {secret: x}", ("stands for something else",)),
        ("idempotency: none", "idempotency: {mode: replay}", ("idempotency.retention_s", "missing")),
        (
            "idempotency: none",
            "idempotency: {mode: replay, retention_s: 3600}",
            ("${idempotency_key}", "belong together"),
        ),
        (
            "    Accept: application/json\n  body",
            "    Idempotency-Key: ${idempotency_key}\n  body",
            ("${idempotency_key}", "belong together"),
        ),
        ("cost: reserved", "cost: reserved\nclient_reference: {unique: true}", ("client_reference",)),
        ("status: 502", "status: 602", ("line 24", "602")),
        ("status: 2xx", "status: 2x", ("2x",)),
        ("$.error.job_id", "error.job_id", ("error.job_id", "$.job_id")),
        ("reject: []", "reject: []\nreject: []", ("'reject' twice",)),
        ("reject: []", "reject: [{status: 429, after: soon, charged: false}]", ("reject.0.after",)),
        ("reject: []", "reject: [{status: 429, after: delay, charged: true}]", ("charged",)),
        ("reject: []", "reject: [{status: 429, after: delay}]", ("charged",)),
        ("reject: []", "reject: [{status: 200, after: final, charged: false}]", ("2xx",)),
        ("reject: []", "reject: [{status: 402, after: fix, charged: false, path: $.a}]", ("equals",)),
        ("path: /v1/jobs/${job_id}", "path: /v1/jobs", ("${job_id}",)),
        ("path: /v1/jobs\n", "path: v1/jobs\n", ("submit",)),
        ("Bearer ${secret}", "Bearer ${token}", ("${token}",)),
        ("body: ${payload}", "body: '{\"x\": ${secret}}'", ("${secret}",)),
        ("    Content-Type: application/json", "    Content-Length: '5'", ("Content-Length",)),
        ("    Content-Type: application/json", "    Transfer-Encoding: chunked", ("Transfer-Encoding",)),
        ("secret: required", "secret: none", ("${secret}",)),
        ("name: genace", "name: Gen Ace", ("name",)),
        ("allowed_origins: []", "allowed_origins: [cdn.example]", ("cdn.example",)),
        ("max_s: 60", "max_s: 0.5", ("max_s",)),
        ("{default: 86400}", "{uncertain: 5}", ("default",)),
        ("succeeded: succeeded", "succeeded: done", ("observe.words",)),
        ("  - cost", "  - price", ("price",)),
        ("cost: reserved", "cost: free", ("free",)),
        ("idempotency: none", "idempotency: replay", ("idempotency",)),
        ("name: genace", "name: genace\n__digest__: x", ("__digest__",)),
    ],
)
def test_a_wrong_profile_is_refused_with_one_sentence_that_says_where(
    old: str, new: str, said: tuple[str, ...]
) -> None:
    assert old in GENACE
    message = refused(GENACE.replace(old, new, 1))
    for part in said:
        assert part in message


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "name: x\n\tb: c\n", "just text"])
def test_what_is_not_a_yaml_mapping_is_refused(text: str) -> None:
    refused(text)


def test_the_shortest_profile_has_safe_defaults() -> None:
    short = Profile.parse(
        "name: tiny\n"
        "submit: {path: /jobs}\n"
        "accept: [{status: 2xx, job_id: $.id}]\n"
        "observe: {path: '/jobs/${job_id}', status: $.s, words: {ok: succeeded}}\n",
        source="tiny.yaml",
    )
    assert (short.reject, short.idempotency, short.secret) == ((), "none", "required")
    assert (short.late_delivery_s, short.download.allowed_origins) == (900.0, ())
    assert short.limits.answer_bytes == 1024 * 1024


def test_waits_grow_to_their_bound_and_jitter_only_adds() -> None:
    pacing = Pacing(min_s=1.0, max_s=10.0, factor=2.0)
    assert [pacing.delay_s(n) for n in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert pacing.delay_s(10**9) == 10.0
    assert pacing.delay_s(0, jitter=0.5) == pytest.approx(1.1)


def test_a_cancel_names_the_job_and_says_whether_it_destroys() -> None:
    cancel = "cancel:\n  method: POST\n  path: /v1/jobs/${job_id}/cancel\n  destroys: true\n"
    read = Profile.parse(GENACE + cancel, source="p.yaml").cancel
    assert read is not None
    assert (read.method, read.destroys, read.body) == ("POST", True, "")
    assert Profile.parse(GENACE, source="p.yaml").cancel is None
    assert "path has no ${job_id}" in refused(GENACE + "cancel: {path: /v1/cancel}\n")
    assert "it may have only ${job_id}" in refused(GENACE + "cancel: {path: '/v1/${payload}/${job_id}'}\n")
    with_secret = "cancel:\n  path: /v1/${job_id}\n  headers: {X: '${operation_id}'}\n"
    assert "it may have only ${secret}" in refused(GENACE + with_secret)


def test_a_replay_needs_room_for_a_whole_request_before_the_key_is_forgotten() -> None:
    with_key = GENACE.replace(
        "    Accept: application/json\n", "    Idempotency-Key: ${idempotency_key}\n", 1
    )
    message = refused(
        with_key.replace("idempotency: none", "idempotency: {mode: replay, retention_s: 75}", 1)
    )
    assert "leaves no room for a replay" in message
    Profile.parse(
        with_key.replace("idempotency: none", "idempotency: {mode: replay, retention_s: 75.1}", 1),
        source="p.yaml",
    )


def test_variables_stand_in_the_document_and_change_its_digest() -> None:
    text = GENACE.replace("/v1/jobs\n", "/v1/${route}\n", 1) + "\nvariables:\n  route: renders\n"
    parsed = Profile.parse(text, source="p.yaml")
    assert (parsed.submit.path, parsed.text) == ("/v1/renders", text)
