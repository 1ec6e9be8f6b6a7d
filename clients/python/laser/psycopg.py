"""psycopg 3: arrays as parameters, arrays as results."""

import numpy as np
from psycopg import errors
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg.types import TypeInfo

from . import wire

__all__ = ["register_embedding", "register_embedding_async"]

# Arrays go as what is registered last: the server casts an embedding where it wants a halfembedding.
_NAMES = ("halfembedding", "embedding")


def register_embedding(connection):
    """Has a connection send arrays as ``embedding``, and give values of both types as arrays.

    Raises ``psycopg.errors.UndefinedObject`` where the extension is not in the database, or not on the search path.
    """
    for name in _NAMES:
        _register(connection, name, TypeInfo.fetch(connection, name))


async def register_embedding_async(connection):
    """As :func:`register_embedding`, for an ``AsyncConnection``."""
    for name in _NAMES:
        _register(connection, name, await TypeInfo.fetch(connection, name))


def _register(connection, name, info):
    if info is None:
        raise errors.UndefinedObject(
            f'type "{name}" does not exist: CREATE EXTENSION laser, and its schema on the search path'
        )
    info.register(connection)
    adapters = connection.adapters

    def load_text(self, data):
        return wire.from_text(bytes(data).decode(), name)

    def load_binary(self, data):
        return wire.from_binary(bytes(data), name)

    for format, load in ((Format.TEXT, load_text), (Format.BINARY, load_binary)):
        loader = type(f"{name}Loader", (Loader,), {"format": format, "load": load})
        adapters.register_loader(info.oid, loader)

    def dump_text(self, value):
        return wire.to_text(value).encode()

    def dump_binary(self, value):
        return wire.to_binary(value, name)

    for format, dump in ((Format.TEXT, dump_text), (Format.BINARY, dump_binary)):
        members = {"oid": info.oid, "format": format, "dump": dump}
        adapters.register_dumper(np.ndarray, type(f"{name}Dumper", (Dumper,), members))
