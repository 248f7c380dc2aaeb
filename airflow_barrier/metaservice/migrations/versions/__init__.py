"""Migration steps. A released step is never edited: a change of the schema is a new one."""
