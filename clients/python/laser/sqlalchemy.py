"""SQLAlchemy 2: column types, which importing this module has tables reflected with."""

import numpy as np
from sqlalchemy import Float
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.types import UserDefinedType

from . import wire

__all__ = ["Embedding", "HalfEmbedding"]


class Embedding(UserDefinedType):
    """``embedding(dimensions)``, or ``embedding`` of any. Values are arrays of ``float32``."""

    cache_ok = True
    # Arrays are not: Result.unique() tells rows with them by identity.
    hashable = False
    _name = "embedding"

    def __init__(self, dimensions=None):
        self.dimensions = dimensions

    def get_col_spec(self, **_):
        return self._name if self.dimensions is None else f"{self._name}({self.dimensions})"

    def bind_processor(self, dialect):
        return lambda value: None if value is None else wire.to_text(value)

    def literal_processor(self, dialect):
        return lambda value: f"'{wire.to_text(value)}'"

    def result_processor(self, dialect, coltype):
        # An array already where the driver's connection knows the type.
        def process(value):
            return wire.from_text(value, self._name) if isinstance(value, str) else value

        return process

    def compare_values(self, x, y):
        return x is y or (x is not None and y is not None and np.array_equal(x, y))

    class comparator_factory(UserDefinedType.Comparator):
        def l2_distance(self, other):
            """``<->``"""
            return self.op("<->", return_type=Float())(other)

        def cosine_distance(self, other):
            """``<=>``"""
            return self.op("<=>", return_type=Float())(other)

        def max_inner_product(self, other):
            """``<#>``, the inner product with its sign changed."""
            return self.op("<#>", return_type=Float())(other)

        def l1_distance(self, other):
            """``<+>``"""
            return self.op("<+>", return_type=Float())(other)


class HalfEmbedding(Embedding):
    """``halfembedding(dimensions)``. Values are arrays of ``float16``."""

    cache_ok = True
    _name = "halfembedding"


ischema_names["embedding"] = Embedding
ischema_names["halfembedding"] = HalfEmbedding
