"""Operators that open, process, commit and abort barriers, and the group that puts them together."""
