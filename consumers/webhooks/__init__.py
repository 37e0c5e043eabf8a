"""Receiving providers' webhooks: each only says that it is time to look."""
