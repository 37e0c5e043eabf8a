"""`relay demo`: the whole path on one machine, with faults and crashes, judged by the invariants."""
