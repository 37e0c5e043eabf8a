"""From Kafka to one outside effect: the runtime of consumers, and what dispatches, collects and delivers."""
