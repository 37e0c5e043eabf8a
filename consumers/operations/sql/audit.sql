-- Every block gives the operation (or null) and a sentence; no row is the good case. None of them trusts a guard:
-- they ask what a guard would have refused, since owners and superusers can switch guards off.

-- name: specifications
select operation_id, kind, provider, profile_digest, payload_version, max_cost, cost_unit, payload,
       payload_sha256, payload_bytes, specification_hash
  from relay.operation
 -- Of what was redacted only a digest can be left to hold the hash against.
 where redacted_at is null or payload_sha256 is not null

-- name: redaction_journaled
select o.operation_id, case when o.redacted_at is null then 'its journal has a redaction, and it is not redacted'
                            else 'it is redacted, and its journal doesn''t say by whom' end
  from relay.operation o
 where (o.redacted_at is not null) <> exists (
         select 1 from relay.journal j where j.operation_id = o.operation_id and j.cause = 'redaction'
            and j.from_phase = j.to_phase)

-- name: redaction_blank
select operation_id, 'it is redacted, and has a payload'
  from relay.operation where redacted_at is not null and (payload is not null or payload_ref is not null)

-- name: profiles
select null::uuid, format('the profile %%s %%s is not the document that its digest was made from',
                          provider, left(digest, 12))
  from relay.provider_profile where encode(sha256(convert_to(document, 'UTF8')), 'hex') <> digest

-- name: journal_versions
select o.operation_id, format('its version is %%s, and its journal has %%s entries up to %%s',
                              o.version, count(j.version), coalesce(max(j.version), 0))
  from relay.operation o left join relay.journal j using (operation_id)
 group by o.operation_id
having count(j.version) <> o.version or coalesce(max(j.version), 0) <> o.version
    or coalesce(min(j.version), 1) <> 1

-- name: journal_chain
select operation_id, format('its journal''s entry %%s begins in %%s, and the one before ended in %%s', version,
                            coalesce(from_phase, 'nothing'), coalesce(came_to, 'nothing'))
  from (select operation_id, version, from_phase,
               lag(to_phase) over (partition by operation_id order by version) as came_to
          from relay.journal) entry
 where from_phase is distinct from came_to

-- name: journal_end
select o.operation_id, format('it is %%s, and its journal says %%s', o.phase, j.to_phase)
  from relay.operation o join relay.journal j using (operation_id, version)
 where j.to_phase <> o.phase

-- name: journal_edges
select j.operation_id, format('its journal has %%s → %%s by %%s, which is no edge of its lifecycle',
                              coalesce(j.from_phase, 'nothing'), j.to_phase, j.cause)
  from relay.journal j
  join relay.operation o using (operation_id)
  join relay.operation_kind k on k.kind = o.kind
 where not (j.cause = 'redaction' and j.from_phase is not distinct from j.to_phase)
   and not exists (select 1 from relay.lifecycle_edge e
                    where e.lifecycle = k.lifecycle and e.from_phase = coalesce(j.from_phase, '')
                      and e.to_phase = j.to_phase and e.cause = j.cause)

-- name: journal_final
select o.operation_id, format('it is %%s, and marked as %%s', o.phase,
                              case when o.is_final then 'final' else 'not final' end)
  from relay.operation o
  join relay.operation_kind k on k.kind = o.kind
  join relay.lifecycle_phase p on p.lifecycle = k.lifecycle and p.phase = o.phase
 where p.is_final <> o.is_final

-- name: events
-- Where the outbox was pruned, what is older than its oldest row can't be told.
select j.operation_id, format('its transition %%s (%%s) has no event in the outbox', j.version, j.to_phase)
  from relay.journal j
 where j.at > (select min(occurred_at) from relay.outbox)
   and not exists (select 1 from relay.outbox e
                    where e.event_type = 'operation.transitioned' and e.operation_id = j.operation_id
                      and e.version = j.version)

-- name: submissions
-- Each of these may have made a job: one is what was approved, a second has nobody's leave.
-- With one key and the same bytes, where the profile declares that its provider keeps keys, they are one; of such the
-- last may only have begun while it certainly did.
select operation_id, format('%%s submissions of it may have made a job, and no review released all but one',
                            count(*))
  from (select distinct a.operation_id,
               case when p.idempotency is not null and a.first_sent_at < a.first + make_interval(
                           secs => ((p.idempotency ->> 'retention_s')::numeric
                                    - (p.idempotency ->> 'request_s')::numeric)::double precision)
                    then coalesce(a.idempotency_key || ' ' || a.request_sha256, a.attempt_id::text)
                    else a.attempt_id::text end as job
          from (select t.*, min(t.first_sent_at) over (partition by t.operation_id, t.idempotency_key) as first
                  from relay.attempt t where t.action = 'submit' and t.outcome <> 'unsent') a
          join relay.operation o using (operation_id)
          left join relay.provider_profile p on p.provider = o.provider and p.digest = o.profile_digest
         where a.outcome in ('open', 'accepted', 'unknown') and a.released_by_review is null
           and not a.restored  -- what released those is lost with what they were
       ) submission
 group by operation_id having count(*) > 1

-- name: submissions_released
select a.operation_id, format('its attempt %%s was released by a review that didn''t decide so', a.attempt_id)
  from relay.attempt a
  left join relay.review r on r.review_id = a.released_by_review
 where a.released_by_review is not null
   and (r.review_id is null or r.operation_id <> a.operation_id or r.state <> 'resolved'
        or r.resolution not like 'not-accepted:%%')

-- name: submissions_answered
-- A review can only be resolved as its kind and the phase of that moment allow.
select r.operation_id, format('its review %%s (%%s) was resolved as %%s, which is no answer to it', r.review_id, r.kind,
                              r.resolution)
  from relay.review r
 where r.state = 'resolved' and r.answers_its_kind and not exists (select 1 from relay.review_option o
                                             where o.kind = r.kind and o.resolution = r.resolution)

-- name: submissions_by_review
-- The cause `review` in the journal must be a review that a person resolved.
select j.operation_id, format('its transition %%s was made by a review that was never resolved', j.version)
  from relay.journal j
  left join relay.review r on r.review_id = j.review_id and r.operation_id = j.operation_id
 where j.cause = 'review' and (r.review_id is null or r.state <> 'resolved' or r.resolved_by is null)

-- name: jobs_primary
select o.operation_id, format('its job %%s is not among the jobs that were seen for it', o.job_id)
  from relay.operation o
 where o.job_id is not null
   and not exists (select 1 from relay.remote_job j where j.operation_id = o.operation_id
                    and j.job_id = o.job_id and j.role in ('primary', 'duplicate'))

-- name: jobs_needed
select o.operation_id, format('it is %%s without a job', o.phase)
  from relay.operation o
 where o.job_id is null and (o.phase in ('accepted', 'succeeded', 'lost')
        or (o.phase = 'failed' and o.parent_operation_id is null))

-- name: jobs_kept
select a.operation_id, format('its attempt %%s was accepted, and no job of it is kept', a.attempt_id)
  from relay.attempt a
 where a.action = 'submit' and a.outcome = 'accepted'
   and not exists (select 1 from relay.remote_job j where j.operation_id = a.operation_id)

-- name: money_allowances
select null::uuid, format('the allowance of %%s in %%s says reserved %%s, disputed %%s, settled %%s, and its'
                          ' reservations add up to %%s, %%s, %%s', a.owner_id, a.unit, a.reserved, a.disputed,
                          a.settled, coalesce(r.reserved, 0), coalesce(r.disputed, 0), coalesce(r.settled, 0))
  from relay.allowance a
  left join (select owner_id, unit, sum(amount) filter (where state = 'reserved') as reserved,
                    sum(amount) filter (where state = 'disputed') as disputed,
                    sum(settled_amount) filter (where state = 'settled') as settled
               from relay.reservation group by owner_id, unit) r using (owner_id, unit)
 where (a.reserved, a.disputed, a.settled)
       is distinct from (coalesce(r.reserved, 0), coalesce(r.disputed, 0), coalesce(r.settled, 0))

-- name: money_ledger
-- A reservation is what its entries in the ledger add up to, and no more.
select r.operation_id, format('the reservation of attempt %%s is %%s of %%s, and the ledger has: %%s', r.attempt_id,
                              r.state, coalesce(r.settled_amount, r.amount), coalesce(l.entries, 'nothing'))
  from relay.reservation r
  left join (select attempt_id, string_agg(entry || ' ' || amount, ', ' order by entry_id) as entries,
                    coalesce(sum(amount) filter (where entry = 'reserve'), 0) as made,
                    count(*) filter (where entry = 'reserve') as reserves,
                    sum(reserved_change) as reserved, sum(disputed_change) as disputed, sum(settled_change) as settled
               from relay.ledger where attempt_id is not null group by attempt_id) l using (attempt_id)
 where l.attempt_id is null or l.reserves <> 1 or l.made <> r.amount
    or (l.reserved, l.disputed, l.settled) is distinct from (
         case r.state when 'reserved' then r.amount else 0 end,
         case r.state when 'disputed' then r.amount else 0 end,
         case r.state when 'settled' then r.settled_amount else 0 end)

-- name: money_entries
-- What an entry says that it is, and what it says that it changed.
select operation_id, format('the ledger''s entry %%s (%%s %%s) changed reserved by %%s, disputed by %%s, settled by %%s',
                            entry_id, entry, amount, reserved_change, disputed_change, settled_change)
  from relay.ledger
 where not case entry
         when 'limit' then (reserved_change, disputed_change, settled_change) = (0, 0, 0)
         when 'overrun' then (reserved_change, disputed_change, settled_change) = (0, 0, 0)
         when 'reserve' then (reserved_change, disputed_change, settled_change) = (amount, 0, 0)
         when 'release' then (reserved_change, disputed_change, settled_change) = (-amount, 0, 0)
         when 'dispute' then (reserved_change, disputed_change, settled_change) = (-amount, amount, 0)
         when 'rebook' then (reserved_change, disputed_change, settled_change) = (0, amount, 0)
         when 'correct' then (reserved_change, disputed_change, settled_change) = (0, 0, amount)
         when 'settle' then settled_change = amount and greatest(reserved_change, disputed_change) <= 0
         when 'refund' then reserved_change + disputed_change + settled_change = -amount
         else false end

-- name: money_totals
-- The ledger's sums are the allowance's columns.
select null::uuid, format('the allowance of %%s in %%s says reserved %%s, disputed %%s, settled %%s, and the ledger adds'
                          ' up to %%s, %%s, %%s', owner_id, unit, a.reserved, a.disputed, a.settled, l.reserved,
                          l.disputed, l.settled)
  from relay.allowance a
  full join (select owner_id, unit, sum(reserved_change) as reserved, sum(disputed_change) as disputed,
                    sum(settled_change) as settled from relay.ledger group by owner_id, unit) l using (owner_id, unit)
 where (a.reserved, a.disputed, a.settled) is distinct from (l.reserved, l.disputed, l.settled)

-- name: money_batches
-- A batch's money is that of its members.
select null::uuid, format('the batch %%s says reserved %%s, disputed %%s, settled %%s, and its members add up to %%s, %%s,'
                          ' %%s', b.batch_id, b.reserved, b.disputed, b.settled, coalesce(r.reserved, 0),
                          coalesce(r.disputed, 0), coalesce(r.settled, 0))
  from relay.batch b
  left join (select o.batch_id, sum(amount) filter (where state = 'reserved') as reserved,
                    sum(amount) filter (where state = 'disputed') as disputed,
                    sum(settled_amount) filter (where state = 'settled') as settled
               from relay.reservation join relay.operation o using (operation_id) group by o.batch_id) r
    using (batch_id)
 where (b.reserved, b.disputed, b.settled)
       is distinct from (coalesce(r.reserved, 0), coalesce(r.disputed, 0), coalesce(r.settled, 0))

-- name: money_overrun
select null::uuid, format('the claims of %%s in %%s are %%s, and its reservations say otherwise', a.owner_id, a.unit,
                          case when a.overrun then 'stopped by an overrun' else 'not stopped' end)
  from relay.allowance a
 where a.overrun <> exists (select 1 from relay.reservation r
                             where r.owner_id = a.owner_id and r.unit = a.unit and r.overrun)

-- name: batch_members
-- Members, those that are open (one that succeeded until its delivery has ended) and those in flight.
select null::uuid, format('the batch %%s says %%s members, %%s open, %%s in flight, and has %%s, %%s, %%s', b.batch_id,
                          b.members, b.open_members, b.in_flight, coalesce(c.members, 0), coalesce(c.open, 0),
                          coalesce(c.in_flight, 0))
  from relay.batch b
  left join (select o.batch_id, count(*) filter (where o.parent_operation_id is null) as members,
                    count(*) filter (where o.parent_operation_id is null and (not o.is_final
                      or (k.lifecycle = 'generation' and o.phase = 'succeeded')))
                    - count(*) filter (where o.parent_operation_id is not null and o.is_final) as open,
                    count(*) filter (where o.parent_operation_id is null
                      and o.phase in ('claimed', 'submitting', 'uncertain', 'accepted')) as in_flight
               from relay.operation o join relay.operation_kind k on k.kind = o.kind
              where o.batch_id is not null group by o.batch_id) c using (batch_id)
 where (b.members, b.open_members, b.in_flight)
       is distinct from (coalesce(c.members, 0), coalesce(c.open, 0), coalesce(c.in_flight, 0))

-- name: batch_completed
select null::uuid, format('the batch %%s is sealed and has no open member, and didn''t complete', batch_id)
  from relay.batch where sealed_at is not null and open_members = 0 and completed_at is null
union all
select null::uuid, format('the batch %%s completed, and %%s events say so', b.batch_id, e.events)
  from relay.batch b
  cross join lateral (select count(*) as events from relay.outbox e
                       where e.operation_id = b.batch_id and e.event_type = 'batch.completed') e
 where b.completed_at > (select min(occurred_at) from relay.outbox) and e.events <> 1

-- name: money_limit_set
select null::uuid, format('the limit of %%s in %%s is %%s, and the ledger last set %%s', a.owner_id, a.unit,
                          a.limit_amount, coalesce(l.amount::text, 'none'))
  from relay.allowance a
  left join lateral (select amount from relay.ledger l where l.owner_id = a.owner_id and l.unit = a.unit
                       and l.entry = 'limit' order by entry_id desc limit 1) l on true
 where l.amount is distinct from a.limit_amount

-- name: money_limit_kept
-- The ledger, replayed: at each reservation, was what was booked within the limit then in force? What was
-- submitted before a restore is booked whatever the limit.
with entry as (
  select l.owner_id, l.unit, l.entry_id, l.entry, l.operation_id, l.attempt_id, l.amount,
         sum(reserved_change + disputed_change + settled_change)
           over (partition by l.owner_id, l.unit order by l.entry_id) as total,
         count(*) filter (where l.entry = 'limit')
           over (partition by l.owner_id, l.unit order by l.entry_id) as limit_no
    from relay.ledger l),
booked as (
  select e.*, first_value(amount) over (partition by owner_id, unit, limit_no order by entry_id) as limit_then
    from entry e)
select operation_id, format('%%s of %%s were reserved for %%s beyond its limit of %%s %%s', total - limit_then, amount,
                            owner_id, limit_then, unit)
  from booked where entry = 'reserve' and (limit_no = 0 or total > limit_then)
   and not exists (select 1 from relay.attempt a where a.attempt_id = booked.attempt_id and a.restored)

-- name: money_unbooked
select a.operation_id, format('its attempt %%s is %%s, and no money is booked for it', a.attempt_id, a.outcome)
  from relay.attempt a
 where a.action = 'submit' and a.outcome in ('open', 'accepted', 'unknown')
   -- A declared replay is paid from the reservation of the request that it repeats.
   and not exists (select 1 from relay.reservation r join relay.attempt e on e.attempt_id = r.attempt_id
                    where r.state in ('reserved', 'disputed', 'settled') and (e.attempt_id = a.attempt_id or (
                          e.operation_id = a.operation_id and e.idempotency_key = a.idempotency_key
                          and e.request_sha256 = a.request_sha256)))

-- name: money_above
select r.operation_id, format('attempt %%s settled %%s of %%s reserved, and no overrun is booked', r.attempt_id,
                              r.settled_amount, r.amount)
  from relay.reservation r
 where r.settled_amount > r.amount
   and not exists (select 1 from relay.ledger l where l.attempt_id = r.attempt_id and l.entry = 'overrun')

-- name: money_stranded
-- Reserved for a claim that is over and made no attempt: nothing will ever settle or release it.
select r.operation_id, format('%%s %%s stay reserved for a claim that is over', r.amount, r.unit)
  from relay.reservation r join relay.operation o using (operation_id)
 where r.state = 'reserved' and o.claim_token is distinct from r.attempt_id
   and not exists (select 1 from relay.attempt a where a.attempt_id = r.attempt_id)

-- name: waker_none
select operation_id, format('it is %%s with no lease, no next action and no open review', phase)
  from relay.operation
 where not is_final and lease_expires_at is null and next_action_at is null and open_reviews = 0

-- name: waker_reviews
select o.operation_id, format('it counts %%s open reviews, and has %%s', o.open_reviews, count(r.review_id))
  from relay.operation o left join relay.review r on r.operation_id = o.operation_id and r.state = 'open'
 group by o.operation_id having count(r.review_id) <> o.open_reviews

-- name: waker_hold
-- What schedule releases has what it waits for; every other hold has a review.
select operation_id, format('it is held for %%s, and nothing will ever release it', phase_reason)
  from relay.operation
 where phase = 'held' and open_reviews = 0
   and case phase_reason when 'batch' then batch_id is null when 'paused' then provider is null
                         when 'allowance' then false else true end

-- name: waker_overdue
select operation_id, format('it is %%s, and has been due for %%s s', phase,
                            floor(extract(epoch from relay.now() - coalesce(lease_expires_at, next_action_at))))
  from relay.operation
 where not is_final
   and coalesce(lease_expires_at, next_action_at) < relay.now() - make_interval(secs => %(overdue_s)s)

-- name: delivery_missing
select o.operation_id, 'it succeeded, and nothing delivers its outputs'
  from relay.operation o
  join relay.operation_kind k on k.kind = o.kind and k.lifecycle = 'generation'
 where o.phase = 'succeeded'
   and not exists (select 1 from relay.operation d where d.parent_operation_id = o.operation_id)

-- name: delivery_unstored
select d.operation_id, format('it is stored, and %%s of its outputs are not', count(*))
  from relay.operation d join relay.output f on f.operation_id = d.parent_operation_id
 where d.phase = 'stored' and f.stored_at is null
 group by d.operation_id

-- name: delivery_digest
select f.operation_id, format('its output %%s was stored with another digest than the provider named', f.ordinal)
  from relay.output f
 where f.stored_key is not null and f.expected_sha256 is not null and f.stored_sha256 <> lower(f.expected_sha256)

-- name: delivery_size
select f.operation_id, format('its output %%s was stored with %%s bytes, and the provider named %%s', f.ordinal,
                              f.stored_bytes, f.expected_bytes)
  from relay.output f
 where f.stored_key is not null and f.expected_bytes is not null and f.stored_bytes is distinct from f.expected_bytes

-- name: delivery_keys
select min(f.operation_id::text)::uuid, format('%%s outputs are stored under the one key %%s', count(*), f.stored_key)
  from relay.output f where f.stored_key is not null group by f.stored_key having count(*) > 1

-- name: guards_off
select null::uuid, format('the guard %%s of relay.%%s is not enabled always', t.tgname, c.relname)
  from pg_trigger t join pg_class c on c.oid = t.tgrelid
 where c.relnamespace = 'relay'::regnamespace and not t.tgisinternal and t.tgenabled <> 'A'

-- name: guards_missing
select null::uuid, format('relay.%%s has lost its guard %%s', wanted.relation, wanted.guard)
  from (values ('operation', 'b_guard'), ('operation', 'c_journal'), ('operation', 'd_waker'),
               ('operation', 'a_forbidden'), ('attempt', 'b_guard'), ('attempt', 'c_money'),
               ('attempt', 'a_forbidden'), ('attempt', 'b_release'), ('attempt', 'b_next_request'),
               ('attempt', 'd_late_refusal'), ('attempt', 'd_late_answer'), ('attempt', 'b_guard_restored'), ('attempt', 'b_guard_restoring'),
               ('source_identity', 'b_verified'), ('source_identity', 'c_hold_restored'),
               ('operation', 'b_own_refusal'), ('review', 'b_guard'), ('review', 'c_count'),
               ('review', 'b_resolution'), ('incident_decision', 'b_guard'), ('incident_decision', 'a_forbidden'),
               ('review', 'a_forbidden'), ('remote_job', 'b_guard'), ('remote_job', 'a_forbidden'),
               ('journal', 'a_forbidden'), ('ledger', 'a_forbidden'), ('outbox', 'a_forbidden'),
               ('outbox', 'b_guard'), ('incident', 'a_forbidden'), ('incident', 'b_guard'), ('operation', 'a_owner'),
               ('operation', 'a_owner_update'), ('batch', 'a_owner'), ('provider_profile', 'a_forbidden'),
               ('reservation', 'a_forbidden'), ('allowance', 'a_forbidden'), ('output', 'a_forbidden'),
               ('operation', 'b_guard_reference'), ('operation', 'b_forget_waiting'),
               ('batch', 'a_forbidden'), ('batch', 'b_guard'), ('operation', 'a_membership'),
               ('operation', 'b_batch'), ('remote_job', 'c_money'), ('remote_job', 'c_money_role'))
         as wanted (relation, guard)
 where not exists (select 1 from pg_trigger t join pg_class c on c.oid = t.tgrelid
                    where c.relnamespace = 'relay'::regnamespace and c.relname = wanted.relation
                      and t.tgname = wanted.guard)
