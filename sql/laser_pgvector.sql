-- laser_pgvector: operator classes of the access method laser for pgvector's types, and casts between
-- these and laser's, which have one layout.
--
-- The operators are pgvector's, so a query means what it meant before, and the names of the operator
-- classes are those of pgvector's for its own access methods: names are unique within one of these.
--
-- Implicit are the casts to pgvector's types: "v <=> laser_embed('...')" has pgvector's operator as the
-- only one that both sides fit without an explicit cast. With implicit casts both ways the server could
-- not choose.

-- Support function 1 of an operator class, as in laser: 16 times the type (3 vector, 4 halfvec) plus
-- the metric (0 cosine, 1 L2, 2 inner product).
CREATE FUNCTION laser_vector_cosine_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_vector_cosine_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION laser_vector_l2_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_vector_l2_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION laser_vector_ip_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_vector_ip_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION laser_halfvec_cosine_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfvec_cosine_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION laser_halfvec_l2_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfvec_l2_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION laser_halfvec_ip_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfvec_ip_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;

-- Both extensions may lie in any schema, and others may have objects of the same names in the one that
-- this script runs in: what is theirs is named with its schema.
DO $do$
DECLARE
    laser pg_catalog.text := (
        SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_extension e
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace
        WHERE e.extname OPERATOR(pg_catalog.=) 'laser');
    vector pg_catalog.text := (
        SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_extension e
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace
        WHERE e.extname OPERATOR(pg_catalog.=) 'vector');
    statement pg_catalog.text;
BEGIN
    -- Their layout is relied on: a type of that name that somebody has added to the schema is none.
    IF (SELECT pg_catalog.count(*) FROM pg_catalog.pg_type t
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) t.typnamespace
        JOIN pg_catalog.pg_depend d ON d.objid OPERATOR(pg_catalog.=) t.oid
        JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        WHERE t.typname OPERATOR(pg_catalog.=) ANY ('{vector,halfvec}'::pg_catalog.name[])
          AND t.typtype OPERATOR(pg_catalog.=) 'b'::pg_catalog."char"
          AND n.oid OPERATOR(pg_catalog.=) e.extnamespace
          AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass::pg_catalog.oid
          AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
          AND d.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
          AND e.extname OPERATOR(pg_catalog.=) 'vector') OPERATOR(pg_catalog.<>) 2
    THEN
        RAISE EXCEPTION USING errcode = 'object_not_in_prerequisite_state',
            message = 'the extension vector has no type halfvec',
            hint = 'Install pgvector 0.7.0 or newer and run ALTER EXTENSION vector UPDATE.';
    END IF;
    FOREACH statement IN ARRAY ARRAY[
        -- laser 0.1.0 had a script for these casts.
        'DROP CAST IF EXISTS ({laser}.embedding AS {vector}.vector)',
        'DROP CAST IF EXISTS ({vector}.vector AS {laser}.embedding)',
        'DROP CAST IF EXISTS ({laser}.halfembedding AS {vector}.halfvec)',
        'DROP CAST IF EXISTS ({vector}.halfvec AS {laser}.halfembedding)',

        -- One layout: nothing is converted, and ALTER TABLE ... ALTER COLUMN ... TYPE between types
        -- without a length does not rewrite the table.
        'CREATE CAST ({laser}.embedding AS {vector}.vector) WITHOUT FUNCTION AS IMPLICIT',
        'CREATE CAST ({vector}.vector AS {laser}.embedding) WITHOUT FUNCTION AS ASSIGNMENT',
        'CREATE CAST ({laser}.halfembedding AS {vector}.halfvec) WITHOUT FUNCTION AS IMPLICIT',
        'CREATE CAST ({vector}.halfvec AS {laser}.halfembedding) WITHOUT FUNCTION AS ASSIGNMENT',

        -- Between 32 and 16 bits, in the contexts that pgvector has for its own two types.
        $$CREATE FUNCTION embedding_to_halfvec({laser}.embedding, integer, boolean) RETURNS {vector}.halfvec
          AS 'MODULE_PATHNAME', 'laser_embedding_to_halfembedding'
          LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20$$,
        $$CREATE FUNCTION vector_to_halfembedding({vector}.vector, integer, boolean) RETURNS {laser}.halfembedding
          AS 'MODULE_PATHNAME', 'laser_embedding_to_halfembedding'
          LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20$$,
        $$CREATE FUNCTION halfembedding_to_vector({laser}.halfembedding, integer, boolean) RETURNS {vector}.vector
          AS 'MODULE_PATHNAME', 'laser_halfembedding_to_embedding'
          LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20$$,
        $$CREATE FUNCTION halfvec_to_embedding({vector}.halfvec, integer, boolean) RETURNS {laser}.embedding
          AS 'MODULE_PATHNAME', 'laser_halfembedding_to_embedding'
          LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20$$,
        'CREATE CAST ({laser}.embedding AS {vector}.halfvec)
         WITH FUNCTION embedding_to_halfvec({laser}.embedding, integer, boolean) AS IMPLICIT',
        'CREATE CAST ({vector}.vector AS {laser}.halfembedding)
         WITH FUNCTION vector_to_halfembedding({vector}.vector, integer, boolean) AS ASSIGNMENT',
        'CREATE CAST ({laser}.halfembedding AS {vector}.vector)
         WITH FUNCTION halfembedding_to_vector({laser}.halfembedding, integer, boolean) AS ASSIGNMENT',
        'CREATE CAST ({vector}.halfvec AS {laser}.embedding)
         WITH FUNCTION halfvec_to_embedding({vector}.halfvec, integer, boolean) AS ASSIGNMENT',

        'CREATE OPERATOR CLASS vector_cosine_ops DEFAULT FOR TYPE {vector}.vector USING laser AS
         OPERATOR 1 {vector}.<=> ({vector}.vector, {vector}.vector) FOR ORDER BY pg_catalog.float_ops,
         FUNCTION 1 ({vector}.vector, {vector}.vector) laser_vector_cosine_kind()',
        'CREATE OPERATOR CLASS vector_l2_ops FOR TYPE {vector}.vector USING laser AS
         OPERATOR 1 {vector}.<-> ({vector}.vector, {vector}.vector) FOR ORDER BY pg_catalog.float_ops,
         FUNCTION 1 ({vector}.vector, {vector}.vector) laser_vector_l2_kind()',
        'CREATE OPERATOR CLASS vector_ip_ops FOR TYPE {vector}.vector USING laser AS
         OPERATOR 1 {vector}.<#> ({vector}.vector, {vector}.vector) FOR ORDER BY pg_catalog.float_ops,
         FUNCTION 1 ({vector}.vector, {vector}.vector) laser_vector_ip_kind()',
        'CREATE OPERATOR CLASS halfvec_cosine_ops DEFAULT FOR TYPE {vector}.halfvec USING laser AS
         OPERATOR 1 {vector}.<=> ({vector}.halfvec, {vector}.halfvec) FOR ORDER BY pg_catalog.float_ops,
         FUNCTION 1 ({vector}.halfvec, {vector}.halfvec) laser_halfvec_cosine_kind()',
        'CREATE OPERATOR CLASS halfvec_l2_ops FOR TYPE {vector}.halfvec USING laser AS
         OPERATOR 1 {vector}.<-> ({vector}.halfvec, {vector}.halfvec) FOR ORDER BY pg_catalog.float_ops,
         FUNCTION 1 ({vector}.halfvec, {vector}.halfvec) laser_halfvec_l2_kind()',
        'CREATE OPERATOR CLASS halfvec_ip_ops FOR TYPE {vector}.halfvec USING laser AS
         OPERATOR 1 {vector}.<#> ({vector}.halfvec, {vector}.halfvec) FOR ORDER BY pg_catalog.float_ops,
         FUNCTION 1 ({vector}.halfvec, {vector}.halfvec) laser_halfvec_ip_kind()']
    LOOP
        EXECUTE pg_catalog.replace(pg_catalog.replace(statement, '{laser}', laser), '{vector}', vector);
    END LOOP;
END
$do$;
