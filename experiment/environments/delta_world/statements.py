"""Says which SQL statements the agent may run: those on its own tables, none that reach the server or the machine.

This is the first of three fences. The server's own rules (`java/Guard.java`) see what was parsed, whoever sends it;
the confinement of the server bounds what is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

MAX_CHARS = 20_000

_TOKEN = re.compile(
    r"""(?P<blank>\s+|--[^\n]*)
    |(?P<comment>/\*)
    |(?P<text>[rR]?'(?:[^'\\]|\\.|'')*'|[rR]?"(?:[^"\\]|\\.|"")*")
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<word>[^\W\d]\w*|\d\w*)
    |(?P<sign>.)""",
    flags=re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")

_SETTINGS = frozenset(
    {
        "spark.sql.ansi.enabled",
        "spark.sql.storeassignmentpolicy",
        "spark.sql.session.timezone",
        "spark.sql.casesensitive",
        "spark.sql.sources.partitionoverwritemode",
    }
)
_SETTING_PREFIX = "spark.databricks.delta."
_PATH_SIGNS = re.compile(r"[/:.\\]")
_FORBIDDEN_CALLS = frozenset({"REFLECT", "JAVA_METHOD", "TRY_REFLECT"})
_FORBIDDEN_STARTS = frozenset(
    {"ADD", "LIST", "LOAD", "EXPORT", "IMPORT", "EXECUTE", "BEGIN", "CALL", "CONVERT", "GENERATE", "DFS"}
)
_TABLE_COMMANDS = frozenset(
    {"VACUUM", "OPTIMIZE", "RESTORE", "DESCRIBE", "DESC", "REORG", "REFRESH", "ANALYZE", "SHOW"}
)
_PATH_OPTIONS = frozenset({"path", "paths", "location", "url", "dbtable"})
_DEFINITIONS = frozenset({"CREATE", "REPLACE"})


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """`text`, `name` (in backticks), `word` or `sign`."""
    value: str
    """Words in capitals, names and texts without their quotes."""


def first_word(statement: str) -> str:
    """Return the first word in capitals, after comments and brackets; empty where there is none."""
    return next((token.value for token in _tokens(statement) if token.kind == "word"), "")


def check_statement(statement: str) -> str:
    """Return why the agent may not run `statement`, as Spark would say it; empty where it may."""
    if len(statement) > MAX_CHARS:
        return _refusal(f"a statement of more than {MAX_CHARS} characters")
    tokens = list(_tokens(statement))
    start = next((token.value for token in tokens if token.kind == "word"), "")
    for rule in _RULES:
        if found := rule(start, tokens):
            return _refusal(found)
    return ""


def _refusal(what: str) -> str:
    return (
        f"[INSUFFICIENT_PERMISSIONS] Insufficient privileges: {what} is not allowed in this workspace. SQLSTATE: 42501"
    )


def _tokens(statement: str) -> Iterator[_Token]:
    position = 0
    while match := _TOKEN.match(statement, position):
        position = match.end()
        kind = match.lastgroup or "sign"
        if kind == "comment":
            # Hints look like comments and are read by Spark; they call nothing.
            position = _end_of_comment(statement, position)
        elif kind == "word":
            yield _Token(kind, match.group().upper())
        elif kind == "text":
            yield _Token(kind, match.group().lstrip("rR")[1:-1])
        elif kind == "name":
            yield _Token(kind, match.group()[1:-1].replace("``", "`"))
        elif kind == "sign":
            yield _Token(kind, match.group())


def _end_of_comment(statement: str, position: int) -> int:
    """Return where a comment ends; comments may hold comments."""
    depth = 1
    while depth and (edge := _COMMENT_EDGE.search(statement, position)):
        depth += 1 if edge.group() == "/*" else -1
        position = edge.end()
    return position if not depth else len(statement)


def _pairs(tokens: Sequence[_Token]) -> Iterator[tuple[_Token, _Token]]:
    """Yield every token with the one that follows it."""
    return zip(tokens, (*tokens[1:], _Token("sign", "")), strict=False)


def _words(tokens: Sequence[_Token]) -> list[str]:
    return [token.value for token in tokens if token.kind == "word"]


def _starts(start: str, tokens: Sequence[_Token]) -> str:
    if start in _FORBIDDEN_STARTS:
        return " ".join(_words(tokens)[:2])
    return ""


def _calls(_start: str, tokens: Sequence[_Token]) -> str:
    for token, following in _pairs(tokens):
        if token.value.upper() in _FORBIDDEN_CALLS and token.kind in {"word", "name"} and following.value == "(":
            return f"the function {token.value.lower()}"
    return ""


def _dynamic(_start: str, tokens: Sequence[_Token]) -> str:
    for token, following in _pairs(tokens):
        if token == _Token("word", "EXECUTE") and following == _Token("word", "IMMEDIATE"):
            return "EXECUTE IMMEDIATE"
    return ""


def _scripts(_start: str, tokens: Sequence[_Token]) -> str:
    """A command line follows USING in TRANSFORM, MAP and REDUCE."""
    for token, following in _pairs(tokens):
        if token == _Token("word", "USING") and following.kind == "text":
            return "USING a script"
    return ""


def _functions(start: str, tokens: Sequence[_Token]) -> str:
    words = _words(tokens)
    if start in _DEFINITIONS and "FUNCTION" in words[:5]:
        for token, following in _pairs(tokens):
            if token == _Token("word", "AS") and following.kind == "text":
                return "CREATE FUNCTION from a class"
    return ""


def _formats(start: str, tokens: Sequence[_Token]) -> str:
    if start not in _DEFINITIONS:
        return ""
    for token, following in _pairs(tokens):
        if (
            token == _Token("word", "USING")
            and following.kind in {"word", "name"}
            and following.value.upper() != "DELTA"
        ):
            return f"the format {following.value.lower()}"
        if token == _Token("word", "STORED") and following.value in {"AS", "BY"}:
            return f"STORED {following.value}"
        if token == _Token("word", "ROW") and following.value == "FORMAT":
            return "ROW FORMAT"
    return ""


def _locations(start: str, tokens: Sequence[_Token]) -> str:
    for token, following in _pairs(tokens):
        if token == _Token("word", "LOCATION") and following.kind == "text":
            return "LOCATION"
        if token == _Token("word", "DIRECTORY") and start in {"INSERT", "FROM", "WITH"}:
            return "INSERT OVERWRITE DIRECTORY"
    return ""


def _paths(start: str, tokens: Sequence[_Token]) -> str:
    for token, following in _pairs(tokens):
        if token.value == "." and following.kind == "name" and _PATH_SIGNS.search(following.value):
            return "a path in place of a table name"
    after_command = next((token for token in tokens[1:4] if token.kind == "text"), None)
    if start in _TABLE_COMMANDS and after_command and "/" in after_command.value:
        return "a path in place of a table name"
    return ""


def _options(_start: str, tokens: Sequence[_Token]) -> str:
    opened = False
    for token, following in _pairs(tokens):
        opened = opened or (token.value in {"OPTIONS", "WITH"} and following.value == "(")
        is_key = token.kind == "text" or following.kind == "text" or following.value == "="
        if opened and is_key and token.value.strip().lower() in _PATH_OPTIONS:
            return f"the option {token.value.lower()}"
    return ""


def _shared_views(_start: str, tokens: Sequence[_Token]) -> str:
    for token, following in _pairs(tokens):
        if token.value.upper() == "GLOBAL_TEMP" and token.kind in {"word", "name"}:
            return "the schema global_temp"
        if token == _Token("word", "GLOBAL") and following.value in {"TEMP", "TEMPORARY"}:
            return "GLOBAL TEMPORARY VIEW"
    return ""


def _settings(start: str, tokens: Sequence[_Token]) -> str:
    if start not in {"SET", "RESET"} or tokens[0].value != start:
        return ""
    rest = [token for token in tokens[1:] if token.value != ";"]
    if [token.value for token in rest[:2]] == ["TIME", "ZONE"] or (rest and rest[0].value in {"VAR", "VARIABLE"}):
        return ""
    key = ""
    for token in rest:
        if token.value == "=" or token.kind == "text":
            break
        key += token.value.lower()
    is_allowed = key in _SETTINGS or re.fullmatch(re.escape(_SETTING_PREFIX) + r"[\w.]+", key)
    return "" if is_allowed else f"{start} {key or 'of all settings'}"


_RULES: tuple[Callable[[str, Sequence[_Token]], str], ...] = (
    _starts,
    _calls,
    _dynamic,
    _scripts,
    _functions,
    _formats,
    _locations,
    _paths,
    _options,
    _shared_views,
    _settings,
)
