"""The only package that holds SQL on operations."""
