"""Writing Kafka: transactions, checkpoint and topics. Nothing here knows of the write-ahead log."""
