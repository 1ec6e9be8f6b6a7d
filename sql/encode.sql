-- laser: texts to embeddings.

-- A text costs from some microseconds (a cheap model in the session) to some milliseconds, an
-- operator some ten nanoseconds. The cost suits the cheap ones: it is enough for other conditions to
-- come first, and more would have the planner plan a prepared statement anew for each execution,
-- which takes longer than a cheap embedding. The functions are immutable in the sense that the same
-- text and model give the same embedding: a constant query text is embedded once per plan.
CREATE FUNCTION laser_embed(text) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embed'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 500;

CREATE FUNCTION laser_embed(text, model text) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embed'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 500;

CREATE FUNCTION laser_embed(text[]) RETURNS embedding[]
AS 'MODULE_PATHNAME', 'laser_embed_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5000;

CREATE FUNCTION laser_embed(text[], model text) RETURNS embedding[]
AS 'MODULE_PATHNAME', 'laser_embed_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5000;

COMMENT ON FUNCTION laser_embed(text) IS 'embedding of a text by the model in laser.model';
COMMENT ON FUNCTION laser_embed(text, text) IS 'embedding of a text by a model';
COMMENT ON FUNCTION laser_embed(text[]) IS 'embeddings of texts by the model in laser.model';
COMMENT ON FUNCTION laser_embed(text[], text) IS 'embeddings of texts by a model';

CREATE FUNCTION laser_models(
    OUT name text, OUT dimensions integer, OUT architecture text, OUT max_tokens integer,
    OUT fingerprint text, OUT loaded boolean, OUT is_default boolean, OUT in_backend boolean,
    OUT error text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_models_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL SAFE COST 100000 ROWS 10;

CREATE VIEW laser_models AS
SELECT name, dimensions, architecture, max_tokens, fingerprint, loaded, is_default, in_backend,
       error
FROM laser_models();

COMMENT ON VIEW laser_models IS 'models that are installed';
COMMENT ON COLUMN laser_models.fingerprint IS 'hash of the model''s files';
COMMENT ON COLUMN laser_models.loaded IS 'whether the encoder process holds it in memory';
COMMENT ON COLUMN laser_models.is_default IS 'whether it is used where laser.model is empty';
COMMENT ON COLUMN laser_models.in_backend IS 'whether this session encodes with it itself';
COMMENT ON COLUMN laser_models.error IS 'why it cannot be used';

CREATE FUNCTION laser_encoder_status(
    OUT state text, OUT pid integer, OUT worker_pid integer, OUT device text,
    OUT default_model text, OUT loaded_models text[], OUT memory_bytes bigint,
    OUT sessions integer, OUT queue_length bigint, OUT queue_limit bigint, OUT batches bigint,
    OUT sentences bigint, OUT tokens bigint, OUT sentences_per_second double precision,
    OUT restarts bigint, OUT uptime_ms bigint, OUT last_error text, OUT backend_model text,
    OUT backend_sentences bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_encoder_status_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL SAFE COST 100000 ROWS 1;

CREATE VIEW laser_encoder_status AS
SELECT state, pid, worker_pid, device, default_model, loaded_models, memory_bytes, sessions,
       queue_length, queue_limit, batches, sentences, tokens,
       round(sentences_per_second::numeric, 1) AS sentences_per_second, restarts,
       uptime_ms * interval '1 millisecond' AS uptime, last_error, backend_model,
       backend_sentences
FROM laser_encoder_status();

COMMENT ON VIEW laser_encoder_status IS 'state of the encoder process; answers when it is down as well';
COMMENT ON COLUMN laser_encoder_status.state
IS 'running; busy: its answer takes longer; not answering: neither answers nor computes; starting; backing off; stopped';
COMMENT ON COLUMN laser_encoder_status.sentences IS 'texts embedded by the process since its start';
COMMENT ON COLUMN laser_encoder_status.backend_model
IS 'model that sessions may encode with themselves, see laser.encode_in_backend';
COMMENT ON COLUMN laser_encoder_status.backend_sentences
IS 'texts embedded by the sessions themselves since the start of the server';

GRANT SELECT ON laser_models, laser_encoder_status TO PUBLIC;

CREATE FUNCTION laser_in_transaction_block() RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_in_transaction_block_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION laser_in_transaction_block()
IS 'whether a procedure called now could not commit: BEGIN was sent, or several statements at once';

-- Fills an embedding column, in transactions of batch_size rows. It walks the table by physical
-- position (ctid), needs no key, takes only rows whose embedding is still null, and can therefore
-- be stopped and called again at any time. Rows that others change meanwhile are met in a later
-- pass, since what has no embedding yet is looked for until nothing is left.
CREATE PROCEDURE laser_embed_table(
    tbl regclass, text_column name, embedding_column name, batch_size integer DEFAULT 1000)
LANGUAGE plpgsql AS $procedure$
DECLARE
    laser name := (SELECT n.nspname FROM pg_catalog.pg_extension e
                   JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
                   WHERE e.extname = 'laser');
    in_block boolean;
    kind "char";
    text_type oid;
    embedding_type oid;
    parts regclass[];
    part regclass;
    estimate bigint;
    fetch_batch text;
    store_batch text;
    last_block bigint;
    position tid;
    rows_read bigint;
    rows_stored bigint;
    pass_stored bigint;
    total bigint := 0;
    started timestamptz := pg_catalog.clock_timestamp();
    noticed timestamptz := started;
    positions tid[];
    texts text[];
    next_position tid;
BEGIN
    IF tbl IS NULL OR text_column IS NULL OR embedding_column IS NULL OR batch_size IS NULL THEN
        RAISE EXCEPTION USING errcode = 'null_value_not_allowed',
            message = 'arguments of laser_embed_table must not be null';
    END IF;
    EXECUTE pg_catalog.format('SELECT %I.laser_in_transaction_block()', laser) INTO in_block;
    IF in_block THEN
        RAISE EXCEPTION USING errcode = 'active_sql_transaction',
            message = 'laser_embed_table cannot run inside a transaction block',
            hint = 'It commits each batch. Call it without BEGIN, with autocommit, and as the only statement.';
    END IF;
    IF batch_size NOT BETWEEN 1 AND 100000 THEN
        RAISE EXCEPTION USING errcode = 'invalid_parameter_value',
            message = pg_catalog.format('batch size is %s, must be 1 to 100000', batch_size);
    END IF;
    SELECT c.relkind INTO kind FROM pg_catalog.pg_class c WHERE c.oid = tbl;
    IF kind IS NULL OR kind NOT IN ('r', 'p') THEN
        RAISE EXCEPTION USING errcode = 'wrong_object_type',
            message = pg_catalog.format('"%s" is not a table', tbl),
            hint = 'Name a table or a partitioned table.';
    END IF;
    SELECT a.atttypid INTO text_type FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = tbl AND a.attname = text_column AND a.attnum > 0 AND NOT a.attisdropped;
    IF text_type IS NULL THEN
        RAISE EXCEPTION USING errcode = 'undefined_column',
            message = pg_catalog.format('column "%s" of table "%s" does not exist', text_column, tbl);
    END IF;
    IF (SELECT t.typcategory FROM pg_catalog.pg_type t WHERE t.oid = text_type) <> 'S' THEN
        RAISE EXCEPTION USING errcode = 'datatype_mismatch',
            message = pg_catalog.format('column "%s" of table "%s" is of type %s, which is no text type',
                             text_column, tbl, pg_catalog.format_type(text_type, NULL)),
            hint = 'Name a column of type text, varchar or char.';
    END IF;
    SELECT a.atttypid INTO embedding_type FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = tbl AND a.attname = embedding_column AND a.attnum > 0
      AND NOT a.attisdropped;
    IF embedding_type IS NULL THEN
        RAISE EXCEPTION USING errcode = 'undefined_column',
            message = pg_catalog.format('column "%s" of table "%s" does not exist', embedding_column, tbl),
            hint = pg_catalog.format('ALTER TABLE %s ADD COLUMN %I %I.embedding;', tbl, embedding_column, laser);
    END IF;
    IF embedding_type NOT IN (
        pg_catalog.format('%I.embedding', laser)::regtype,
        pg_catalog.format('%I.halfembedding', laser)::regtype)
    THEN
        RAISE EXCEPTION USING errcode = 'datatype_mismatch',
            message = pg_catalog.format('column "%s" of table "%s" is of type %s, not embedding or halfembedding',
                             embedding_column, tbl, pg_catalog.format_type(embedding_type, NULL)),
            hint = 'Name a column of type embedding or halfembedding.';
    END IF;

    -- Called by a function, this raises the error at once, and not after the first batch.
    COMMIT;
    IF kind = 'p' THEN
        SELECT pg_catalog.array_agg(p.relid) INTO parts
        FROM pg_catalog.pg_partition_tree(tbl) p
        JOIN pg_catalog.pg_class c ON c.oid = p.relid
        WHERE p.isleaf AND c.relkind = 'r';
    ELSE
        parts := ARRAY[tbl];
    END IF;
    SELECT COALESCE(pg_catalog.sum(GREATEST(c.reltuples, 0)), 0)::bigint INTO estimate
    FROM pg_catalog.pg_class c WHERE c.oid = ANY (parts);

    FOREACH part IN ARRAY COALESCE(parts, '{}') LOOP
        -- Locking the rows keeps their text from changing before the embedding is stored.
        fetch_batch := pg_catalog.format(
            'SELECT pg_catalog.array_agg(b.ctid), pg_catalog.array_agg(b.body), pg_catalog.max(b.ctid)
             FROM (SELECT ctid, %1$I::pg_catalog.text AS body FROM ONLY %2$s
                   WHERE ctid > $1 AND ctid < $2 AND %3$I IS NULL AND %1$I IS NOT NULL
                   LIMIT $3 FOR NO KEY UPDATE) b',
            text_column, part, embedding_column);
        store_batch := pg_catalog.format(
            'UPDATE ONLY %1$s AS t SET %2$I = e.value
             FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest(%3$I.laser_embed($2)))
                  AS e(position, value)
             WHERE t.ctid = e.position AND t.%2$I IS NULL',
            part, embedding_column, laser);
        LOOP
            position := '(0,0)';
            pass_stored := 0;
            last_block := pg_catalog.pg_relation_size(part)
                          / pg_catalog.current_setting('block_size')::bigint;
            LOOP
                PERFORM pg_catalog.set_config('synchronize_seqscans', 'off', true);
                PERFORM pg_catalog.set_config('application_name', pg_catalog.format(
                    'laser_embed_table %s: %s of about %s rows', part, total, estimate), true);
                EXECUTE fetch_batch INTO positions, texts, next_position
                USING position, pg_catalog.format('(%s,0)', last_block)::tid, batch_size;
                rows_read := pg_catalog.cardinality(positions);
                EXIT WHEN rows_read IS NULL;
                EXECUTE store_batch USING positions, texts;
                GET DIAGNOSTICS rows_stored = ROW_COUNT;
                position := next_position;
                pass_stored := pass_stored + rows_stored;
                total := total + rows_stored;
                COMMIT;
                IF pg_catalog.clock_timestamp() - noticed > interval '2 seconds' THEN
                    noticed := pg_catalog.clock_timestamp();
                    RAISE NOTICE '% of about % rows embedded, % rows/s', total, estimate,
                        pg_catalog.round(total / EXTRACT(epoch FROM noticed - started));
                END IF;
            END LOOP;
            COMMIT;
            -- A pass that stores nothing ends the part: nothing is left, or a trigger keeps it so.
            EXIT WHEN pass_stored = 0;
        END LOOP;
    END LOOP;
    RAISE NOTICE '% rows embedded', total;
END
$procedure$;

COMMENT ON PROCEDURE laser_embed_table(regclass, name, name, integer)
IS 'embeds a text column into an embedding column, committing in batches';
