"""One query, taken apart by sqlglot; what is none is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

from sqlglot import Dialect, exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from airflow_barrier.protocol.errors import NotAReadError, SqlSyntaxError, UnpinnableError

_QUERIES = (exp.Query, exp.Values, exp.Pivot)
# Checked before the statement is parsed: sqlglot does not know every statement that an engine knows.
_BEGINNINGS = frozenset(
    {
        TokenType.SELECT,
        TokenType.WITH,
        TokenType.FROM,
        TokenType.VALUES,
        TokenType.TABLE,
        TokenType.L_PAREN,
        TokenType.PIVOT,
        TokenType.UNPIVOT,
    }
)
_NAMES = frozenset({TokenType.VAR, TokenType.IDENTIFIER})
#: What names begin with that are known at run time only.
_AT_RUN_TIME = frozenset({TokenType.PARAMETER, TokenType.PLACEHOLDER, TokenType.COLON, TokenType.L_BRACE})
#: Of keywords, which may be names as well.
_WORD = re.compile(r"[^\W\d]\w*")
#: What quotes and comments begin with.
_OPENS = re.compile(r"""['"`$]|/\*|\{#""")


@dataclass(frozen=True)
class Statement:
    """A query with its text, whose nodes know where in the text they stand."""

    text: str
    tree: exp.Expr
    tokens: Sequence[Token]

    @classmethod
    def of(cls, sql: str, dialect: str, what: str = "SQL") -> Statement:
        """``dialect`` as sqlglot calls it; ``what`` the text is, for errors. A semicolon at the end is left away.

        Raises SqlSyntaxError, and NotAReadError for anything but one query that writes nothing.
        """
        grammar = Dialect.get_or_raise(dialect)
        try:
            tokens = grammar.tokenize(sql)
            text, tokens = _one(sql, tokens, what)
            (tree,) = grammar.parser().parse(tokens, text)
        except ParseError as error:
            _refuse_syntax(what, error)
        except TokenError as error:
            # the cause says "Missing ' from 2:12", of a place that is none, or is an IndexError
            cause = error.__cause__
            reason = str(cause).split(" from ")[0] if isinstance(cause, TokenError) else "a comment does not end"
            raise SqlSyntaxError(
                f"{what}, {_position(sql, _read_up_to(grammar, sql))}: expected a query, found text that does not fit: "
                f"{reason}"
            ) from error
        except RecursionError:
            depth, innermost = _innermost(tokens)
            raise SqlSyntaxError(
                f"{what}, {_position(sql, innermost.start)}: expected a query, found one that is nested too deeply to "
                f"be read, by {depth} brackets here; make parts of it common table expressions (WITH)"
            ) from None
        if tree is None or not isinstance(tree, _QUERIES):
            raise NotAReadError(  # safety: reads-only
                f"{what}: expected a query, found {_kind(tree)}; consistent reading changes nothing, run it in "
                "an ordinary session"
            )
        for write in tree.find_all(exp.DML, exp.DDL, exp.Into, exp.Command):
            raise NotAReadError(  # safety: reads-only-inside
                f"{what}: expected a query that writes nothing, found {_kind(write)} in it; consistent reading changes "
                "nothing: write the result elsewhere, in a statement of its own"
            )
        return cls(text, tree, tokens)

    def require_no_names_by_pipes(self, what: str) -> None:
        """``|> AS name`` is an alias, but the parser makes a common table expression of it, which would hide a table of
        that name; and it makes others up, called ``__tmp1``.
        """
        if all(token.token_type != TokenType.PIPE_GT for token in self.tokens):
            return
        for before, token in pairwise(self.tokens):
            by_pipe = before.token_type == TokenType.PIPE_GT and token.token_type == TokenType.ALIAS
            if by_pipe or (token.token_type in _NAMES and token.text.casefold().startswith("__tmp")):
                found = self.text[before.start : token.end + 1]
                raise UnpinnableError(  # safety: pipes-hide-no-table
                    f"{what}: expected pipes without names of their own, found {found!r} (line {token.line}), by which "
                    "tables of that name cannot be pinned; give names in FROM, in JOIN or by WITH"
                )

    def require_no_table_by_keyword(self, left: frozenset[int], hiding: frozenset[str], what: str) -> None:
        """``TABLE name`` instead of a subquery cannot take a snapshot; in some dialects it is not even seen, but taken
        for a column or a table called ``table``. Refused, unless what starts there is ``left`` as it is; and so are
        functions that are ``hiding`` tables, in ``TABLE(...)``.
        """
        for at, token in enumerate(self.tokens):
            if token.token_type != TokenType.TABLE or (at and self.tokens[at - 1].token_type == TokenType.DOT):
                continue
            after = self.tokens[at + 1 :]
            in_brackets = bool(after) and after[0].token_type == TokenType.L_PAREN
            name = self._dotted(after[1:] if in_brackets else after)
            if not name or name[0].start in left:
                continue
            if not in_brackets or not self._yields_rows(name, after[1 + len(name) :], hiding):
                found = self.text[token.start : name[-1].end + 1]
                raise UnpinnableError(  # safety: table-by-keyword
                    f"{what}: expected SELECT * FROM ..., found {found!r} (line {token.line}), which cannot be "
                    "pinned; write the table as a subquery, (SELECT * FROM ...), and a column of that name in quotes"
                )

    def _yields_rows(self, name: Sequence[Token], after: Sequence[Token], hiding: frozenset[str]) -> bool:
        """Return whether what begins with ``name`` in the brackets of ``TABLE(...)`` is a query, or a function that
        may be.
        """
        if after[:1] and after[0].token_type == TokenType.L_PAREN and name[0].token_type not in _BEGINNINGS:
            return name[-1].text.casefold() not in hiding
        return name[0].token_type in _BEGINNINGS and after[:1] != [] and after[0].token_type != TokenType.R_PAREN

    def _dotted(self, tokens: Sequence[Token]) -> list[Token]:
        """The tokens of the name, of one part or more, that ``tokens`` begin with. A keyword may be a name. Of one
        that is known at run time only, the first.
        """
        if tokens and tokens[0].token_type in _AT_RUN_TIME:
            return [tokens[0]]
        name: list[Token] = []
        for at, token in enumerate(tokens):
            is_word = token.token_type in _NAMES or _WORD.fullmatch(self.text[token.start : token.end + 1])
            if not (token.token_type == TokenType.DOT if at % 2 else is_word):
                break
            name.append(token)
        return name


def _one(sql: str, tokens: Sequence[Token], what: str) -> tuple[str, list[Token]]:
    """Text and tokens of the one statement that there is."""
    ends = next((at for at, token in enumerate(tokens) if token.token_type == TokenType.SEMICOLON), len(tokens))
    first = list(tokens[:ends])
    if any(token.token_type != TokenType.SEMICOLON for token in tokens[ends:]):
        raise NotAReadError(  # safety: one-statement
            f"{what}: expected one query, found more after ';' (line {tokens[ends].line}); run one after the other"
        )
    if not first:
        raise NotAReadError(  # safety: one-statement
            f"{what}: expected a query, found no statement"
        )
    if first[0].token_type not in _BEGINNINGS:
        raise NotAReadError(  # safety: reads-only
            f"{what}: expected a query, found a statement that begins with {first[0].text.upper()!r}; consistent "
            "reading changes nothing and runs queries only: run it in an ordinary session"
        )
    return (sql if ends == len(tokens) else sql[: tokens[ends].start]), first


def _read_up_to(grammar: Dialect, sql: str) -> int:
    """Return where the quote or comment begins that ``sql`` ends within: up to there it is whole."""
    for opened in reversed(list(_OPENS.finditer(sql))):
        start = opened.start()
        if sql[start] == sql[start - 1 : start]:
            continue  # a doubled quote, which is one character of a text
        try:
            grammar.tokenize(sql[:start])
        except TokenError:
            continue
        return start
    return 0


def _innermost(tokens: Sequence[Token]) -> tuple[int, Token]:
    """Return how deep brackets are nested, and the first token that is so deep."""
    depth, found = 0, (0, tokens[0])
    for token in tokens:
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth > found[0]:
            found = depth, token
    return found


def _position(sql: str, at: int) -> str:
    return f"line {sql.count(chr(10), 0, at) + 1}, column {at - sql.rfind(chr(10), 0, at)}"


def _kind(tree: exp.Expr | None) -> str:
    return "nothing" if tree is None else tree.key.upper()


def _refuse_syntax(what: str, error: ParseError) -> NoReturn:
    found = error.errors[0]
    text = found["highlight"] or ""
    # sqlglot counts to the end of what it stumbled over
    column = max(1, int(found["col"]) - len(text) + 1)
    reason = str(found["description"]).split(" but got <Token")[0].split(" for <class")[0]
    raise SqlSyntaxError(
        f"{what}, line {found['line']}, column {column}: expected a query, found {text!r} where it does not fit: "
        f"{reason}"
    ) from None
