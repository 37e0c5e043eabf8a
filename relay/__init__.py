"""From the WAL to Kafka. It knows what an outbox row is, and nothing of operations, providers or HTTP."""
