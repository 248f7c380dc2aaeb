"""Sensors that wait for barriers."""
