"""Text and binary forms of the types, as the server reads and writes them (``crates/vector`` of laser's repository)."""

import struct

import numpy as np

# Elements of the types on the wire, most significant byte first.
ELEMENTS = {"embedding": np.dtype(">f4"), "halfembedding": np.dtype(">f2")}
MAX_DIMENSIONS = 16_000

_HEADER = struct.Struct(">HH")


def to_array(value):
    """A sequence of numbers as an array of one dimension.

    Raises ``ValueError`` for what has another shape, no elements or more than 16,000, or masked ones; the server refuses
    NaN and infinity.
    """
    if np.ma.is_masked(value):
        raise ValueError("an embedding has no masked elements")
    array = np.asarray(value)
    if array.ndim != 1:
        raise ValueError(f"an embedding has one dimension, not {array.ndim}")
    if not 1 <= array.size <= MAX_DIMENSIONS:
        raise ValueError(f"an embedding has 1 to {MAX_DIMENSIONS} elements, not {array.size}")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"an embedding has numbers as elements, not {array.dtype}")
    return array


def to_text(value):
    """``[1.5,2.0]``, with as many digits as the server needs to read the same ``float32``."""
    array = to_array(value).astype(np.float32)
    return "[" + ",".join(map(str, array.tolist())) + "]"


def from_text(text, name="embedding"):
    """The array of a value's text form."""
    return np.array(text[1:-1].split(","), dtype=ELEMENTS[name].newbyteorder("="))


def to_binary(value, name="embedding"):
    """The number of elements and a zero, of 16 bits each, and the elements."""
    array = to_array(value).astype(ELEMENTS[name])
    return _HEADER.pack(array.size, 0) + array.tobytes()


def from_binary(data, name="embedding"):
    """The array of a value's binary form."""
    count, _ = _HEADER.unpack_from(data)
    element = ELEMENTS[name]
    return np.frombuffer(data, dtype=element, count=count, offset=_HEADER.size).astype(
        element.newbyteorder("=")
    )
