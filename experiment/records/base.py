"""The base of everything that is written to disk."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints


class Record(BaseModel):
    """An immutable record: unknown fields, wrong types, NaN and infinities are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""A BLAKE3 digest, 64 lower-case hexadecimal digits."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
"""A name that is safe as a file name on every system."""

Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
"""A whole number that JSON carries exactly."""

Positive = Annotated[int, Field(ge=1, le=2**53 - 1)]
"""A whole number of at least one."""

Base64 = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]
"""Raw little-endian array bytes in standard base64; numbers that must be bit-exact never are JSON numbers."""
