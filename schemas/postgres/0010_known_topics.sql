-- The relay's topics as it met them: one that is deleted, made anew or repartitioned while no relay runs is noticed
-- at the next start, before anything is published.

create table relay.known_topic (
  relay_id uuid not null,
  topic text not null,
  topic_id text,  -- Kafka's own, which changes when a topic is made anew; null: accepted as gone
  partitions integer check (partitions > 0),
  recorded_at timestamptz not null default relay.now(),
  recorded_by text not null default session_user,  -- the relay's login, or whoever accepted a change
  primary key (relay_id, topic),
  check ((topic_id is null) = (partitions is null))
);

grant select on relay.known_topic to relay_replicator, relay_worker, relay_operator, relay_reader;
grant insert, update on relay.known_topic to relay_replicator, relay_operator;
