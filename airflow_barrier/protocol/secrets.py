"""Texts that somebody else wrote, such as the error of a job, without the secrets that stand in them."""

from __future__ import annotations

import re

_HIDDEN = "***"
#: ``user:secret@`` of a URL. A secret may have any character but those that end it.
_USER = re.compile(r"(?<=://)([^\s/?#:@]*):[^\s/]+(?=@)")
#: A name that is a secret's, whatever comes before and after it, and its value: in a URL's query, properties, JSON,
#: keywords of Python. What our own errors say of such a name begins with another word.
_NAMED = re.compile(
    r"""(?ix)
    ( (?: password | passwd | passphrase | pwd | secret | token | api[_.-]?key | access[_.-]?key | account[_.-]?key
        | private[_.-]?key | credentials? ) (?: [_.-] [\w.-]{0,99} )? ["']? \s* [=:] \s* )
    (?! expected\b ) ( "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [^\s,;&"')}\]]+ )
    """
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")


def without_secrets(text: str) -> str:
    """The text, with ``***`` for what looks like a secret: passwords in URLs, and values whose name is a secret's.

    What a secret looks like is a guess: who knows its value hides that before.

    >>> without_secrets("no route to jdbc:postgresql://db/dwh?user=dwh&password=geheim&ssl=true")
    'no route to jdbc:postgresql://db/dwh?user=dwh&password=***&ssl=true'
    >>> without_secrets("postgresql://dwh:geheim@db/dwh")
    'postgresql://dwh:***@db/dwh'
    """
    text = _USER.sub(rf"\1:{_HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {_HIDDEN}", text)
    return _NAMED.sub(rf"\1{_HIDDEN}", text)
