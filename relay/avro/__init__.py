"""Avro: the schemas on the wire, their framing, and JSON to typed bytes."""
