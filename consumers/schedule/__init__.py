"""Timers: leases that ran out, polls and events that are due. They only ever write rows."""
