-- laser: bitext mining.

-- The queries are run in the rights and in the snapshot of the caller, read-only. Those of a side
-- return (id bigint, text or embedding); rows without a value take no part.
CREATE FUNCTION laser_mine(
    source text, target text, k integer DEFAULT 4, margin text DEFAULT 'ratio',
    retrieval text DEFAULT 'max', threshold double precision DEFAULT 0,
    method text DEFAULT 'exact', unify boolean DEFAULT true,
    OUT source_id bigint, OUT target_id bigint, OUT score double precision,
    OUT forward_mean double precision, OUT backward_mean double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_mine_wrapper'
LANGUAGE c STABLE STRICT PARALLEL UNSAFE COST 1000000 ROWS 1000;

COMMENT ON FUNCTION laser_mine IS
    'pairs of source and target rows that are likely translations of each other';

CREATE FUNCTION laser_knn_join(
    source text, target text, k integer DEFAULT 4,
    OUT source_id bigint, OUT target_id bigint, OUT rank integer, OUT cosine double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_knn_join_wrapper'
LANGUAGE c STABLE STRICT PARALLEL UNSAFE COST 1000000 ROWS 10000;

COMMENT ON FUNCTION laser_knn_join IS 'the k nearest target rows of each source row, exactly';

CREATE FUNCTION laser_knn_merge(
    shards text, k integer DEFAULT 4,
    OUT source_id bigint, OUT target_id bigint, OUT rank integer, OUT cosine double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_knn_merge_wrapper'
LANGUAGE c STABLE STRICT PARALLEL UNSAFE COST 10000 ROWS 10000;

COMMENT ON FUNCTION laser_knn_merge IS
    'the k nearest among the neighbours found in several shards: a query returns (source id, target id, cosine)';

CREATE FUNCTION laser_mine_neighbours(
    forward text, backward text, margin text DEFAULT 'ratio', retrieval text DEFAULT 'max',
    threshold double precision DEFAULT 0,
    OUT source_id bigint, OUT target_id bigint, OUT score double precision,
    OUT forward_mean double precision, OUT backward_mean double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_mine_neighbours_wrapper'
LANGUAGE c STABLE STRICT PARALLEL UNSAFE COST 10000 ROWS 1000;

COMMENT ON FUNCTION laser_mine_neighbours IS
    'pairs from neighbours that are known: queries return (source id, target id, cosine) and (target id, source id, cosine)';

CREATE FUNCTION laser_margin_scores(
    pairs text, source text, target text, margin text DEFAULT 'ratio', k integer DEFAULT 4,
    OUT source_id bigint, OUT target_id bigint, OUT score double precision,
    OUT cosine double precision, OUT forward_mean double precision,
    OUT backward_mean double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_margin_scores_wrapper'
LANGUAGE c STABLE STRICT PARALLEL UNSAFE COST 1000000 ROWS 1000;

COMMENT ON FUNCTION laser_margin_scores IS
    'scores of given pairs: a query returns (source id, target id)';

CREATE FUNCTION laser_similarity_error(
    source text, target text, margin text DEFAULT 'ratio', k integer DEFAULT 4)
RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_similarity_error_wrapper'
LANGUAGE c STABLE STRICT PARALLEL UNSAFE COST 1000000;

COMMENT ON FUNCTION laser_similarity_error IS
    'share of source rows whose best target row is not the one with the same id (xsim; with margin absolute the similarity error)';

CREATE FUNCTION laser_bucc_score(
    candidates text, gold text, at_threshold double precision DEFAULT NULL,
    OUT "precision" double precision, OUT recall double precision, OUT f1 double precision,
    OUT threshold double precision, OUT extracted bigint, OUT correct bigint,
    OUT gold_pairs bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_bucc_score_wrapper'
LANGUAGE c STABLE PARALLEL UNSAFE COST 10000 ROWS 1;

COMMENT ON FUNCTION laser_bucc_score IS
    'precision, recall and F1 of mined pairs (source id, target id, score) against gold pairs, at the threshold with the best F1 or at a given one';

-- The shape of a table with the state of incremental mining:
--   CREATE TABLE de_en (LIKE laser_mining_state INCLUDING ALL);
CREATE TABLE laser_mining_state (
    side "char" NOT NULL CHECK (side OPERATOR(pg_catalog.=) ANY ('{s,t}'::pg_catalog."char"[])),
    id bigint NOT NULL,
    content bytea NOT NULL,
    embedding embedding NOT NULL,
    neighbours bigint[] NOT NULL,
    cosines double precision[] NOT NULL,
    PRIMARY KEY (side, id)
);
GRANT SELECT ON laser_mining_state TO PUBLIC;

COMMENT ON TABLE laser_mining_state IS
    'shape of the tables that laser_mine_update() keeps; it stays empty itself';
COMMENT ON COLUMN laser_mining_state.side IS 's: source, t: target';
COMMENT ON COLUMN laser_mining_state.content IS 'hash of the text and its model, or of the embedding';
COMMENT ON COLUMN laser_mining_state.neighbours IS 'ids of the nearest rows of the other side';

CREATE FUNCTION laser_mine_update(
    state regclass, source text, target text, k integer DEFAULT 4, unify boolean DEFAULT true,
    OUT side text, OUT rows bigint, OUT added bigint, OUT removed bigint, OUT written bigint,
    OUT compared bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_mine_update_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE COST 1000000 ROWS 2;

COMMENT ON FUNCTION laser_mine_update IS
    'brings a table of neighbourhoods up to date with its queries, searching only what changed';

CREATE FUNCTION laser_mine_stored(
    state regclass, margin text DEFAULT 'ratio', retrieval text DEFAULT 'max',
    threshold double precision DEFAULT 0,
    OUT source_id bigint, OUT target_id bigint, OUT score double precision,
    OUT forward_mean double precision, OUT backward_mean double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_mine_stored_wrapper'
LANGUAGE c STABLE STRICT PARALLEL UNSAFE COST 100000 ROWS 1000;

COMMENT ON FUNCTION laser_mine_stored IS
    'the pairs of laser_mine() from a table that laser_mine_update() keeps';

CREATE FUNCTION laser_mining_progress(
    OUT pid integer, OUT datid oid, OUT usesysid oid, OUT started_at timestamptz, OUT phase text,
    OUT source_rows bigint, OUT target_rows bigint, OUT pairs_done bigint, OUT pairs_total bigint,
    OUT threads integer, OUT memory_kb bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_mining_progress_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE ROWS 5;

CREATE VIEW laser_mining_progress AS
SELECT p.pid, p.datid, d.datname, r.rolname AS usename, p.started_at, p.phase, p.source_rows,
       p.target_rows, p.pairs_done, p.pairs_total, p.threads, p.memory_kb
FROM @extschema@.laser_mining_progress() AS p
LEFT JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) p.datid
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) p.usesysid;
GRANT SELECT ON laser_mining_progress TO PUBLIC;

COMMENT ON VIEW laser_mining_progress IS 'sessions that are mining, and how far they are';
COMMENT ON COLUMN laser_mining_progress.pairs_total IS
    'pairs of rows to compare in the current search; 0 while rows are being read';
