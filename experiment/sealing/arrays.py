"""Arrays as text that keeps every bit: standard base64 of little-endian bytes in C order."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np

DType = Literal["int32", "float32", "uint8"]
_STORED = {"int32": "<i4", "float32": "<f4", "uint8": "|u1"}


def encode_array(array: np.ndarray[Any, Any]) -> str:
    """Return the bytes of an int32, float32 or uint8 array as base64; the shape is not kept.

    Raises:
        ValueError: The array has another element type.
    """
    if array.dtype.name not in _STORED:
        msg = f"array of {array.dtype.name} cannot be stored; convert it to one of {', '.join(_STORED)}"
        raise ValueError(msg)
    return base64.b64encode(array.astype(_STORED[array.dtype.name]).tobytes(order="C")).decode("ascii")


def decode_array(text: str, dtype: DType) -> np.ndarray[Any, Any]:
    """Return the read-only array, shape (elements,), that `encode_array` made `text` from.

    Raises:
        ValueError: `text` is not standard base64, or not a whole number of elements.
    """
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode("ascii") != text:
        msg = "base64 text has stray bits after its last byte"
        raise ValueError(msg)
    stored = np.dtype(_STORED[dtype])
    if len(data) % stored.itemsize:
        msg = f"{len(data)} bytes are not a whole number of {dtype} elements"
        raise ValueError(msg)
    return np.frombuffer(data, dtype=stored)
