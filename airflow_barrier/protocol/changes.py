"""Names of the columns by which rows tell of changes, and their values."""

from __future__ import annotations

#: Of a row: :data:`INSERT`, :data:`DELETE` or :data:`TRUNCATE`. An update is the old row deleted, the new one inserted.
CHANGE_TYPE = "_change_type"
INSERT, DELETE = "insert", "delete"
#: All rows of the table went. Such a row has no values, and the weight 0.
TRUNCATE = "truncate"
#: +1: the row came, -1: the row went.
WEIGHT = "_weight"
#: The number of a change among all of its source, in the order in which they were made.
SEQUENCE = "_seq"
#: The transaction of its database that made it, and when that was committed.
XID, COMMITTED_AT = "_xid", "_committed_at"
#: The names of the row's columns whose values its source did not tell: they are NULL, and may be anything.
UNSENT = "_unsent"
#: All columns that tell of a change; a row's others are its table's.
COLUMNS = (CHANGE_TYPE, WEIGHT, SEQUENCE, XID, COMMITTED_AT, UNSENT)
