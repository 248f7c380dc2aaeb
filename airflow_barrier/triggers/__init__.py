"""Triggers: what deferred tasks wait with."""

#: Seconds between two looks. A tick is one query for all that wait for a topology.
POLL_INTERVAL = 0.5
#: Seconds without an answer that are survived.
PATIENCE = 300.0
