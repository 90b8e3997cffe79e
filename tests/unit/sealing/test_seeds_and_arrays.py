"""Seeds that never change, and arrays that keep every bit."""

from __future__ import annotations

import numpy as np
import pytest
from blake3 import blake3

from experiment.sealing.arrays import decode_array, encode_array
from experiment.sealing.seeds import derive_seed


def test_a_seed_is_what_its_definition_says() -> None:
    hasher = blake3(b'["17","rollout",["3","train-0007"]]', derive_key_context="experiment 2026-11-29 seed v1")
    expected = int.from_bytes(hasher.digest()[:8], "big") >> 1
    assert derive_seed(17, "rollout", 3, "train-0007") == expected
    assert 0 <= expected < 2**63


def test_seeds_differ_in_root_purpose_and_each_counter() -> None:
    seeds = {
        derive_seed(1, "a"),
        derive_seed(2, "a"),
        derive_seed(1, "b"),
        derive_seed(1, "a", 0),
        derive_seed(1, "a", 0, 1),
        derive_seed(1, "a", 1, 0),
        derive_seed(1, "a", "0,1"),
        derive_seed(1, "a", 10),
    }
    assert len(seeds) == 8


def test_roots_beyond_exact_json_numbers_are_fine() -> None:
    assert derive_seed(2**63, "a") != derive_seed(2**63 + 1, "a")


@pytest.mark.parametrize(
    ("array", "dtype", "text"),
    [
        (np.array([1, -2], dtype=np.int32), "int32", "AQAAAP7///8="),
        (np.array([1, -2], dtype=">i4"), "int32", "AQAAAP7///8="),
        (np.array([[1.5], [-0.0]], dtype=np.float32), "float32", "AADAPwAAAIA="),
        (np.array([1, 0, 255], dtype=np.uint8), "uint8", "AQD/"),
        (np.array([], dtype=np.float32), "float32", ""),
    ],
)
def test_arrays_are_little_endian_base64(array: np.ndarray, dtype: str, text: str) -> None:
    assert encode_array(array) == text
    assert decode_array(text, dtype).tobytes() == array.astype(dtype).tobytes()


def test_columns_of_a_matrix_are_stored_in_c_order() -> None:
    matrix = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert decode_array(encode_array(matrix.T), "int32").tolist() == [0, 3, 1, 4, 2, 5]


def test_every_bit_of_a_float_survives() -> None:
    bits = np.array([0x7FC00001, 0x80000000, 0x00000001, 0xFF800000], dtype=np.uint32)
    assert decode_array(encode_array(bits.view(np.float32)), "float32").view(np.uint32).tolist() == bits.tolist()


def test_a_decoded_array_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        decode_array("AQD/", "uint8")[0] = 3


@pytest.mark.parametrize("text", ["AQD/", "AQ", "A===", "AQD/\n", "AQ-_", "AR==", "é"])
def test_text_that_is_no_whole_array_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  each library words it differently
        decode_array(text, "int32")


def test_stray_bits_are_refused_for_bytes_too() -> None:
    with pytest.raises(ValueError, match="stray bits"):
        decode_array("AR==", "uint8")


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool", "float16"])
def test_other_element_types_are_not_converted_quietly(dtype: str) -> None:
    with pytest.raises(ValueError, match=dtype):
        encode_array(np.zeros(1, dtype=dtype))
