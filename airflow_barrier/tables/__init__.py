"""The port for table formats (:mod:`.port`), and one adapter a file."""
