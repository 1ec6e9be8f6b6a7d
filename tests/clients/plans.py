"""Statements as drivers, ORMs and hosted services write them, over enough rows that the planner takes an index by
itself: each is executed a dozen times, so that prepared statements get plans for all values, and each execution must
be answered by the laser index.
"""

import asyncio
import time

import asyncpg
import numpy as np
import psycopg
from pgvector.asyncpg import register_vector as register_asyncpg
from pgvector.psycopg import register_vector
from pgvector.sqlalchemy import Vector
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

TIMES = 12
ROWS = 20_000

random = np.random.default_rng(1)
vectors = random.standard_normal((ROWS, 8)).astype(np.float32)
queries = [vectors[i] + random.standard_normal(8).astype(np.float32) / 100 for i in range(TIMES)]

monitor = psycopg.connect(autocommit=True)
monitor.execute("CREATE EXTENSION IF NOT EXISTS laser_pgvector CASCADE")
register_vector(monitor)
monitor.execute(
    "CREATE TABLE documents (id bigint PRIMARY KEY, category int, content text, embedding vector(8))"
)
with monitor.cursor().copy("COPY documents FROM STDIN WITH (FORMAT BINARY)") as copy:
    copy.set_types(["int8", "int4", "text", "vector"])
    for i, vector in enumerate(vectors):
        copy.write_row((i, i % 3, f"document number {i}", vector))
monitor.execute("CREATE INDEX nearest ON documents USING laser (embedding vector_cosine_ops)")
monitor.execute("CREATE INDEX ON documents USING gin (to_tsvector('english', content))")
monitor.execute(
    """
    CREATE FUNCTION match_documents(query_embedding vector(8), match_threshold float, match_count int)
    RETURNS SETOF documents LANGUAGE sql AS $$
        SELECT * FROM documents
        WHERE documents.embedding <=> query_embedding < 1 - match_threshold
        ORDER BY documents.embedding <=> query_embedding ASC
        LIMIT least(match_count, 200);
    $$
    """
)
monitor.execute("VACUUM ANALYZE documents")


def scans():
    query = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'nearest'"
    return monitor.execute(query).fetchone()[0]


def answered(name, run):
    """Runs a client from its connection to its end, which is when the server counts what it has done."""
    before = scans()
    for i, found in enumerate(run()):
        assert found[0] == i, f"{name}: {found[0]} is not nearest to {i}"
    for _ in range(100):
        if scans() - before >= TIMES:
            break
        time.sleep(0.1)
    assert scans() - before == TIMES, f"{name}: {scans() - before} of {TIMES} searches by the index"
    print(name)


def by_psycopg(statement, parameters, options=""):
    with psycopg.connect(options=options) as connection:
        register_vector(connection)
        for i, query in enumerate(queries):
            rows = connection.execute(statement, parameters(i, query), prepare=True)
            yield [row[0] for row in rows]


GENERIC = "-c plan_cache_mode=force_generic_plan"
for options in ("", GENERIC):
    name = "psycopg, a plan for all values: " if options else "psycopg: "
    answered(
        name + "distance and filter",
        lambda: by_psycopg(
            "SELECT id, embedding <=> %s AS distance FROM documents WHERE category = %s"
            " ORDER BY embedding <=> %s LIMIT 5",
            lambda i, query: (query, i % 3, query),
            options,
        ),
    )
    answered(
        name + "up to a distance",
        lambda: by_psycopg(
            "SELECT id FROM documents WHERE embedding <=> %s < %s ORDER BY embedding <=> %s LIMIT %s",
            lambda i, query: (query, 0.1, query, 5),
            options,
        ),
    )
    # As in rrf.py of pgvector-python's examples.
    answered(
        name + "reciprocal rank fusion",
        lambda: by_psycopg(
            """
            WITH semantic_search AS (
                SELECT id, RANK () OVER (ORDER BY embedding <=> %(embedding)s) AS rank
                FROM documents
                ORDER BY embedding <=> %(embedding)s
                LIMIT 20
            ),
            keyword_search AS (
                SELECT id, RANK () OVER (ORDER BY ts_rank_cd(to_tsvector('english', content), query) DESC)
                FROM documents, plainto_tsquery('english', %(query)s) query
                WHERE to_tsvector('english', content) @@ query
                ORDER BY ts_rank_cd(to_tsvector('english', content), query) DESC
                LIMIT 20
            )
            SELECT
                COALESCE(semantic_search.id, keyword_search.id) AS id,
                COALESCE(1.0 / (%(k)s + semantic_search.rank), 0.0) +
                COALESCE(1.0 / (%(k)s + keyword_search.rank), 0.0) AS score
            FROM semantic_search
            FULL OUTER JOIN keyword_search ON semantic_search.id = keyword_search.id
            ORDER BY score DESC
            LIMIT 5
            """,
            lambda i, query: {"embedding": query, "query": f"document number {i}", "k": 60},
            options,
        ),
    )
    answered(
        name + "a function with a limit",
        lambda: by_psycopg(
            "SELECT id FROM match_documents(%s, 0.9, 5)", lambda i, query: (query,), options
        ),
    )


class Base(DeclarativeBase):
    pass


class Document(Base):
    __tablename__ = "documents"
    id: Mapped[int] = mapped_column(primary_key=True)
    category: Mapped[int]
    embedding = mapped_column(Vector(8))


def by_sqlalchemy():
    engine = create_engine("postgresql+psycopg://", connect_args={"prepare_threshold": 0})
    with Session(engine) as session:
        for i, query in enumerate(queries):
            distance = Document.embedding.cosine_distance(query)
            statement = select(Document.id, distance.label("distance")).where(Document.category == i % 3)
            yield session.scalars(statement.order_by(distance).limit(5)).all()
    engine.dispose()


answered("SQLAlchemy", by_sqlalchemy)


def by_asyncpg():
    async def run():
        connection = await asyncpg.connect()
        await register_asyncpg(connection)
        found = []
        for query in queries:
            statement = "SELECT id FROM documents ORDER BY embedding <=> $1 LIMIT $2"
            found.append([row[0] for row in await connection.fetch(statement, query, 5)])
        await connection.close()
        return found

    return asyncio.run(run())


answered("asyncpg", by_asyncpg)
