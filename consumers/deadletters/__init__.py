"""The events that a consumer group has parked, as people see them and decide about them."""
