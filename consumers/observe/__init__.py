"""Reads topics from outside the worker groups and shows the life of each operation. It never writes."""
