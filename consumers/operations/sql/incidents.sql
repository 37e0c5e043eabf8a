-- name: incidents
-- Those without a decision first, then the newest. One of an operation that only Kafka knows has its evidence alone.
select i.incident_id, coalesce(i.operation_id, i.phantom_operation_id) as operation_id, i.attempt_id, i.boundary,
       i.what, i.evidence, i.opened_at, coalesce(o.kind, i.evidence ->> 'kind', '') as kind,
       coalesce(o.owner_id, i.evidence ->> 'owner_id', '') as owner_id, coalesce(o.operation_key, '') as operation_key,
       coalesce(o.phase, 'only in Kafka') as phase, d.decision, d.decided_by, d.decided_at, d.review_id as decided_by_review,
       (select array_agg(r.review_id order by r.opened_at) from relay.review r
         where r.operation_id = i.operation_id and r.state = 'open') as open_reviews
  from relay.incident i
  left join relay.operation o using (operation_id)
  left join relay.incident_decision d using (incident_id)
 where (%(incident_id)s::uuid is null or i.incident_id = %(incident_id)s)
   and (%(operation_id)s::uuid is null or coalesce(i.operation_id, i.phantom_operation_id) = %(operation_id)s)
   and (%(owner_id)s::text is null or coalesce(o.owner_id, i.evidence ->> 'owner_id') = %(owner_id)s)
   and (%(boundary)s::text is null or i.boundary = %(boundary)s)
   and (%(decided)s or d.incident_id is null)
 order by d.incident_id is null desc, i.opened_at desc, i.incident_id
 limit %(limit)s

-- name: decide
-- Once: of two people one decides, and the other is told.
insert into relay.incident_decision (incident_id, decision, decided_by)
values (%(incident_id)s, %(decision)s, %(actor)s)
on conflict (incident_id) do nothing
