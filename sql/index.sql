-- laser: index

CREATE FUNCTION laser_handler(internal) RETURNS index_am_handler
AS 'MODULE_PATHNAME', 'laser_handler'
LANGUAGE c;

CREATE ACCESS METHOD laser TYPE INDEX HANDLER laser_handler;

COMMENT ON ACCESS METHOD laser IS 'nearest neighbours of embeddings and texts';

-- Distance of two texts: cosine distance of their embeddings by the model in laser.model. It is not
-- immutable, for every role may set that: in an index or a partition's bounds one role's model would decide for others.
--
-- The planner does not know the model. 10,000 operators of ten nanoseconds lie between a cheap model in the session (some
-- microseconds) and a transformer in the encoder process (some milliseconds): other conditions come first, and to embed
-- the query for an index (EMBED in `cost.rs`, the same number) costs as much as one row of a sequential scan. It need not
-- be as low as the cost of laser_embed: no plan folds a distance of a column, so that generic plans of prepared statements
-- look no dearer for it.
CREATE FUNCTION laser_text_distance_support(internal) RETURNS internal
AS 'MODULE_PATHNAME', 'laser_text_distance_support'
LANGUAGE c STRICT;

COMMENT ON FUNCTION laser_text_distance_support(internal)
IS 'planner support: raises an error for the distance of two text columns where the model has different prefixes for queries and passages';

CREATE FUNCTION cosine_distance(text, text) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_text_cosine_distance'
LANGUAGE c STABLE STRICT PARALLEL SAFE COST 10000
SUPPORT laser_text_distance_support;

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
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED COST 1000 ROWS 1;

COMMENT ON FUNCTION laser_index_info(regclass) IS
    'segments, live and dead entries in them, pending entries, size and parameters of a laser index';

CREATE FUNCTION laser_index_check(index regclass, heapallindexed boolean DEFAULT true)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'laser_index_check_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED COST 100000 ROWS 1;

COMMENT ON FUNCTION laser_index_check(regclass, boolean) IS
    'problems of a laser index, and rows of its table that it lacks; no rows if there are none';

CREATE FUNCTION laser_index_recall(
    index regclass, samples integer DEFAULT 100, k integer DEFAULT 10, queries text DEFAULT 'rows')
RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_index_recall_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED COST 1000000;

COMMENT ON FUNCTION laser_index_recall(regclass, integer, integer, text) IS
    'share of the k nearest rows that a search finds, for the vectors of random rows or for queries sampled by laser.track_queries; null without rows';

CREATE FUNCTION laser_index_tune(
    index regclass, target double precision DEFAULT 0.99, samples integer DEFAULT 100, k integer DEFAULT 10,
    queries text DEFAULT 'rows',
    OUT ef_search integer, OUT recall double precision, OUT milliseconds double precision, OUT is_enough boolean)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_index_tune_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED COST 1000000 ROWS 10;

COMMENT ON FUNCTION laser_index_tune(regclass, double precision, integer, integer, text) IS
    'what searches of growing width find of the k nearest rows, for the vectors of random rows or for queries sampled by laser.track_queries, up to the width that reaches the target';

CREATE FUNCTION laser_index_estimate(
    rows bigint, dimensions integer, m integer DEFAULT 16, metric text DEFAULT 'cosine',
    OUT quantization text, OUT bytes bigint, OUT mapped_bytes bigint, OUT build_memory bigint,
    OUT segments integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_index_estimate_wrapper'
LANGUAGE c STABLE STRICT PARALLEL SAFE ROWS 5;

COMMENT ON FUNCTION laser_index_estimate(bigint, integer, integer, text) IS
    'size of an index before it is built, for each quantization: bytes of the relation, of the files that searches map, and of maintenance_work_mem for one segment; segments with the present maintenance_work_mem';

CREATE FUNCTION laser_merge(index regclass) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_merge_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE COST 1000000;

COMMENT ON FUNCTION laser_merge(regclass) IS
    'merges the pending list and the segments of a laser index, as far as maintenance_work_mem allows; returns the number of segments written';

CREATE FUNCTION laser_prewarm(index regclass) RETURNS bigint
AS 'MODULE_PATHNAME', 'laser_prewarm_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED COST 1000000;

COMMENT ON FUNCTION laser_prewarm(regclass) IS
    'opens the segments of a laser index, creating the files that are missing; returns their size in bytes';

-- All of these ask for more than EXECUTE: laser_index_info() for SELECT on the table or the role
-- pg_stat_scan_tables, the others for ownership of the index or, from PostgreSQL 17 on, the privilege
-- MAINTAIN on the table. Those that evaluate expressions of the index, as the owner of its table,
-- are for roles that were given EXECUTE besides.
REVOKE EXECUTE ON FUNCTION laser_index_check(regclass, boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION laser_index_recall(regclass, integer, integer, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION laser_index_tune(regclass, double precision, integer, integer, text) FROM PUBLIC;

-- No row for indexes of embeddings, nor for one that is locked, or gone.
CREATE FUNCTION laser_index_model(index oid, OUT model text, OUT fingerprint text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_index_model_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED COST 1000 ROWS 1;

COMMENT ON FUNCTION laser_index_model(oid) IS
    'the model of an index on text; no row for one that others have locked';

-- Strict functions give no rows for null: indexes are looked into by who may look.
CREATE VIEW laser_models_used AS
SELECT c.oid::pg_catalog.regclass AS relation, 'column' AS kind, a.attname AS name,
       pg_catalog.split_part(s.label, ' ', 1) AS model,
       CASE WHEN s.label OPERATOR(pg_catalog.~~) '% %'
            THEN pg_catalog.split_part(s.label, ' ', 2) END AS fingerprint
FROM pg_catalog.pg_seclabel s
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) s.objoid
JOIN pg_catalog.pg_attribute a
  ON a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum::integer OPERATOR(pg_catalog.=) s.objsubid
WHERE s.provider OPERATOR(pg_catalog.=) 'laser'
  AND s.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
UNION ALL
SELECT i.indrelid::pg_catalog.regclass, 'index', c.relname, info.model, info.fingerprint
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_am m ON m.oid OPERATOR(pg_catalog.=) c.relam
JOIN pg_catalog.pg_index i ON i.indexrelid OPERATOR(pg_catalog.=) c.oid
CROSS JOIN LATERAL @extschema@.laser_index_model(
    CASE WHEN m.amname OPERATOR(pg_catalog.=) 'laser' AND c.relkind OPERATOR(pg_catalog.=) 'i'
              AND pg_catalog.has_table_privilege(i.indrelid, 'SELECT') AND i.indisready
              AND NOT pg_catalog.pg_is_other_temp_schema(c.relnamespace)
              AND (c.relpersistence OPERATOR(pg_catalog.=) 'p' OR NOT pg_catalog.pg_is_in_recovery())
         THEN i.indexrelid END) info;

GRANT SELECT ON laser_models_used TO PUBLIC;

COMMENT ON VIEW laser_models_used IS
    'columns and text indexes with embeddings of models: columns that have a label (SECURITY LABEL FOR laser), indexes that the role may inspect, except those that others have locked at the moment';
COMMENT ON COLUMN laser_models_used.kind IS 'column or index';
COMMENT ON COLUMN laser_models_used.name IS 'name of the column or index';
COMMENT ON COLUMN laser_models_used.fingerprint IS 'hash of the model''s files when the embeddings were computed, see laser_models; null where the label has none';

CREATE FUNCTION laser_index_maintenance(
    OUT pid integer, OUT datid oid, OUT indexrelid oid, OUT index text, OUT phase text,
    OUT tuples_done bigint, OUT tuples_total bigint, OUT started_at timestamptz,
    OUT failures integer, OUT last_error text, OUT failed_at timestamptz, OUT next_try timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_index_maintenance_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED ROWS 5;

COMMENT ON FUNCTION laser_index_maintenance() IS 'what the view laser_index_maintenance shows';

CREATE VIEW laser_index_maintenance AS
SELECT m.pid, m.datid, d.datname, m.indexrelid, m.index, m.phase, m.tuples_done, m.tuples_total,
       m.started_at, m.failures, m.last_error, m.failed_at, m.next_try
FROM @extschema@.laser_index_maintenance() AS m
JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) m.datid;

GRANT SELECT ON laser_index_maintenance TO PUBLIC;

COMMENT ON VIEW laser_index_maintenance IS
    'what background workers merge, and indexes whose merge has failed; only their owners and pg_read_all_stats see which';
COMMENT ON COLUMN laser_index_maintenance.pid IS 'process ID of the database''s worker; null while there is none';
COMMENT ON COLUMN laser_index_maintenance.phase IS
    'idle; starting, sampling vectors, loading vectors, refining graph, writing segment; until next_try: put off after a failure, or waiting for lock that others hold on the index';
COMMENT ON COLUMN laser_index_maintenance.tuples_done IS 'entries of the new segment that the phase has done; fewer than before where refining goes over the graph again';
COMMENT ON COLUMN laser_index_maintenance.failures IS 'number of consecutive failed merges';

CREATE VIEW laser_index_progress AS
SELECT p.pid, p.datid, p.datname, p.relid, p.index_relid, p.command, p.phase, p.tuples_done, p.tuples_total,
       CASE WHEN i.param20 OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.make_interval(secs => i.param20::double precision) END AS time_left
FROM pg_catalog.pg_stat_progress_create_index p
JOIN pg_catalog.pg_stat_get_progress_info('CREATE INDEX') i ON i.pid OPERATOR(pg_catalog.=) p.pid
JOIN pg_catalog.pg_am m ON m.oid::bigint OPERATOR(pg_catalog.=) i.param9
WHERE m.amname OPERATOR(pg_catalog.=) 'laser' AND p.datname OPERATOR(pg_catalog.=) pg_catalog.current_database();

GRANT SELECT ON laser_index_progress TO PUBLIC;

COMMENT ON VIEW laser_index_progress IS
    'laser indexes of this database that CREATE INDEX and REINDEX build, as in pg_stat_progress_create_index, and how much longer that will take';
COMMENT ON COLUMN laser_index_progress.time_left IS
    'estimate of what loading and refining of this index will take, by the speed of the phase; null while that is not known, as in the first second of a phase';

-- One row: nulls where the server has not preloaded the library, zeros for what nothing was counted of.
CREATE FUNCTION laser_index_statistics(
    index oid,
    OUT searches bigint, OUT visited bigint, OUT reranked bigint, OUT widened bigint, OUT cut bigint,
    OUT merges bigint, OUT merge_time double precision, OUT files_opened bigint, OUT files_made bigint,
    OUT stats_reset timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_index_statistics_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL SAFE ROWS 1;

COMMENT ON FUNCTION laser_index_statistics(oid) IS 'what the view pg_stat_laser_indexes shows of an index of this database';

CREATE FUNCTION laser_index_statistics_reset(index regclass) RETURNS void
AS 'MODULE_PATHNAME', 'laser_index_statistics_reset_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION laser_index_statistics_reset(regclass) IS
    'resets the counts of an index in pg_stat_laser_indexes to zero';

CREATE VIEW pg_stat_laser_indexes AS
SELECT t.oid AS relid, c.oid AS indexrelid, n.nspname AS schemaname, t.relname, c.relname AS indexrelname,
       s.searches, s.visited, s.reranked, s.widened, s.cut, s.merges, s.merge_time, s.files_opened,
       s.files_made, s.stats_reset
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_am m ON m.oid OPERATOR(pg_catalog.=) c.relam
JOIN pg_catalog.pg_index i ON i.indexrelid OPERATOR(pg_catalog.=) c.oid
JOIN pg_catalog.pg_class t ON t.oid OPERATOR(pg_catalog.=) i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) t.relnamespace
CROSS JOIN LATERAL @extschema@.laser_index_statistics(c.oid) s
WHERE m.amname OPERATOR(pg_catalog.=) 'laser' AND c.relkind OPERATOR(pg_catalog.=) 'i';

GRANT SELECT ON pg_stat_laser_indexes TO PUBLIC;

COMMENT ON VIEW pg_stat_laser_indexes IS
    'what scans and merges of the laser indexes of this database have done since the server was started; counts are null where laser is not in shared_preload_libraries';
COMMENT ON COLUMN pg_stat_laser_indexes.searches IS 'scans of the index that have begun, each of a nested loop''s';
COMMENT ON COLUMN pg_stat_laser_indexes.visited IS 'stored vectors that were compared with the query: in graph walks, in exhaustive searches, and in the pending list';
COMMENT ON COLUMN pg_stat_laser_indexes.reranked IS 'rows of the table that were fetched for filters and exact distances';
COMMENT ON COLUMN pg_stat_laser_indexes.widened IS 'wider searches that followed within a scan';
COMMENT ON COLUMN pg_stat_laser_indexes.cut IS 'scans that ended at laser.max_scan_tuples';
COMMENT ON COLUMN pg_stat_laser_indexes.merges IS 'merges that have made segments: by inserts, VACUUM, laser_merge and workers';
COMMENT ON COLUMN pg_stat_laser_indexes.merge_time IS 'time spent in these merges, in milliseconds';
COMMENT ON COLUMN pg_stat_laser_indexes.files_opened IS 'files of segments that sessions have opened';
COMMENT ON COLUMN pg_stat_laser_indexes.files_made IS 'files of segments that were written, by builds, merges and searches that found none';
