"""Canonical JSON (RFC 8785): one value, one byte string, and bytes that are refused unless they are it."""

from __future__ import annotations

import json
from typing import TypeVar

import pydantic
import rfc8785

MAX_DEPTH = 32
"""Deepest nesting of arrays and objects; a scalar has depth 0."""

T = TypeVar("T", bound=pydantic.BaseModel)


def encode(value: object) -> bytes:
    """Return the canonical JSON of `value`, which `decode` is sure to read back to the same bytes.

    Args:
        value: None, bool, int, float, str, and lists, tuples or string-keyed dicts of these.

    Raises:
        ValueError: `value` has no canonical form that survives a round trip: NaN, infinities, integers (or
            floats without a fraction) beyond 2**53 - 1, lone surrogates, keys that are no strings, nesting
            deeper than `MAX_DEPTH`, or another type.

    Source: RFC 8785.
    """
    data = _encode_once(value)
    # Floats from 2**53 to below 1e21 are written without a fraction and come back as integers that are refused.
    if _encode_once(_parse(data)) != data:
        msg = "value does not survive a round trip through canonical JSON"
        raise ValueError(msg)
    return data


def decode(data: bytes) -> object:
    """Return the value whose canonical JSON is exactly `data`.

    Raises:
        ValueError: `data` is not UTF-8, not JSON, has duplicate keys, is nested deeper than `MAX_DEPTH`, or is
            not in canonical form.
    """
    value = _parse(data)
    if _encode_once(value) != data:
        msg = "JSON is valid but not canonical (RFC 8785)"
        raise ValueError(msg)
    return value


def encode_record(record: pydantic.BaseModel) -> bytes:
    """Return the canonical JSON of a record.

    Raises:
        ValueError: A field holds a value without canonical form.
    """
    return encode(record.model_dump(mode="json"))


def decode_record(cls: type[T], data: bytes) -> T:
    """Return the record of type `cls` whose canonical JSON is exactly `data`.

    Raises:
        ValueError: `data` is not canonical JSON or does not fit the record's schema.
    """
    decode(data)
    return cls.model_validate_json(data, strict=True)


def _encode_once(value: object) -> bytes:
    _check_depth(value)
    return rfc8785.dumps(value)  # type: ignore[arg-type]


def _parse(data: bytes) -> object:
    try:
        # Duplicate keys and NaN get past this, and fail where the value is written anew.
        value: object = json.loads(data.decode("utf-8"))
    except RecursionError:
        msg = f"JSON is nested deeper than {MAX_DEPTH} levels"
        raise ValueError(msg) from None
    return value


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [item for item in level if isinstance(item, dict | list | tuple)]
        if not containers:
            return
        level = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
    msg = f"value is nested deeper than {MAX_DEPTH} levels"
    raise ValueError(msg)
