"""The types ``embedding`` and ``halfembedding`` of the PostgreSQL extension laser.

Values are one-dimensional NumPy arrays: ``float32`` of an ``embedding``, ``float16`` of a ``halfembedding``. Modules
for drivers and ORMs are imported by name: ``laser.psycopg``, ``laser.asyncpg``, ``laser.sqlalchemy``, ``laser.django``.
"""
