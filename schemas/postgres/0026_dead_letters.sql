-- What people decided about the events that a consumer group parked: each once, by whom and why.

-- The record itself stays in Kafka, in {topic}.{group}.dlq; its place there names it. `requested` is written before
-- the event goes to the group's retry topic and `replayed` after Kafka has it, so that no crash repeats it unseen.
create table relay.dead_letter_decision (
  group_id text not null check (length(group_id) between 1 and 300),
  topic text not null,
  partition integer not null,
  "offset" bigint not null,
  event_id uuid,
  state text not null check (state in ('requested', 'replayed', 'discarded')),
  times integer not null default 1 check (times > 0),
  who text not null,
  login text not null default session_user,
  why text,
  decided_at timestamptz not null default relay.now(),
  primary key (group_id, topic, partition, "offset"),
  check (state <> 'discarded' or why ~ '[^[:space:]]')
);
select relay.forbid('relay.dead_letter_decision', 'delete', 'a decision is a record');

grant select on relay.dead_letter_decision to relay_worker, relay_operator, relay_reader;
grant insert, update on relay.dead_letter_decision to relay_operator;
