"""asyncpg: arrays as parameters, arrays as results."""

from functools import partial

from . import wire

__all__ = ["register_embedding"]

_SCHEMA = """
SELECT nspname FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = typnamespace
WHERE t.oid = pg_catalog.to_regtype($1)
"""


def _encode(value, name):
    # SQLAlchemy over asyncpg gives the text form.
    return wire.to_binary(wire.from_text(value, name) if isinstance(value, str) else value, name)


async def register_embedding(connection):
    """Has a connection send sequences of numbers to parameters of both types, and give their values as arrays. For a
    pool: ``create_pool(init=register_embedding)``.

    Raises ``LookupError`` where the extension is not in the database, or not on the search path.
    """
    for name in wire.ELEMENTS:
        schema = await connection.fetchval(_SCHEMA, name)
        if schema is None:
            raise LookupError(
                f'type "{name}" does not exist: CREATE EXTENSION laser, and its schema on the search path'
            )
        await connection.set_type_codec(
            name,
            schema=schema,
            encoder=partial(_encode, name=name),
            decoder=partial(wire.from_binary, name=name),
            format="binary",
        )
