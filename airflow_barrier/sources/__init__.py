"""The port for external sources (:mod:`.port`), and one adapter a file."""
