-- Casts between laser's types and pgvector's, which have one layout: nothing is converted, and
-- ALTER TABLE ... ALTER COLUMN ... TYPE between types without a length does not rewrite the table.
-- Run as a superuser in a database that has both extensions, with both on the search path:
--
--   psql -d DATABASE -f "$(pg_config --sharedir)/laser/pgvector_casts.sql"
--
-- The casts need no function, so there is nothing to keep up to date; DROP EXTENSION of either
-- removes them. Assignment, not implicit: with implicit casts in both directions the server could
-- not choose between the operators of the two types.

CREATE CAST (embedding AS vector) WITHOUT FUNCTION AS ASSIGNMENT;
CREATE CAST (vector AS embedding) WITHOUT FUNCTION AS ASSIGNMENT;
CREATE CAST (halfembedding AS halfvec) WITHOUT FUNCTION AS ASSIGNMENT;
CREATE CAST (halfvec AS halfembedding) WITHOUT FUNCTION AS ASSIGNMENT;
