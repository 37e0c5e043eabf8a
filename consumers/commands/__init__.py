"""Sub-commands of `relay` that need operations or readers of Kafka, one module each; found by entry point."""
