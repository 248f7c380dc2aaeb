"""How a database gets the schema, one step a file in ``versions/``."""
