-- name: document
select document from relay.provider_profile where provider = %(provider)s and digest = %(digest)s

-- name: current
select provider, account, current_digest from relay.provider_account

-- name: push_profile
insert into relay.provider_profile (provider, digest, document, idempotency)
values (%(provider)s, %(digest)s, %(document)s, %(idempotency)s)
on conflict (provider, digest) do nothing

-- name: push_deadline
insert into relay.review_deadline (provider, digest, kind, seconds)
values (%(provider)s, %(digest)s, %(kind)s, %(seconds)s) on conflict do nothing

-- name: push_account
insert into relay.provider_account (provider, account, current_digest) values (%(provider)s, %(account)s, %(digest)s)
on conflict (provider, account) do update set current_digest = excluded.current_digest
 where relay.provider_account.current_digest <> excluded.current_digest

-- name: current_documents
select a.provider, a.account, p.document
  from relay.provider_account a
  join relay.provider_profile p on p.provider = a.provider and p.digest = a.current_digest
