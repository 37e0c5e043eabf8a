"""Reading the write-ahead log: slot, stream, decoder and watermark. Nothing here knows of Kafka."""
