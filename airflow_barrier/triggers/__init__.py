"""Triggers: what deferred tasks wait with."""
