-- laser: index

CREATE FUNCTION laser_handler(internal) RETURNS index_am_handler
AS 'MODULE_PATHNAME', 'laser_handler'
LANGUAGE c;

CREATE ACCESS METHOD laser TYPE INDEX HANDLER laser_handler;

COMMENT ON ACCESS METHOD laser IS 'nearest neighbours of embeddings and texts';

-- Distance of two texts: cosine distance of their embeddings by the model in laser.model.
CREATE FUNCTION cosine_distance(text, text) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_text_cosine_distance'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 10000;

COMMENT ON FUNCTION cosine_distance(text, text) IS
    'cosine distance of two texts'' embeddings by the model in laser.model';

CREATE OPERATOR <=> (
    LEFTARG = text, RIGHTARG = text, FUNCTION = cosine_distance,
    COMMUTATOR = <=>
);

COMMENT ON OPERATOR <=> (text, text) IS 'cosine distance of two texts'' embeddings';

-- Support function 1 of an operator class says what it is for: 16 times the type (0 embedding,
-- 1 halfembedding, 2 text) plus the metric (0 cosine, 1 L2, 2 inner product). In C, since an index is
-- built during a commit as well (ON COMMIT DELETE ROWS), where there is no snapshot to run SQL with.
CREATE FUNCTION laser_embedding_cosine_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_cosine_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION laser_embedding_l2_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_l2_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION laser_embedding_ip_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_ip_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION laser_halfembedding_cosine_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_cosine_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION laser_halfembedding_l2_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_l2_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION laser_halfembedding_ip_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_ip_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;
CREATE FUNCTION laser_text_cosine_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_text_cosine_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;

CREATE OPERATOR CLASS embedding_cosine_ops DEFAULT FOR TYPE embedding USING laser AS
    OPERATOR 1 <=> (embedding, embedding) FOR ORDER BY float_ops,
    FUNCTION 1 (embedding, embedding) laser_embedding_cosine_kind();

CREATE OPERATOR CLASS embedding_l2_ops FOR TYPE embedding USING laser AS
    OPERATOR 1 <-> (embedding, embedding) FOR ORDER BY float_ops,
    FUNCTION 1 (embedding, embedding) laser_embedding_l2_kind();

CREATE OPERATOR CLASS embedding_ip_ops FOR TYPE embedding USING laser AS
    OPERATOR 1 <#> (embedding, embedding) FOR ORDER BY float_ops,
    FUNCTION 1 (embedding, embedding) laser_embedding_ip_kind();

CREATE OPERATOR CLASS halfembedding_cosine_ops DEFAULT FOR TYPE halfembedding USING laser AS
    OPERATOR 1 <=> (halfembedding, halfembedding) FOR ORDER BY float_ops,
    FUNCTION 1 (halfembedding, halfembedding) laser_halfembedding_cosine_kind();

CREATE OPERATOR CLASS halfembedding_l2_ops FOR TYPE halfembedding USING laser AS
    OPERATOR 1 <-> (halfembedding, halfembedding) FOR ORDER BY float_ops,
    FUNCTION 1 (halfembedding, halfembedding) laser_halfembedding_l2_kind();

CREATE OPERATOR CLASS halfembedding_ip_ops FOR TYPE halfembedding USING laser AS
    OPERATOR 1 <#> (halfembedding, halfembedding) FOR ORDER BY float_ops,
    FUNCTION 1 (halfembedding, halfembedding) laser_halfembedding_ip_kind();

CREATE OPERATOR CLASS text_laser_ops DEFAULT FOR TYPE text USING laser AS
    OPERATOR 1 <=> (text, text) FOR ORDER BY float_ops,
    FUNCTION 1 (text, text) laser_text_cosine_kind();

CREATE FUNCTION laser_index_info(
    index regclass,
    OUT segments integer, OUT live bigint, OUT dead bigint, OUT pending bigint,
    OUT pending_bytes bigint, OUT bytes bigint, OUT type text, OUT dimensions integer,
    OUT metric text, OUT quantization text, OUT m integer, OUT ef_construction integer,
    OUT model text, OUT fingerprint text, OUT generation bigint, OUT format_version integer,
    OUT stored_as text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_index_info_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL SAFE COST 1000 ROWS 1;

COMMENT ON FUNCTION laser_index_info(regclass) IS
    'segments, live and dead entries in them, pending entries, size and parameters of a laser index';

CREATE FUNCTION laser_index_check(index regclass, heapallindexed boolean DEFAULT true)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'laser_index_check_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED COST 100000 ROWS 1;

COMMENT ON FUNCTION laser_index_check(regclass, boolean) IS
    'what is wrong with a laser index, and which rows of its table it lacks: no rows if nothing is';

CREATE FUNCTION laser_index_recall(index regclass, samples integer DEFAULT 100, k integer DEFAULT 10)
RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_index_recall_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED COST 1000000;

COMMENT ON FUNCTION laser_index_recall(regclass, integer, integer) IS
    'share of the k nearest rows that a search finds, for the vectors of random rows; null without rows';

CREATE FUNCTION laser_merge(index regclass) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_merge_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE COST 1000000;

COMMENT ON FUNCTION laser_merge(regclass) IS
    'merges the pending list and the segments of a laser index, as far as maintenance_work_mem reaches; returns the number of segments written';

CREATE FUNCTION laser_prewarm(index regclass) RETURNS bigint
AS 'MODULE_PATHNAME', 'laser_prewarm_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED COST 1000000;

COMMENT ON FUNCTION laser_prewarm(regclass) IS
    'opens the segments of a laser index, making their files where they are missing; returns their bytes';

-- All of these ask for more than EXECUTE: laser_index_info() for SELECT on the table or the role
-- pg_stat_scan_tables, the others for ownership of the index or, from PostgreSQL 17 on, the privilege
-- MAINTAIN on the table. Those that evaluate expressions of the index, as the owner of its table,
-- are for roles that were given EXECUTE besides.
REVOKE EXECUTE ON FUNCTION laser_index_check(regclass, boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION laser_index_recall(regclass, integer, integer) FROM PUBLIC;
