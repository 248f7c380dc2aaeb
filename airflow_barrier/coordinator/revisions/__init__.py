"""Correcting history: plan a revision, let runs compute it in a line of its own, publish it in one step."""
