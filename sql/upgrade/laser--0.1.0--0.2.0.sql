\echo Use "ALTER EXTENSION laser UPDATE" to load this file. \quit

-- From 0.1.0 to 0.2.0.

-- A literal without a type is an embedding where both types would do. ALTER TYPE cannot say this.
UPDATE pg_catalog.pg_type SET typcategory = 'e', typispreferred = true
WHERE oid OPERATOR(pg_catalog.=) '@extschema@.embedding'::pg_catalog.regtype::pg_catalog.oid;
UPDATE pg_catalog.pg_type SET typcategory = 'e'
WHERE oid OPERATOR(pg_catalog.=) '@extschema@.halfembedding'::pg_catalog.regtype::pg_catalog.oid;

CREATE FUNCTION laser_text_distance_support(internal) RETURNS internal
AS 'MODULE_PATHNAME', 'laser_text_distance_support'
LANGUAGE c STRICT;

COMMENT ON FUNCTION laser_text_distance_support(internal)
IS 'planner support: raises an error for the distance of two text columns where the model has different prefixes for queries and passages';

-- Every role may set laser.model: in an index or a partition's bounds one role's model would decide for others.
ALTER FUNCTION cosine_distance(text, text) STABLE SUPPORT laser_text_distance_support;

-- Refuses to plan distances between embeddings of two models, where both are known.
CREATE FUNCTION laser_distance_support(internal) RETURNS internal
AS 'MODULE_PATHNAME', 'laser_distance_support'
LANGUAGE c STRICT;

ALTER FUNCTION cosine_distance(embedding, embedding) SUPPORT laser_distance_support;

ALTER FUNCTION l2_distance(embedding, embedding) SUPPORT laser_distance_support;

ALTER FUNCTION inner_product(embedding, embedding) SUPPORT laser_distance_support;

ALTER FUNCTION negative_inner_product(embedding, embedding) SUPPORT laser_distance_support;

ALTER FUNCTION l1_distance(embedding, embedding) SUPPORT laser_distance_support;

ALTER FUNCTION cosine_distance(halfembedding, halfembedding) SUPPORT laser_distance_support;

ALTER FUNCTION l2_distance(halfembedding, halfembedding) SUPPORT laser_distance_support;

ALTER FUNCTION inner_product(halfembedding, halfembedding) SUPPORT laser_distance_support;

ALTER FUNCTION negative_inner_product(halfembedding, halfembedding) SUPPORT laser_distance_support;

ALTER FUNCTION l1_distance(halfembedding, halfembedding) SUPPORT laser_distance_support;

-- The names that pgvector has for these two.
CREATE FUNCTION vector_dims(embedding) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_dimensions'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 2;

CREATE FUNCTION l2_norm(embedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_embedding_norm'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

COMMENT ON FUNCTION vector_dims(embedding) IS 'number of dimensions';

COMMENT ON FUNCTION l2_norm(embedding) IS 'Euclidean norm';

-- The names that pgvector has for these two.
CREATE FUNCTION vector_dims(halfembedding) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_dimensions'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 2;

CREATE FUNCTION l2_norm(halfembedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_halfembedding_norm'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

COMMENT ON FUNCTION vector_dims(halfembedding) IS 'number of dimensions';

COMMENT ON FUNCTION l2_norm(halfembedding) IS 'Euclidean norm';

-- Not strict: null is the model in laser.model, and no role.
CREATE FUNCTION laser_embed(text, model text, role text) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embed'
LANGUAGE c IMMUTABLE PARALLEL SAFE COST 500;

CREATE FUNCTION laser_embed(text[], model text, role text) RETURNS embedding[]
AS 'MODULE_PATHNAME', 'laser_embed_array'
LANGUAGE c IMMUTABLE PARALLEL SAFE COST 5000;

COMMENT ON FUNCTION laser_embed(text, text, text)
IS 'embedding of a text with the model''s prefix for its role, ''query'' or ''passage''';

COMMENT ON FUNCTION laser_embed(text[], text, text)
IS 'embeddings of texts with the model''s prefix for their role, ''query'' or ''passage''';

-- A pair costs a transformer some milliseconds: whatever else can be asked of a row is asked before.
CREATE FUNCTION laser_rerank(query text, body text, model text) RETURNS real
AS 'MODULE_PATHNAME', 'laser_rerank'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 100000;

CREATE FUNCTION laser_rerank(query text, texts text[], model text) RETURNS real[]
AS 'MODULE_PATHNAME', 'laser_rerank_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 1000000;

COMMENT ON FUNCTION laser_rerank(text, text, text)
IS 'how well a text answers a query, by a cross-encoder: its logit, larger is better';

COMMENT ON FUNCTION laser_rerank(text, text[], text)
IS 'how well texts answer a query, by a cross-encoder: its logits, larger is better';

-- Columns were added. The view is replaced, and so are not those that others have made of it.
ALTER FUNCTION laser_models() RENAME TO laser_models_of_0_1_0;

CREATE FUNCTION laser_models(
    OUT name text, OUT dimensions integer, OUT architecture text, OUT max_tokens integer,
    OUT fingerprint text, OUT loaded boolean, OUT is_default boolean, OUT in_backend boolean,
    OUT error text, OUT "precision" text, OUT reranker boolean, OUT query_prefix text, OUT passage_prefix text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_models_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL SAFE COST 100000 ROWS 10;

CREATE OR REPLACE VIEW laser_models AS
SELECT name, dimensions, architecture, max_tokens, fingerprint, loaded, is_default, in_backend,
       error, "precision", reranker, query_prefix, passage_prefix
FROM @extschema@.laser_models();

DROP FUNCTION laser_models_of_0_1_0();

COMMENT ON VIEW laser_models IS 'models that are installed';

COMMENT ON COLUMN laser_models.fingerprint IS 'hash of the model''s files';

COMMENT ON COLUMN laser_models.loaded IS 'whether the encoder process holds it in memory';

COMMENT ON COLUMN laser_models.is_default IS 'whether it is used where laser.model is empty';

COMMENT ON COLUMN laser_models.in_backend IS 'whether this session encodes with it itself';

COMMENT ON COLUMN laser_models.precision
IS 'arithmetic of a loaded model, and the setting that it cannot follow: "f32, not bf16"';

COMMENT ON COLUMN laser_models.reranker IS 'whether it scores pairs of a query and a text, and embeds none: see laser_rerank';

COMMENT ON COLUMN laser_models.query_prefix IS 'prefix of a text with the role ''query''';

COMMENT ON COLUMN laser_models.passage_prefix IS 'prefix of a text with the role ''passage''';

COMMENT ON COLUMN laser_models.error IS 'why it cannot be used';

CREATE OR REPLACE VIEW laser_encoder_status AS
SELECT state, pid, worker_pid, device, default_model, loaded_models, memory_bytes, sessions,
       queue_length, queue_limit, batches, sentences, tokens,
       pg_catalog.round(sentences_per_second::numeric, 1) AS sentences_per_second, restarts,
       uptime_ms OPERATOR(pg_catalog.*) interval '1 millisecond' AS uptime, last_error, backend_model,
       backend_sentences
FROM @extschema@.laser_encoder_status();

CREATE FUNCTION laser_lock_table(tbl oid, alone boolean) RETURNS cstring
AS 'MODULE_PATHNAME', 'laser_lock_table_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION laser_lock_table(oid, boolean)
IS 'internal: locks a table as UPDATE does, or so that nobody else labels its columns, and returns its qualified name';

CREATE FUNCTION laser_label_column(tbl oid, attribute smallint, label text) RETURNS void
AS 'MODULE_PATHNAME', 'laser_label_column_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION laser_label_column(oid, smallint, text)
IS 'internal: gives a column of embeddings a label, as SECURITY LABEL does, whatever name its table has by now';

CREATE FUNCTION laser_mark(tbl oid) RETURNS text
AS 'MODULE_PATHNAME', 'laser_mark_wrapper'
LANGUAGE c STABLE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION laser_mark(oid)
IS 'internal: the comment before a statement of this session about a table, which has it checked once it is parsed';

CREATE FUNCTION laser_column_label(tbl oid, attribute smallint) RETURNS text
AS 'MODULE_PATHNAME', 'laser_column_label_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION laser_column_label(oid, smallint)
IS 'the label that a column of embeddings has now, whatever the snapshot';

CREATE FUNCTION laser_same_model(model text, label text, what text, by_default boolean) RETURNS text
AS 'MODULE_PATHNAME', 'laser_same_model'
LANGUAGE c STABLE PARALLEL SAFE;

COMMENT ON FUNCTION laser_same_model(text, text, text, boolean)
IS 'internal: the model that a call of laser_embed names when a plan runs, unless it is compared with embeddings of another one';

CREATE FUNCTION laser_model_label(model text) RETURNS text
AS 'MODULE_PATHNAME', 'laser_model_label_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL SAFE COST 100000;

COMMENT ON FUNCTION laser_model_label(text)
IS 'name and fingerprint of a model, an empty name being that of laser.model: the security label of a column with its embeddings';

-- Fills an embedding column, in transactions of batch_size rows. It walks the table by physical
-- position (ctid), needs no key, takes only rows whose embedding is still null, and can therefore
-- be stopped and called again at any time. Rows that others change meanwhile are met in a later
-- pass, since what has no embedding yet is looked for until nothing is left, or until ten passes
-- were no shorter than half of the shortest before them: rows then lose their embeddings, or come
-- without one, as fast as they get it.
--
-- A column without embeddings gets a label that names the model (SECURITY LABEL FOR laser ON COLUMN),
-- if the caller owns the table; one with the label of another model is refused.
--
-- It runs with the rights and the search path of the caller. A procedure that commits cannot set a
-- path of its own, so every name in it is qualified: what is on the caller's path is never looked
-- at, whoever has put it there. In each transaction the table gets the name that it has then, under a
-- lock.
CREATE FUNCTION laser_model_validator(options text[], catalog oid) RETURNS void
LANGUAGE plpgsql STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF catalog NOT IN ('pg_foreign_server'::regclass, 'pg_foreign_data_wrapper'::regclass) THEN
        RAISE EXCEPTION USING errcode = 'fdw_error',
            message = 'a foreign server of laser_model stands for a model, which has no foreign tables and no user mappings',
            hint = 'GRANT USAGE ON FOREIGN SERVER lets roles embed with the model.';
    ELSIF options <> '{}' THEN
        RAISE EXCEPTION USING errcode = 'fdw_invalid_option_name',
            message = format('invalid option "%s"', split_part(options[1], '=', 1)),
            hint = 'A foreign server of laser_model has no options: its name is that of the model.';
    END IF;
END
$$;

COMMENT ON FUNCTION laser_model_validator(text[], oid)
IS 'internal: refuses options, foreign tables and user mappings of laser_model';

-- A model that a server of this wrapper is named after is for roles with USAGE on the server; others are for everybody.
CREATE FOREIGN DATA WRAPPER laser_model VALIDATOR laser_model_validator;

COMMENT ON FOREIGN DATA WRAPPER laser_model
IS 'its servers stand for models: USAGE on one is the privilege to embed with the model of that name';

CREATE OR REPLACE PROCEDURE laser_embed_table(
    tbl regclass, text_column name, embedding_column name, batch_size integer DEFAULT 1000)
LANGUAGE plpgsql AS $procedure$
DECLARE
    laser pg_catalog.name := (
        SELECT n.nspname FROM pg_catalog.pg_extension e
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace
        WHERE e.extname OPERATOR(pg_catalog.=) 'laser');
    in_block boolean;
    kind pg_catalog."char";
    text_type pg_catalog.oid;
    embedding_type pg_catalog.oid;
    parts pg_catalog.regclass[];
    part pg_catalog.regclass;
    estimate bigint;
    part_name pg_catalog.text;
    store_batch pg_catalog.text;
    mark pg_catalog.text;
    last_block bigint;
    place pg_catalog.tid;
    rows_read integer;
    rows_stored bigint;
    rows_reset bigint;
    rows_lost bigint;
    rows_wanted integer;
    rows_long integer;
    pass_stored bigint;
    pass_reset bigint;
    pass_refused bigint;
    -- Rows that an update of them did not change.
    pass_missed bigint;
    part_stored bigint;
    part_changed bigint;
    shortest bigint;
    stalled integer;
    has_rules boolean;
    -- Of its users, for updates of rows before them, and after them.
    has_earlier_triggers boolean;
    has_later_triggers boolean;
    deferred pg_catalog.text;
    usual_indexscan pg_catalog.text;
    has_embedding boolean;
    total bigint := 0;
    started pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    noticed pg_catalog.timestamptz := started;
    positions pg_catalog.tid[];
    texts pg_catalog.text[];
    positions_read pg_catalog.tid[];
    texts_read pg_catalog.text[];
    -- Rows whose embedding is that of their text, unless a later trigger changes it.
    stored_positions pg_catalog.tid[];
    stored_texts pg_catalog.text[];
    changed_place pg_catalog.tid;
    changed_text pg_catalog.text;
    embedded_text pg_catalog.text;
    is_changed boolean;
    next_place pg_catalog.tid;
    -- The first row of a pass that no model takes, and why.
    refused_place pg_catalog.tid;
    long_place pg_catalog.tid;
    is_refused boolean;
    refused_message pg_catalog.text;
    -- The first error that ends a part and lets others go on.
    failure_code pg_catalog.text;
    failure_message pg_catalog.text;
    failure_detail pg_catalog.text;
    failure_hint pg_catalog.text;
    -- Name and fingerprint of the model, what the column's label says, and whether it is needed.
    label pg_catalog.text;
    model pg_catalog.text;
    known pg_catalog.text;
    label_now pg_catalog.text;
    read_label pg_catalog.text;
    has_some boolean;
    is_owner boolean;
    hides_rows boolean;
    progress pg_catalog.text;
    -- What a trigger of laser_keep_embedded for these two columns begins with, and the model it names.
    kept_columns pg_catalog.bytea;
    kept_model pg_catalog.text;
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
    IF batch_size OPERATOR(pg_catalog.<) 1 OR batch_size OPERATOR(pg_catalog.>) 100000 THEN
        RAISE EXCEPTION USING errcode = 'invalid_parameter_value',
            message = pg_catalog.format('batch size is %s, must be 1 to 100000', batch_size);
    END IF;
    SELECT c.relkind INTO kind FROM pg_catalog.pg_class c
    WHERE c.oid OPERATOR(pg_catalog.=) tbl::pg_catalog.oid;
    IF kind IS NULL OR NOT kind OPERATOR(pg_catalog.=) ANY ('{r,p}'::pg_catalog."char"[]) THEN
        RAISE EXCEPTION USING errcode = 'wrong_object_type',
            message = pg_catalog.format('"%s" is not a table', tbl),
            hint = 'Name a table or a partitioned table.';
    END IF;
    SELECT a.atttypid INTO text_type FROM pg_catalog.pg_attribute a
    WHERE a.attrelid OPERATOR(pg_catalog.=) tbl::pg_catalog.oid
      AND a.attname OPERATOR(pg_catalog.=) text_column
      AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped;
    IF text_type IS NULL THEN
        RAISE EXCEPTION USING errcode = 'undefined_column',
            message = pg_catalog.format('column "%s" of table "%s" does not exist', text_column, tbl);
    END IF;
    IF (SELECT t.typcategory FROM pg_catalog.pg_type t
        WHERE t.oid OPERATOR(pg_catalog.=) text_type) OPERATOR(pg_catalog.<>) 'S'
    THEN
        RAISE EXCEPTION USING errcode = 'datatype_mismatch',
            message = pg_catalog.format('column "%s" of table "%s" is of type %s, not a text type',
                             text_column, tbl, pg_catalog.format_type(text_type, NULL)),
            hint = 'Name a column of type text, varchar or char.';
    END IF;
    SELECT a.atttypid INTO embedding_type FROM pg_catalog.pg_attribute a
    WHERE a.attrelid OPERATOR(pg_catalog.=) tbl::pg_catalog.oid
      AND a.attname OPERATOR(pg_catalog.=) embedding_column
      AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped;
    IF embedding_type IS NULL THEN
        RAISE EXCEPTION USING errcode = 'undefined_column',
            message = pg_catalog.format('column "%s" of table "%s" does not exist', embedding_column, tbl),
            hint = pg_catalog.format('ALTER TABLE %s ADD COLUMN %I %I.embedding;', tbl, embedding_column, laser);
    END IF;
    -- pgvector's types are those that laser_pgvector has casts to.
    IF NOT embedding_type OPERATOR(pg_catalog.=) ANY (ARRAY[
        pg_catalog.format('%I.embedding', laser)::pg_catalog.regtype,
        pg_catalog.format('%I.halfembedding', laser)::pg_catalog.regtype]::pg_catalog.oid[])
       AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_cast c
        JOIN pg_catalog.pg_depend d ON d.objid OPERATOR(pg_catalog.=) c.casttarget
        JOIN pg_catalog.pg_extension x ON x.oid OPERATOR(pg_catalog.=) d.refobjid
        WHERE c.casttarget OPERATOR(pg_catalog.=) embedding_type
          AND c.castsource OPERATOR(pg_catalog.=) pg_catalog.format('%I.embedding', laser)::pg_catalog.regtype::pg_catalog.oid
          AND c.castcontext OPERATOR(pg_catalog.<>) 'e'
          AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass::pg_catalog.oid
          AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
          AND x.extname OPERATOR(pg_catalog.=) 'vector')
    THEN
        RAISE EXCEPTION USING errcode = 'datatype_mismatch',
            message = pg_catalog.format('column "%s" of table "%s" is of type %s, not embedding or halfembedding',
                             embedding_column, tbl, pg_catalog.format_type(embedding_type, NULL)),
            hint = 'Name a column of type embedding or halfembedding, or with the extension laser_pgvector one of type vector or halfvec.';
    END IF;

    kept_columns := pg_catalog.convert_to(text_column::pg_catalog.text, pg_catalog.getdatabaseencoding())
        OPERATOR(pg_catalog.||) pg_catalog.decode('00', 'hex')
        OPERATOR(pg_catalog.||) pg_catalog.convert_to(embedding_column::pg_catalog.text, pg_catalog.getdatabaseencoding())
        OPERATOR(pg_catalog.||) pg_catalog.decode('00', 'hex');
    SELECT pg_catalog.convert_from(
        pg_catalog.substring(t.tgargs, pg_catalog.length(kept_columns) OPERATOR(pg_catalog.+) 1,
            pg_catalog.length(t.tgargs) OPERATOR(pg_catalog.-) pg_catalog.length(kept_columns) OPERATOR(pg_catalog.-) 1),
        pg_catalog.getdatabaseencoding())
    INTO kept_model FROM pg_catalog.pg_trigger t
    WHERE t.tgrelid OPERATOR(pg_catalog.=) tbl::pg_catalog.oid
      AND t.tgfoid OPERATOR(pg_catalog.=) pg_catalog.format('%I.laser_forget_embedding()', laser)::pg_catalog.regprocedure::pg_catalog.oid
      AND t.tgtype OPERATOR(pg_catalog.=) 19::pg_catalog.int2 AND t.tgnargs OPERATOR(pg_catalog.=) 3
      AND pg_catalog.substring(t.tgargs, 1, pg_catalog.length(kept_columns)) OPERATOR(pg_catalog.=) kept_columns
    ORDER BY t.tgname LIMIT 1;
    IF kept_model IS NOT NULL AND EXISTS (
        SELECT FROM pg_catalog.pg_foreign_server s
        JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid OPERATOR(pg_catalog.=) s.srvfdw
        JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) tbl::pg_catalog.oid
        WHERE s.srvname OPERATOR(pg_catalog.=) pg_catalog.split_part(kept_model, '@', 1)::pg_catalog.name
          -- It may have been renamed.
          AND (w.fdwname OPERATOR(pg_catalog.=) 'laser_model' OR EXISTS (
              SELECT FROM pg_catalog.pg_depend d
              JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
              WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_foreign_data_wrapper'::pg_catalog.regclass::pg_catalog.oid
                AND d.objid OPERATOR(pg_catalog.=) w.oid
                AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
                AND d.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char"
                AND e.extname OPERATOR(pg_catalog.=) 'laser'))
          AND NOT pg_catalog.has_server_privilege(c.relowner, s.oid, 'USAGE'))
    THEN
        -- The model is the table owner's choice: without the privilege, others must not embed with it for the owner.
        RAISE EXCEPTION USING errcode = 'insufficient_privilege',
            message = pg_catalog.format('permission denied for model "%s"', pg_catalog.split_part(kept_model, '@', 1)),
            detail = pg_catalog.format('Column "%s" is kept with this model, for which the owner of table "%s" has no privilege.', embedding_column, tbl);
    END IF;
    EXECUTE pg_catalog.format('SELECT %I.laser_model_label($1)', laser) INTO label
    USING COALESCE(kept_model, ''::pg_catalog.text);
    model := pg_catalog.split_part(label, ' ', 1);
    read_label := pg_catalog.format(
        'SELECT %I.laser_column_label(a.attrelid, a.attnum) FROM pg_catalog.pg_attribute a
         WHERE a.attrelid OPERATOR(pg_catalog.=) $1 AND a.attname OPERATOR(pg_catalog.=) $2', laser);
    IF kind OPERATOR(pg_catalog.=) 'p' THEN
        SELECT pg_catalog.array_agg(p.relid) INTO parts
        FROM pg_catalog.pg_partition_tree(tbl) p
        JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) p.relid::pg_catalog.oid
        WHERE p.isleaf AND c.relkind OPERATOR(pg_catalog.=) 'r';
    ELSE
        parts := ARRAY[tbl];
    END IF;
    SELECT t.tgrelid INTO part FROM pg_catalog.pg_trigger t
    WHERE t.tgrelid OPERATOR(pg_catalog.=) ANY (parts::pg_catalog.oid[])
      AND t.tgfoid OPERATOR(pg_catalog.=) pg_catalog.format('%I.laser_forget_embedding()', laser)::pg_catalog.regprocedure::pg_catalog.oid
      AND t.tgtype OPERATOR(pg_catalog.=) 19::pg_catalog.int2 AND t.tgnargs OPERATOR(pg_catalog.=) 3
      AND pg_catalog.substring(t.tgargs, 1, pg_catalog.length(kept_columns)) OPERATOR(pg_catalog.=) kept_columns
      AND NOT EXISTS (
          SELECT FROM pg_catalog.unnest(ARRAY[kept_model, model]) taken
          WHERE t.tgargs OPERATOR(pg_catalog.=) (kept_columns
              OPERATOR(pg_catalog.||) pg_catalog.convert_to(taken, pg_catalog.getdatabaseencoding())
              OPERATOR(pg_catalog.||) pg_catalog.decode('00', 'hex')))
    ORDER BY t.tgrelid LIMIT 1;
    IF part IS NOT NULL THEN
        RAISE EXCEPTION USING errcode = 'object_not_in_prerequisite_state',
            message = pg_catalog.format('column "%s" of partition "%s" is kept with another model', embedding_column, part),
            hint = pg_catalog.format('Embed partitions one by one, as in CALL laser_embed_table(%L, %L, %L).', part, text_column, embedding_column);
    END IF;
    FOREACH part IN ARRAY pg_catalog.array_prepend(tbl, pg_catalog.array_remove(parts, tbl)) LOOP
        EXECUTE pg_catalog.format('SELECT %I.laser_lock_table($1, false)', laser)
        INTO part_name USING part::pg_catalog.oid;
        is_owner := pg_catalog.pg_has_role((SELECT c.relowner FROM pg_catalog.pg_class c
            WHERE c.oid OPERATOR(pg_catalog.=) part::pg_catalog.oid), 'USAGE');
        EXECUTE read_label INTO known USING part::pg_catalog.oid, embedding_column;
        IF known IS NULL AND is_owner THEN
            -- Labels are set under this lock: of two calls, one finds the other's label. Maintenance of the table takes
            -- it not, so that none waits for this transaction while this one waits for it.
            EXECUTE pg_catalog.format('SELECT %I.laser_lock_table($1, true)', laser)
            INTO part_name USING part::pg_catalog.oid;
            EXECUTE read_label INTO known USING part::pg_catalog.oid, embedding_column;
        END IF;
        IF known OPERATOR(pg_catalog.=) label OR known OPERATOR(pg_catalog.=) model THEN
            CONTINUE;
        END IF;
        IF known IS NOT NULL THEN
            RAISE EXCEPTION USING errcode = 'object_not_in_prerequisite_state',
                message = pg_catalog.format('column "%s" of table "%s" is labelled with a model other than the one %s', embedding_column, part,
                    CASE WHEN kept_model IS NULL THEN 'of this session' ELSE 'it is kept with' END),
                detail = pg_catalog.format('The label of the column says %s, the other model is %s.', known, label),
                hint = pg_catalog.format(CASE WHEN kept_model IS NULL THEN 'SET laser.model = %L.'
                                              ELSE 'Call laser_keep_embedded with model => %L.' END
                                         OPERATOR(pg_catalog.||) ' To embed all of them with the other model, set the column to null and remove its label: SECURITY LABEL FOR laser ON COLUMN %s.%I IS NULL;',
                                         pg_catalog.split_part(known, ' ', 1), part, embedding_column);
        END IF;
        EXECUTE pg_catalog.format('SELECT %I.laser_mark($1)', laser) INTO mark USING part::pg_catalog.oid;
        EXECUTE mark OPERATOR(pg_catalog.||)
            pg_catalog.format('SELECT EXISTS (SELECT FROM %s WHERE %I IS NOT NULL)', part_name, embedding_column)
        INTO has_some;
        hides_rows := pg_catalog.row_security_active(part::pg_catalog.oid);
        IF is_owner AND NOT has_some AND NOT hides_rows THEN
            EXECUTE pg_catalog.format(
                'SELECT %I.laser_label_column(a.attrelid, a.attnum, $3) FROM pg_catalog.pg_attribute a
                 WHERE a.attrelid OPERATOR(pg_catalog.=) $1 AND a.attname OPERATOR(pg_catalog.=) $2', laser)
            USING part::pg_catalog.oid, embedding_column, label;
        ELSE
            RAISE NOTICE USING
                message = CASE WHEN has_some
                    THEN pg_catalog.format('column "%s" of table "%s" already has embeddings, of an unknown model', embedding_column, part)
                    WHEN is_owner
                    THEN pg_catalog.format('column "%s" of table "%s" may have embeddings of an unknown model, in rows that row-level security hides', embedding_column, part)
                    ELSE pg_catalog.format('the model of column "%s" of table "%s" is not recorded: only the owner of the table can label it', embedding_column, part)
                    END,
                hint = pg_catalog.format('If all of them are of model "%s": SECURITY LABEL FOR laser ON COLUMN %s.%I IS %L;', model, part, embedding_column, label);
        END IF;
    END LOOP;
    -- Called by a function, this raises the error at once, and not after the first batch.
    COMMIT;
    SELECT COALESCE(pg_catalog.sum(GREATEST(c.reltuples, 0)), 0)::bigint INTO estimate
    FROM pg_catalog.pg_class c
    WHERE c.oid OPERATOR(pg_catalog.=) ANY (parts::pg_catalog.oid[]);

    FOREACH part IN ARRAY COALESCE(parts, '{}') LOOP
        -- What the server looks at when it has parsed a statement: the types of columns may be others than before.
        EXECUTE pg_catalog.format('SELECT %I.laser_mark($1)', laser) INTO mark USING part::pg_catalog.oid;
        part_stored := 0;
        part_changed := 0;
        shortest := NULL;
        stalled := 0;
        LOOP
            place := '(0,0)';
            pass_stored := 0;
            pass_reset := 0;
            pass_refused := 0;
            pass_missed := 0;
            rows_wanted := batch_size;
            last_block := pg_catalog.pg_relation_size(part)
                          OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::bigint;
            LOOP
                PERFORM pg_catalog.set_config('synchronize_seqscans', 'off', true);
                -- What is not known, as before the first ANALYZE, is not told.
                progress := pg_catalog.concat(total, CASE
                    WHEN estimate OPERATOR(pg_catalog.>=) (total OPERATOR(pg_catalog.+) batch_size)
                    THEN pg_catalog.concat(' of about ', estimate) END, ' rows');
                PERFORM pg_catalog.set_config('application_name', pg_catalog.format(
                    'laser_embed_table %s: %s', part, progress), true);
                IF pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) noticed
                   OPERATOR(pg_catalog.>) interval '2 seconds'
                THEN
                    noticed := pg_catalog.clock_timestamp();
                    RAISE NOTICE '% embedded, % rows/s', progress,
                        pg_catalog.round(total OPERATOR(pg_catalog./)
                            EXTRACT(epoch FROM noticed OPERATOR(pg_catalog.-) started));
                END IF;
                EXECUTE pg_catalog.format('SELECT %I.laser_lock_table($1, false)', laser)
                INTO part_name USING part::pg_catalog.oid;
                EXECUTE read_label INTO known USING part::pg_catalog.oid, embedding_column;
                IF known OPERATOR(pg_catalog.<>) label AND known OPERATOR(pg_catalog.<>) model THEN
                    RAISE EXCEPTION USING errcode = 'object_not_in_prerequisite_state',
                        message = pg_catalog.format('the label of column "%s" of table "%s" was changed to another model while it was embedded', embedding_column, part),
                        detail = pg_catalog.format('Rows that are already committed have embeddings of model %s, the label names %s.', label, known);
                END IF;
                -- Rows come in the order of their places, as the next batch is behind the last place of this one. What else is
                -- planned, in triggers say, has its indexes.
                usual_indexscan := pg_catalog.current_setting('enable_indexscan');
                PERFORM pg_catalog.set_config('enable_indexscan', 'off', true);
                -- Locking the rows keeps their text from changing before the embedding is stored. Texts are read from where
                -- long ones are kept up to 8 MB together, and none that is too long for a model.
                EXECUTE pg_catalog.format(
                    mark OPERATOR(pg_catalog.||) 'SELECT pg_catalog.array_agg(c.ctid) FILTER (WHERE NOT c.is_long), pg_catalog.array_agg(c.body) FILTER (WHERE NOT c.is_long),
                            pg_catalog.max(c.ctid), pg_catalog.count(*) FILTER (WHERE c.is_long), pg_catalog.min(c.ctid) FILTER (WHERE c.is_long)
                     FROM (SELECT b.ctid, b.body, pg_catalog.octet_length(b.body) OPERATOR(pg_catalog.>) 1048576 AS is_long,
                                  pg_catalog.sum(LEAST(pg_catalog.octet_length(b.body), 1048576)) OVER (ROWS UNBOUNDED PRECEDING) AS bytes
                           FROM (SELECT ctid, %1$I::pg_catalog.text AS body FROM ONLY %2$s
                                 WHERE ctid OPERATOR(pg_catalog.>) $1 AND ctid OPERATOR(pg_catalog.<) $2
                                   AND %3$I IS NULL AND %1$I IS NOT NULL
                                 LIMIT $3 FOR NO KEY UPDATE) b) c
                     WHERE c.bytes OPERATOR(pg_catalog.<=) 8388608',
                    text_column, part_name, embedding_column)
                INTO positions, texts, next_place, rows_long, long_place
                USING place, pg_catalog.format('(%s,0)', last_block)::pg_catalog.tid, rows_wanted;
                PERFORM pg_catalog.set_config('enable_indexscan', usual_indexscan, true);
                EXIT WHEN next_place IS NULL;
                next_place := GREATEST(place, next_place);
                IF rows_long OPERATOR(pg_catalog.>) 0 AND pass_refused OPERATOR(pg_catalog.=) 0 THEN
                    refused_place := long_place;
                    refused_message := 'text of more than 1048576 bytes is too long for a model';
                END IF;
                IF positions IS NULL THEN
                    pass_refused := pass_refused OPERATOR(pg_catalog.+) rows_long;
                    place := next_place;
                    COMMIT;
                    CONTINUE;
                END IF;
                rows_read := pg_catalog.cardinality(positions);
                rows_stored := 0;
                rows_reset := 0;
                store_batch := mark OPERATOR(pg_catalog.||) pg_catalog.format(
                    'UPDATE ONLY %1$s AS t SET %2$I = e.value
                     FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest(%3$I.laser_embed($2, $3, ''passage'')),
                                     pg_catalog.unnest($2)) AS e(place, value, body)
                     WHERE t.ctid OPERATOR(pg_catalog.=) e.place AND (t.%2$I IS NULL OR $4)',
                    part_name, embedding_column, laser);
                BEGIN
                    -- What is returned is the row as triggers have left it. Where rules add statements,
                    -- the server cannot return rows.
                    SELECT c.relhasrules INTO has_rules FROM pg_catalog.pg_class c
                    WHERE c.oid OPERATOR(pg_catalog.=) part::pg_catalog.oid;
                    -- For each row, before, on update; on update, neither before it nor instead: src/include/catalog/pg_trigger.h.
                    SELECT COALESCE(pg_catalog.bool_or(t.tgtype OPERATOR(pg_catalog.&) 19::pg_catalog.int2 OPERATOR(pg_catalog.=) 19::pg_catalog.int2
                               AND t.tgfoid OPERATOR(pg_catalog.<>) pg_catalog.format('%I.laser_forget_embedding()', laser)::pg_catalog.regprocedure::pg_catalog.oid), false),
                           COALESCE(pg_catalog.bool_or(t.tgtype OPERATOR(pg_catalog.&) 82::pg_catalog.int2 OPERATOR(pg_catalog.=) 16::pg_catalog.int2), false)
                    INTO has_earlier_triggers, has_later_triggers FROM pg_catalog.pg_trigger t
                    WHERE t.tgrelid OPERATOR(pg_catalog.=) part::pg_catalog.oid
                      AND t.tgenabled OPERATOR(pg_catalog.<>) 'D'
                      -- Those of partitions that their table has are internal up to PostgreSQL 14.
                      AND (NOT t.tgisinternal OR t.tgparentid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid AND t.tgconstrrelid OPERATOR(pg_catalog.=) 0::pg_catalog.oid);
                    stored_positions := NULL;
                    stored_texts := NULL;
                    IF has_rules THEN
                        EXECUTE store_batch USING positions, texts, model, false;
                        GET DIAGNOSTICS rows_stored = ROW_COUNT;
                    ELSE
                        -- A text that a trigger has changed is embedded once more. One that it changes then
                        -- as well, it would change forever.
                        FOR attempt IN 1..2 LOOP
                            positions_read := positions;
                            texts_read := texts;
                            positions := NULL;
                            texts := NULL;
                            rows_lost := CASE WHEN attempt OPERATOR(pg_catalog.=) 1 THEN 0 ELSE pg_catalog.cardinality(positions_read) END;
                            FOR changed_place, changed_text, embedded_text, is_changed, has_embedding IN EXECUTE pg_catalog.concat(
                                store_batch, pg_catalog.format(
                                    ' RETURNING t.ctid, t.%1$I::pg_catalog.text, e.body,
                                      NOT COALESCE(t.%1$I::pg_catalog.text OPERATOR(pg_catalog.=) e.body COLLATE pg_catalog."C", false),
                                      t.%2$I IS NOT NULL', text_column, embedding_column))
                                USING positions_read, texts_read, model, attempt OPERATOR(pg_catalog.>) 1
                            LOOP
                                IF attempt OPERATOR(pg_catalog.>) 1 THEN
                                    rows_lost := rows_lost OPERATOR(pg_catalog.-) 1;
                                ELSIF has_embedding THEN
                                    rows_stored := rows_stored OPERATOR(pg_catalog.+) 1;
                                ELSE
                                    rows_reset := rows_reset OPERATOR(pg_catalog.+) 1;
                                END IF;
                                IF has_embedding AND is_changed THEN
                                    positions := pg_catalog.array_append(positions, changed_place);
                                    texts := pg_catalog.array_append(texts, changed_text);
                                ELSIF has_embedding AND has_later_triggers THEN
                                    stored_positions := pg_catalog.array_append(stored_positions, changed_place);
                                    stored_texts := pg_catalog.array_append(stored_texts, embedded_text);
                                END IF;
                            END LOOP;
                            EXIT WHEN positions IS NULL;
                        END LOOP;
                        -- Those that are changed again, and those that have moved since: a trigger that runs
                        -- after the update has changed something of their rows.
                        part_changed := part_changed OPERATOR(pg_catalog.+) COALESCE(pg_catalog.cardinality(positions), 0)
                                        OPERATOR(pg_catalog.+) rows_lost;
                        IF stored_positions IS NOT NULL THEN
                            -- Those that wait for the commit run now, as they would then.
                            SELECT pg_catalog.string_agg(DISTINCT pg_catalog.format('%I.%I', n.nspname, c.conname), ', ') INTO deferred
                            FROM pg_catalog.pg_trigger t
                            JOIN pg_catalog.pg_constraint c ON c.oid OPERATOR(pg_catalog.=) t.tgconstraint
                            JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.connamespace
                            WHERE t.tgrelid OPERATOR(pg_catalog.=) part::pg_catalog.oid
                              AND t.tgdeferrable AND c.contype OPERATOR(pg_catalog.=) 't'::pg_catalog."char";
                            IF deferred IS NOT NULL THEN
                                EXECUTE pg_catalog.format('SET CONSTRAINTS %s IMMEDIATE', deferred);
                            END IF;
                            EXECUTE mark OPERATOR(pg_catalog.||) pg_catalog.format(
                                'SELECT pg_catalog.count(*) FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) AS e(place, body)
                                 CROSS JOIN LATERAL (SELECT pg_catalog.currtid2($3, e.place) AS place OFFSET 0) l
                                 JOIN ONLY %1$s AS t ON t.ctid OPERATOR(pg_catalog.=) l.place
                                 WHERE t.%3$I IS NOT NULL
                                   AND NOT COALESCE(t.%2$I::pg_catalog.text OPERATOR(pg_catalog.=) e.body COLLATE pg_catalog."C", false)',
                                part_name, text_column, embedding_column)
                            INTO rows_lost USING stored_positions, stored_texts, part_name;
                            part_changed := part_changed OPERATOR(pg_catalog.+) rows_lost;
                        END IF;
                    END IF;
                EXCEPTION WHEN program_limit_exceeded OR character_not_in_repertoire OR untranslatable_character THEN
                    -- A text that is too long, or cannot be read in the encoding of the database. Its row is looked for, and left
                    -- out: it must not keep the others from being embedded.
                    IF rows_read OPERATOR(pg_catalog.>) 1 THEN
                        rows_wanted := rows_read OPERATOR(pg_catalog./) 2;
                    ELSE
                        is_refused := false;
                        BEGIN
                            EXECUTE pg_catalog.format('SELECT %I.laser_embed($1, $2, ''passage'')', laser) USING COALESCE(texts, texts_read), model;
                        EXCEPTION WHEN program_limit_exceeded OR character_not_in_repertoire OR untranslatable_character THEN
                            is_refused := true;
                        END;
                        IF NOT is_refused THEN
                            -- It is not the text that something else does not take.
                            RAISE;
                        END IF;
                        IF pass_refused OPERATOR(pg_catalog.+) rows_long OPERATOR(pg_catalog.=) 0 THEN
                            refused_place := next_place;
                            refused_message := SQLERRM;
                        END IF;
                        pass_refused := pass_refused OPERATOR(pg_catalog.+) rows_long OPERATOR(pg_catalog.+) 1;
                        place := next_place;
                    END IF;
                    rows_read := NULL;
                END;
                IF rows_read IS NULL THEN
                    COMMIT;
                    CONTINUE;
                END IF;
                rows_wanted := LEAST(batch_size, rows_read OPERATOR(pg_catalog.*) 2);
                pass_refused := pass_refused OPERATOR(pg_catalog.+) rows_long;
                EXECUTE pg_catalog.format('SELECT %I.laser_model_label($1)', laser) INTO label_now USING model;
                IF label_now OPERATOR(pg_catalog.<>) label THEN
                    RAISE EXCEPTION USING errcode = 'object_not_in_prerequisite_state',
                        message = pg_catalog.format('model "%s" was replaced while table "%s" was embedded', model, part),
                        detail = 'Rows that are already committed have embeddings of the old model.';
                END IF;
                place := next_place;
                pass_stored := pass_stored OPERATOR(pg_catalog.+) rows_stored;
                pass_reset := pass_reset OPERATOR(pg_catalog.+) rows_reset;
                pass_missed := pass_missed OPERATOR(pg_catalog.+) GREATEST(rows_read OPERATOR(pg_catalog.-) rows_stored OPERATOR(pg_catalog.-) rows_reset, 0);
                total := total OPERATOR(pg_catalog.+) rows_stored;
                COMMIT;
            END LOOP;
            COMMIT;
            part_stored := part_stored OPERATOR(pg_catalog.+) pass_stored;
            -- A pass that stores nothing ends the part: nothing is left, or a trigger keeps it so.
            EXIT WHEN pass_stored OPERATOR(pg_catalog.=) 0;
            IF shortest IS NULL
               OR pass_stored OPERATOR(pg_catalog.*) 2::bigint OPERATOR(pg_catalog.<=) shortest
            THEN
                shortest := pass_stored;
            ELSE
                stalled := stalled OPERATOR(pg_catalog.+) 1;
            END IF;
            IF stalled OPERATOR(pg_catalog.>=) 10 THEN
                IF failure_code IS NOT NULL THEN
                    RAISE WARNING 'embeddings of table "%" are set to null as fast as they are computed', part;
                ELSE
                    failure_code := 'object_not_in_prerequisite_state';
                    failure_message := pg_catalog.format('embeddings of table "%s" are set to null as fast as they are computed', part);
                    failure_detail := pg_catalog.format('%s embeddings were stored, the last %s of them in one pass.', part_stored, pass_stored);
                    failure_hint := pg_catalog.format('Look for a trigger that sets column "%s" back to null. If other sessions keep adding rows without an embedding, call laser_embed_table again later. Rows that were embedded are committed.', embedding_column);
                END IF;
                EXIT;
            END IF;
        END LOOP;
        IF pass_refused OPERATOR(pg_catalog.>) 0 THEN
            RAISE WARNING USING
                message = pg_catalog.format('%s rows of table "%s" stay without an embedding', pass_refused, part),
                detail = pg_catalog.format('The first is at ctid %L: %s.', refused_place, refused_message);
        END IF;
        -- Of what a rule does instead, the server counts updates of whatever it names, and nothing else.
        IF pass_missed OPERATOR(pg_catalog.>) 0 THEN
            RAISE WARNING USING
                message = pg_catalog.format('the update did not reach %s rows of table "%s", which may stay without an embedding', pass_missed, part),
                hint = 'Look for triggers that return NULL, and rules that do something else instead.';
        END IF;
        IF pass_reset OPERATOR(pg_catalog.>) 0 AND part_stored OPERATOR(pg_catalog.=) 0 THEN
            IF failure_code IS NOT NULL THEN
                RAISE WARNING 'a trigger of table "%" sets column "%" back to null', part, embedding_column;
            ELSE
                failure_code := 'triggered_data_change_violation';
                failure_message := pg_catalog.format('a trigger of table "%s" sets column "%s" back to null', part, embedding_column);
                failure_hint := pg_catalog.format('Disable the trigger for the time of the call: ALTER TABLE %s DISABLE TRIGGER ...;', part);
            END IF;
        ELSIF pass_reset OPERATOR(pg_catalog.>) 0 AND stalled OPERATOR(pg_catalog.<) 10 THEN
            RAISE WARNING 'rows of table "%" stay without an embedding: a trigger sets column "%" back to null',
                part, embedding_column;
        END IF;
        IF part_changed OPERATOR(pg_catalog.>) 0 THEN
            RAISE WARNING USING
                message = pg_catalog.format('embeddings of %s rows of table "%s" may not be of the text that is stored: triggers change column "%s" with updates', part_changed, part, text_column),
                hint = pg_catalog.format('Set their embeddings to null and call laser_embed_table again, both with the triggers disabled: ALTER TABLE %s DISABLE TRIGGER ...;', part);
        END IF;
        IF has_rules AND part_stored OPERATOR(pg_catalog.>) 0 AND (has_earlier_triggers OR has_later_triggers) THEN
            RAISE WARNING USING
                message = pg_catalog.format('embeddings of table "%s" may not be of the text that is stored, if a trigger changes column "%s" with updates: where a table has rules, that is not seen', part, text_column),
                hint = pg_catalog.format('If one does, set the embeddings to null and call laser_embed_table again, both with the trigger disabled: ALTER TABLE %s DISABLE TRIGGER ...;', part);
        END IF;
    END LOOP;
    RAISE NOTICE '% rows embedded', total;
    IF failure_detail IS NOT NULL THEN
        RAISE EXCEPTION USING errcode = failure_code, message = failure_message, detail = failure_detail, hint = failure_hint;
    ELSIF failure_code IS NOT NULL THEN
        RAISE EXCEPTION USING errcode = failure_code, message = failure_message, hint = failure_hint;
    END IF;
END
$procedure$;

COMMENT ON PROCEDURE laser_embed_table(regclass, name, name, integer)
IS 'embeds a text column into an embedding column, committing in batches: by the model that laser_keep_embedded was given, or laser.model';

-- Support function 1 of an operator class says what it is for: 16 times the type (0 embedding,
-- 1 halfembedding, 2 text) plus the metric (0 cosine, 1 L2, 2 inner product). In C, since an index is
-- built during a commit as well (ON COMMIT DELETE ROWS), where there is no snapshot to run SQL with.
CREATE OR REPLACE FUNCTION laser_embedding_cosine_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_cosine_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;

CREATE OR REPLACE FUNCTION laser_embedding_l2_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_l2_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;

CREATE OR REPLACE FUNCTION laser_embedding_ip_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_ip_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;

CREATE OR REPLACE FUNCTION laser_halfembedding_cosine_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_cosine_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;

CREATE OR REPLACE FUNCTION laser_halfembedding_l2_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_l2_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;

CREATE OR REPLACE FUNCTION laser_halfembedding_ip_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_ip_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;

CREATE OR REPLACE FUNCTION laser_text_cosine_kind() RETURNS integer
AS 'MODULE_PATHNAME', 'laser_text_cosine_kind'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;

-- A column was added.
DROP FUNCTION laser_index_info(regclass);

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

COMMENT ON FUNCTION laser_index_check(regclass, boolean) IS
    'problems of a laser index, and rows of its table that it lacks; no rows if there are none';
COMMENT ON FUNCTION laser_merge(regclass) IS
    'merges the pending list and the segments of a laser index, as far as maintenance_work_mem allows; returns the number of segments written';
COMMENT ON FUNCTION laser_prewarm(regclass) IS
    'opens the segments of a laser index, creating the files that are missing; returns their size in bytes';

COMMENT ON FUNCTION laser_index_info(regclass) IS
    'segments, live and dead entries in them, pending entries, size and parameters of a laser index';

-- All of these ask for more than EXECUTE: laser_index_info() for SELECT on the table or the role
-- pg_stat_scan_tables, the others for ownership of the index or, from PostgreSQL 17 on, the privilege
-- MAINTAIN on the table. Those that evaluate expressions of the index, as the owner of its table,
-- are for roles that were given EXECUTE besides.
REVOKE EXECUTE ON FUNCTION laser_index_check(regclass, boolean) FROM PUBLIC;

-- An argument was added.
DROP FUNCTION laser_index_recall(regclass, integer, integer);

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

REVOKE EXECUTE ON FUNCTION laser_index_recall(regclass, integer, integer, text) FROM PUBLIC;

CREATE FUNCTION laser_index_estimate(
    rows bigint, dimensions integer, m integer DEFAULT 16, metric text DEFAULT 'cosine',
    OUT quantization text, OUT bytes bigint, OUT mapped_bytes bigint, OUT build_memory bigint,
    OUT segments integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_index_estimate_wrapper'
LANGUAGE c STABLE STRICT PARALLEL SAFE ROWS 5;

COMMENT ON FUNCTION laser_index_estimate(bigint, integer, integer, text) IS
    'size of an index before it is built, for each quantization: bytes of the relation, of the files that searches map, and of maintenance_work_mem for one segment; segments with the present maintenance_work_mem';

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

ALTER TABLE laser_mining_state DROP CONSTRAINT laser_mining_state_side_check;
ALTER TABLE laser_mining_state ADD CONSTRAINT laser_mining_state_side_check
    CHECK (side OPERATOR(pg_catalog.=) ANY ('{s,t}'::pg_catalog."char"[]));

CREATE OR REPLACE VIEW laser_mining_progress AS
SELECT p.pid, p.datid, d.datname, r.rolname AS usename, p.started_at, p.phase, p.source_rows,
       p.target_rows, p.pairs_done, p.pairs_total, p.threads, p.memory_kb
FROM @extschema@.laser_mining_progress() AS p
LEFT JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) p.datid
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) p.usesysid;

-- The statement of laser_hybrid. It is executed under the caller's search path, so that every name in it is
-- qualified; here the path is the server's, so that names which are printed are. No argument is polymorphic: nobody's
-- function of this name can be a better match for what is called with these very types.
CREATE FUNCTION laser_hybrid_statement(
    row_type regtype, text_column name, query text, k integer, config regconfig, embedding_column name,
    words_column name, key_column name, candidates integer, max_distance double precision,
    meaning_weight double precision, words_weight double precision, rank_constant double precision,
    query_embedding real[])
RETURNS text
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED COST 1000
SET search_path = pg_catalog, pg_temp
-- Expressions of indexes are compared as text.
SET quote_all_identifiers = off
SET extra_float_digits = 1
AS $$
DECLARE
    -- Most rows of one term that are ranked; a term of more rows says little about each.
    most constant integer := 1000;
    -- Characters of a word for pg_trgm, whose time grows with their square.
    longest constant integer := 256;
    relation regclass;
    -- With its schema, also where the path here finds it without.
    named text;
    kind "char";
    typed record;
    measure text;
    key_1 text;
    key_2 text;
    joined text;
    body text;
    document text;
    trigrams name;
    terms text[];
    term text;
    backslash constant text := chr(92);
    matches text[] := '{}';
    again text[] := '{}';
    tie text;
    hits text;
    points text;
    number integer;
BEGIN
    SELECT c.oid, c.relkind, format('%I.%I', n.nspname, c.relname) INTO relation, kind, named
    FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE t.oid = row_type AND c.relkind IN ('r', 'p', 'm', 'v', 'f');
    IF relation IS NULL THEN
        RAISE EXCEPTION USING errcode = 'wrong_object_type',
            message = format('%s is not the row type of a table or view', row_type),
            hint = 'Name the table by a null row of it: laser_hybrid(NULL::my_table, ...).';
    END IF;
    IF text_column IS NULL OR query IS NULL THEN
        RAISE EXCEPTION USING errcode = 'null_value_not_allowed', message = 'text_column and query must not be null';
    END IF;
    IF NOT coalesce(k > 0 AND k <= 10000, false) THEN
        RAISE EXCEPTION USING errcode = 'invalid_parameter_value', message = 'k must be from 1 to 10000';
    END IF;
    candidates := coalesce(candidates, greatest(40, 4 * k));
    IF NOT candidates BETWEEN k AND 100000 THEN
        RAISE EXCEPTION USING errcode = 'invalid_parameter_value', message = 'candidates must be from k to 100000';
    END IF;
    IF NOT coalesce(meaning_weight >= 0 AND words_weight >= 0 AND meaning_weight + words_weight < 'Infinity', false) THEN
        RAISE EXCEPTION USING errcode = 'invalid_parameter_value', message = 'weights must not be negative';
    END IF;
    IF NOT coalesce(rank_constant >= 0 AND rank_constant < 'Infinity', false) THEN
        RAISE EXCEPTION USING errcode = 'invalid_parameter_value', message = 'rank_constant must not be negative';
    END IF;
    IF query_embedding IS NOT NULL THEN
        IF embedding_column IS NULL THEN
            RAISE EXCEPTION USING errcode = 'invalid_parameter_value',
                message = 'query_embedding needs embedding_column',
                hint = 'Name the column of the embeddings that it is compared with: embedding_column => ''embedding''.';
        END IF;
        IF array_ndims(query_embedding) IS DISTINCT FROM 1 OR array_position(query_embedding, NULL) IS NOT NULL THEN
            RAISE EXCEPTION USING errcode = 'data_exception',
                message = 'query_embedding must be an array of one dimension, without nulls';
        END IF;
    END IF;
    FOREACH term IN ARRAY ARRAY[text_column, embedding_column, words_column, key_column]::text[] LOOP
        IF term IS NOT NULL AND NOT EXISTS (SELECT FROM pg_attribute a
            WHERE a.attrelid = relation AND a.attname = term AND NOT a.attisdropped)
        THEN
            RAISE EXCEPTION USING errcode = 'undefined_column',
                message = format('column "%s" of "%s" does not exist', term, relation);
        END IF;
    END LOOP;

    -- Operators and casts that belong to a type, or to a domain's schema, are code of whoever made those: none but
    -- the server's and this extension's may run as the caller.
    FOR typed IN
        WITH RECURSIVE based(part, attname, type, length) AS (
            SELECT r.part, r.attname, a.atttypid, a.atttypmod
            FROM (VALUES ('text', text_column), ('embedding', embedding_column), ('words', words_column),
                ('key', key_column)) r(part, attname)
            JOIN pg_attribute a ON a.attrelid = relation AND a.attname = r.attname AND NOT a.attisdropped
            UNION ALL
            SELECT b.part, b.attname, t.typbasetype, t.typtypmod FROM based b JOIN pg_type t ON t.oid = b.type WHERE t.typtype = 'd')
        SELECT b.part, b.attname, b.length, t.oid, t.typname, n.nspname, x.extname,
            EXISTS (SELECT FROM pg_cast c WHERE c.castsource = t.oid AND c.casttarget = 'text'::regtype AND c.castmethod = 'b')
                AS is_text
        FROM based b JOIN pg_type t ON t.oid = b.type JOIN pg_namespace n ON n.oid = t.typnamespace
        LEFT JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
        LEFT JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass AND x.oid = d.refobjid
        WHERE t.typtype <> 'd'
    LOOP
        CASE typed.part
        WHEN 'text' THEN
            term := CASE WHEN NOT (typed.is_text OR typed.oid IN ('text'::regtype, 'bpchar'::regtype, 'name'::regtype)) THEN 'text' END;
        WHEN 'embedding' THEN
            term := CASE WHEN NOT coalesce((typed.extname, typed.typname) IN (('laser', 'embedding'), ('laser', 'halfembedding'),
                ('vector', 'vector'), ('vector', 'halfvec')), false) THEN 'embedding' END;
            IF query_embedding IS NULL THEN
                measure := format('t.%I OPERATOR(%I.<=>) %s.laser_embed(%L::pg_catalog.text, NULL::pg_catalog.text, ''query''::pg_catalog.text)::%I.%I',
                    typed.attname, typed.nspname, '@extschema@', query, typed.nspname, typed.typname);
            ELSIF term IS NULL AND typed.length > 0 AND typed.length <> cardinality(query_embedding) THEN
                RAISE EXCEPTION USING errcode = 'data_exception',
                    message = format('query_embedding has %s dimensions, column "%s" of "%s" has %s',
                        cardinality(query_embedding), typed.attname, relation, typed.length),
                    hint = 'Embed the query with the model that the embeddings of the column are of.';
            ELSE
                measure := format('t.%I OPERATOR(%I.<=>) %L::%I.%I', typed.attname, typed.nspname,
                    '[' || array_to_string(query_embedding, ',') || ']', typed.nspname, typed.typname);
            END IF;
        WHEN 'words' THEN
            term := CASE WHEN typed.oid <> 'tsvector'::regtype THEN 'tsvector' END;
        WHEN 'key' THEN
            term := CASE WHEN typed.nspname <> 'pg_catalog' THEN 'a type of the server' END;
        END CASE;
        IF term IS NOT NULL THEN
            RAISE EXCEPTION USING errcode = 'wrong_object_type',
                message = format('column "%s" of "%s" is of type %s, not %s', typed.attname, relation,
                    format_type(typed.oid, NULL), term);
        END IF;
    END LOOP;

    -- What tells rows apart.
    IF key_column IS NOT NULL THEN
        key_1 := format('t.%I', key_column);
        key_2 := '0';
        joined := format('t.%I OPERATOR(pg_catalog.=) x.key_1', key_column);
    ELSIF kind IN ('r', 'p', 'm') THEN
        key_1 := 't.tableoid';
        key_2 := 't.ctid';
        joined := 't.tableoid OPERATOR(pg_catalog.=) x.key_1 AND t.ctid OPERATOR(pg_catalog.=) x.key_2';
    ELSE
        RAISE EXCEPTION USING errcode = 'invalid_parameter_value',
            message = format('"%s" is not a table, so that a key is needed', relation),
            hint = 'Name a column that no two rows have the same value in: key_column => ''id''.';
    END IF;

    -- What rows say, and what is near by.
    body := format('t.%I::pg_catalog.text', text_column);
    IF embedding_column IS NULL THEN
        measure := format('%s OPERATOR(%s.<=>) %L::pg_catalog.text', body, '@extschema@', query);
    END IF;
    IF words_column IS NOT NULL THEN
        document := format('t.%I', words_column);
    ELSE
        IF config IS NULL THEN
            -- That of the table's index, or of a partition's. Its name is in the expression: of configurations there may be any
            -- number.
            SELECT x.name::regconfig INTO config
            FROM pg_index i
            CROSS JOIN LATERAL pg_get_indexdef(i.indexrelid, 1, false) d(expression)
            CROSS JOIN LATERAL (SELECT replace(substring(d.expression FROM $re$^to_tsvector\('(.*?)'::regconfig, $re$), $q$''$q$, $q$'$q$)) x(name)
            WHERE i.indrelid = relation AND i.indisvalid AND d.expression IN (
                format('to_tsvector(%L::regconfig, %I)', x.name, text_column),
                format('to_tsvector(%L::regconfig, (%I)::text)', x.name, text_column))
            LIMIT 1;
        END IF;
        IF config IS NULL THEN
            SELECT n.nspname INTO trigrams
            FROM pg_index i
            JOIN pg_opclass o ON o.oid = i.indclass[0] AND o.opcname IN ('gin_trgm_ops', 'gist_trgm_ops')
            JOIN pg_namespace n ON n.oid = o.opcnamespace
            WHERE i.indrelid = relation AND i.indisvalid
              AND pg_get_indexdef(i.indexrelid, 1, false) = quote_ident(text_column)
            LIMIT 1;
        END IF;
        document := format('pg_catalog.to_tsvector(%L::pg_catalog.regconfig, %s)',
            coalesce(config, get_current_ts_config())::oid, body);
    END IF;
    IF trigrams IS NULL THEN
        terms := tsvector_to_array(to_tsvector(coalesce(config, get_current_ts_config()), query));
        -- Of a long text the longest words, which are rarer than others.
        terms := ARRAY(SELECT w FROM unnest(terms) w ORDER BY length(w) DESC, w LIMIT 32);
        -- As a query of full-text search has them.
        terms := ARRAY(SELECT '''' || replace(replace(w, backslash, backslash || backslash), '''', '''''') || ''''
            FROM unnest(terms) w);
        FOREACH term IN ARRAY terms LOOP
            matches := matches || format('%s OPERATOR(pg_catalog.@@) %L::pg_catalog.tsquery', document, term);
            again := again || format('d.document OPERATOR(pg_catalog.@@) %L::pg_catalog.tsquery', term);
        END LOOP;
        tie := format('pg_catalog.ts_rank(d.document, %L::pg_catalog.tsquery, 1)', array_to_string(terms, ' | '));
    ELSE
        document := body;
        terms := ARRAY(SELECT w FROM (SELECT DISTINCT lower(w) AS w FROM regexp_split_to_table(query, '[^[:alnum:]]+') w) x
            WHERE length(w) BETWEEN 2 AND longest ORDER BY length(w) DESC, w LIMIT 32);
        FOREACH term IN ARRAY terms LOOP
            matches := matches || format('%L::pg_catalog.text OPERATOR(%I.<%%) %s', term, trigrams, body);
            again := again || format('%L::pg_catalog.text OPERATOR(%I.<%%) d.document', term, trigrams);
        END LOOP;
        tie := format('%I.word_similarity(%L::pg_catalog.text, d.document)', trigrams, left(query, 8 * longest));
    END IF;
    IF cardinality(terms) = 0 THEN
        hits := format('SELECT %s AS key_1, %s AS key_2, 0 AS term FROM %s AS t WHERE false', key_1, key_2, named);
        points := '0';
        tie := '0';
    ELSE
        FOR number IN 1 .. cardinality(terms) LOOP
            hits := concat_ws(E'\n        UNION ALL ', hits, format(
                '(SELECT %s AS key_1, %s AS key_2, %s AS term FROM %s AS t WHERE %s LIMIT %s)',
                key_1, key_2, number, named, matches[number], most));
            points := concat_ws(E'\n            OPERATOR(pg_catalog.+) ', points, format(
                'CASE WHEN %s THEN coalesce((SELECT w.weight FROM weights w WHERE w.term OPERATOR(pg_catalog.=) %s), 0) ELSE 0 END',
                again[number], number));
        END LOOP;
    END IF;

    -- What was checked above may have been replaced by the time that this is parsed, when it is checked again.
    RETURN format($query$%18$s
WITH meaning AS MATERIALIZED (
    SELECT n.key_1, n.key_2, pg_catalog.row_number() OVER (ORDER BY n.distance) AS place
    FROM (SELECT %1$s AS key_1, %2$s AS key_2, %3$s AS distance
          FROM %4$s AS t%5$s
          ORDER BY %3$s LIMIT %6$s) n
    WHERE n.distance OPERATOR(pg_catalog.<) 'NaN'
), hits AS MATERIALIZED (
        %7$s
), weights AS MATERIALIZED (
    -- Inverse document frequency; a word that many rows have decides between equals.
    SELECT h.term, CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.<) %8$s
        THEN pg_catalog.ln(1 OPERATOR(pg_catalog.+) 10.0::pg_catalog.float8 OPERATOR(pg_catalog.*) %8$s OPERATOR(pg_catalog./) pg_catalog.count(*))
        ELSE 1 END AS weight
    FROM hits h GROUP BY h.term
), best AS MATERIALIZED (
    SELECT h.key_1, h.key_2
    FROM hits h JOIN weights w ON w.term OPERATOR(pg_catalog.=) h.term
    GROUP BY h.key_1, h.key_2
    ORDER BY pg_catalog.sum(w.weight) DESC, h.key_1, h.key_2 LIMIT %9$s
), words AS MATERIALIZED (
    -- A row that lacks most of what the best one has would only add noise to the fusion.
    SELECT r.key_1, r.key_2, pg_catalog.row_number() OVER (ORDER BY r.points DESC, r.tie DESC, r.key_1, r.key_2) AS place
    FROM (SELECT p.*, pg_catalog.max(p.points) OVER () AS most
          FROM (SELECT x.key_1, x.key_2, %10$s AS points, %11$s AS tie
                FROM best x JOIN %4$s AS t ON %12$s
                CROSS JOIN LATERAL (SELECT %13$s AS document OFFSET 0) d) p) r
    WHERE r.points OPERATOR(pg_catalog.*) 2 OPERATOR(pg_catalog.>=) r.most
    ORDER BY 3 LIMIT %6$s
), fused AS (
    SELECT s.key_1, s.key_2, pg_catalog.sum(s.part) AS score,
           pg_catalog.max(s.meaning_rank) AS meaning_rank, pg_catalog.max(s.words_rank) AS words_rank
    FROM (SELECT m.key_1, m.key_2, %14$s::pg_catalog.float8 OPERATOR(pg_catalog./) (%16$s::pg_catalog.float8 OPERATOR(pg_catalog.+) m.place) AS part,
                 m.place::pg_catalog.int4 AS meaning_rank, NULL::pg_catalog.int4 AS words_rank FROM meaning m
          UNION ALL
          SELECT w.key_1, w.key_2, %15$s::pg_catalog.float8 OPERATOR(pg_catalog./) (%16$s::pg_catalog.float8 OPERATOR(pg_catalog.+) w.place),
                 NULL, w.place::pg_catalog.int4 FROM words w) s
    GROUP BY s.key_1, s.key_2
    ORDER BY 3 DESC, 4, 5 LIMIT %17$s
)
SELECT (t.*)::%4$s AS hit, x.score, x.meaning_rank, x.words_rank
FROM fused x JOIN %4$s AS t ON %12$s
ORDER BY x.score DESC, x.meaning_rank, x.words_rank$query$,
        key_1, key_2, measure, named,
        CASE WHEN max_distance IS NULL THEN '' ELSE
            format(E'\n          WHERE %s OPERATOR(pg_catalog.<=) %L::pg_catalog.float8', measure, max_distance) END,
        candidates, hits, most, 2 * candidates, points, tie, joined, document,
        quote_literal(meaning_weight), quote_literal(words_weight), quote_literal(rank_constant), k,
        @extschema@.laser_mark(relation::oid));
END
$$;

COMMENT ON FUNCTION laser_hybrid_statement(regtype, name, text, integer, regconfig, name, name, name, integer,
    double precision, double precision, double precision, double precision, real[])
IS 'internal: the statement of laser_hybrid for a table';

CREATE FUNCTION laser_hybrid_query(
    rows_of anyelement, text_column name, query text, k integer DEFAULT 10,
    config regconfig DEFAULT NULL, embedding_column name DEFAULT NULL, words_column name DEFAULT NULL,
    key_column name DEFAULT NULL, candidates integer DEFAULT NULL, max_distance double precision DEFAULT NULL,
    meaning_weight double precision DEFAULT 1, words_weight double precision DEFAULT 1,
    rank_constant double precision DEFAULT 60, query_embedding real[] DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED COST 1000
AS $$
BEGIN
    RETURN @extschema@.laser_hybrid_statement(pg_catalog.pg_typeof(rows_of), text_column, query, k, config,
        embedding_column, words_column, key_column, candidates, max_distance, meaning_weight, words_weight,
        rank_constant, query_embedding);
END
$$;

COMMENT ON FUNCTION laser_hybrid_query(anyelement, name, text, integer, regconfig, name, name, name, integer,
    double precision, double precision, double precision, double precision, real[])
IS 'the statement that laser_hybrid executes, for EXPLAIN and to be changed';

CREATE FUNCTION laser_hybrid(
    rows_of anyelement, text_column name, query text, k integer DEFAULT 10,
    config regconfig DEFAULT NULL, embedding_column name DEFAULT NULL, words_column name DEFAULT NULL,
    key_column name DEFAULT NULL, candidates integer DEFAULT NULL, max_distance double precision DEFAULT NULL,
    meaning_weight double precision DEFAULT 1, words_weight double precision DEFAULT 1,
    rank_constant double precision DEFAULT 60, query_embedding real[] DEFAULT NULL,
    OUT hit anyelement, OUT score double precision, OUT meaning_rank integer, OUT words_rank integer)
RETURNS SETOF record
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED COST 100000 ROWS 10
AS $$
BEGIN
    RETURN QUERY EXECUTE @extschema@.laser_hybrid_statement(pg_catalog.pg_typeof(rows_of), text_column, query, k, config,
        embedding_column, words_column, key_column, candidates, max_distance, meaning_weight, words_weight,
        rank_constant, query_embedding);
END
$$;

COMMENT ON FUNCTION laser_hybrid(anyelement, name, text, integer, regconfig, name, name, name, integer,
    double precision, double precision, double precision, double precision, real[])
IS 'the k rows that a search by meaning and one by words find together, by reciprocal rank fusion';

CREATE FUNCTION laser_forget_embedding() RETURNS trigger
AS 'MODULE_PATHNAME', 'laser_forget_embedding'
LANGUAGE c;

COMMENT ON FUNCTION laser_forget_embedding()
IS 'internal: what the triggers of laser_keep_embedded call; takes away the embedding of a text that changes';

CREATE FUNCTION laser_keep_embedded(
    tbl regclass, text_column name, embedding_column name, model text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    named text;
    kept text;
    trigger_name text := 'zz_laser_keep_' || embedding_column;
    part name;
    found_type oid;
    generated "char";
    is_not_null boolean;
    is_right boolean;
    attribute int2;
    known text;
    forget constant regprocedure := '@extschema@.laser_forget_embedding()';
BEGIN
    IF tbl IS NULL OR text_column IS NULL OR embedding_column IS NULL THEN
        RAISE EXCEPTION USING errcode = 'null_value_not_allowed',
            message = 'table and columns of laser_keep_embedded must not be null';
    END IF;
    -- The last of the triggers before an update, by its name: it sees what others have made of the row.
    IF octet_length(trigger_name) > 63 THEN
        trigger_name := 'zz_laser_keep_' || md5(embedding_column::text);
    END IF;
    IF (SELECT c.relkind IN ('r', 'p') AND pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = tbl) THEN
        -- The table first, then the label, as in laser_embed_table: a trigger wants this lock.
        EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', tbl);
    END IF;
    named := @extschema@.laser_lock_table(tbl, true);
    IF text_column = embedding_column THEN
        RAISE EXCEPTION USING errcode = 'invalid_parameter_value',
            message = format('column "%s" cannot be kept in step with itself', text_column),
            hint = 'Name a column of text, and one for its embeddings.';
    END IF;
    FOREACH part IN ARRAY ARRAY[text_column, embedding_column] LOOP
        SELECT a.atttypid, a.attgenerated, a.attnum, a.attnotnull
        INTO found_type, generated, attribute, is_not_null FROM pg_attribute a
        WHERE a.attrelid = tbl AND a.attname = part AND a.attnum > 0 AND NOT a.attisdropped;
        IF found_type IS NULL THEN
            RAISE EXCEPTION USING errcode = 'undefined_column',
                message = format('column "%s" of table "%s" does not exist', part, tbl);
        END IF;
        IF generated <> '' THEN
            -- They are computed after all triggers before an update.
            RAISE EXCEPTION USING errcode = 'invalid_column_reference',
                message = format('column "%s" of table "%s" is generated, so that no trigger sees it change', part, tbl),
                hint = 'Have a trigger of your own set an ordinary column, or create a laser index on the text, which needs no column of embeddings.';
        END IF;
        IF part = embedding_column AND is_not_null THEN
            RAISE EXCEPTION USING errcode = 'object_not_in_prerequisite_state',
                message = format('column "%s" of table "%s" does not allow null values', part, tbl),
                hint = format('A row waits for its embedding with null. ALTER TABLE %s ALTER COLUMN %I DROP NOT NULL;', named, part);
        END IF;
        IF part = text_column THEN
            is_right := (SELECT t.typcategory = 'S' FROM pg_type t WHERE t.oid = found_type);
        ELSE
            is_right := found_type IN ('@extschema@.embedding'::regtype, '@extschema@.halfembedding'::regtype)
                OR EXISTS (
                    SELECT FROM pg_type t JOIN pg_depend d ON d.objid = t.oid JOIN pg_extension x ON x.oid = d.refobjid
                    WHERE t.oid = found_type AND t.typname IN ('vector', 'halfvec') AND d.classid = 'pg_type'::regclass
                      AND d.refclassid = 'pg_extension'::regclass AND x.extname = 'vector');
        END IF;
        IF NOT is_right THEN
            RAISE EXCEPTION USING errcode = 'datatype_mismatch',
                message = format('column "%s" of table "%s" is of type %s', part, tbl, format_type(found_type, NULL)),
                hint = 'Name a column of text, and one of type embedding or halfembedding, or of pgvector''s vector or halfvec.';
        END IF;
    END LOOP;
    IF model = '' THEN
        RAISE EXCEPTION USING errcode = 'invalid_parameter_value',
            message = 'the name of a model must not be empty',
            hint = 'Leave it out, or give NULL, to have laser_embed_table take the laser.model of its session.';
    ELSIF model IS NOT NULL THEN
        -- An error where there is no such model.
        PERFORM @extschema@.laser_model_label(model);
        -- The loop has ended with the column of embeddings, whose number this is.
        known := split_part(@extschema@.laser_column_label(tbl, attribute), ' ', 1);
        IF known <> model THEN
            RAISE EXCEPTION USING errcode = 'object_not_in_prerequisite_state',
                message = format('column "%s" of table "%s" holds embeddings of model "%s"', embedding_column, tbl, known),
                hint = format('Keep those of another model in another column. To embed this one with another model, set it to null and remove its label: SECURITY LABEL FOR laser ON COLUMN %s.%I IS NULL;', tbl, embedding_column);
        END IF;
    END IF;
    -- One that is there already may keep the embedding of another text.
    SELECT convert_from(substring(t.tgargs, 1, position(decode('00', 'hex') IN t.tgargs) - 1), getdatabaseencoding()) INTO kept
    FROM pg_trigger t
    WHERE t.tgrelid = tbl AND t.tgname = trigger_name AND t.tgfoid = forget
      AND position(convert_to(embedding_column::text, getdatabaseencoding()) || decode('00', 'hex')
                   IN substring(t.tgargs, position(decode('00', 'hex') IN t.tgargs) + 1)) = 1;
    IF kept <> text_column THEN
        RAISE NOTICE 'column "%" of table "%" is no longer kept in step with column "%", but with "%"',
            embedding_column, tbl, kept, text_column;
    END IF;
    EXECUTE format('CREATE %s TRIGGER %I BEFORE UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION %s.laser_forget_embedding(%L, %L%s)',
        CASE WHEN kept IS NOT NULL THEN 'OR REPLACE' ELSE '' END,
        trigger_name, named, '@extschema@', text_column, embedding_column, ', ' || quote_literal(model));
    -- Also for what a subscription applies: its subscriber may have a column of embeddings that the publisher lacks.
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', named, trigger_name);
    -- Schemas are renamed whatever is locked, and the name may have been another table's by then.
    IF NOT EXISTS (SELECT FROM pg_trigger t
                   WHERE t.tgrelid = tbl AND t.tgname = trigger_name AND t.tgfoid = forget AND t.tgenabled = 'A') THEN
        RAISE EXCEPTION USING errcode = 'object_in_use',
            message = format('table "%s" was renamed meanwhile', tbl),
            hint = 'Call laser_keep_embedded again.';
    END IF;
END
$$;

COMMENT ON FUNCTION laser_keep_embedded(regclass, name, name, text)
IS 'sets embeddings to null when their text changes, so that laser_embed_table computes them again: by this model, or by the laser.model of its session';

CREATE VIEW laser_kept_columns AS
SELECT k.relation, k.text_column, k.embedding_column, k.enabled,
       COALESCE(k.model, pg_catalog.split_part(l.label, ' ', 1)) AS model,
       (SELECT CASE WHEN c.reltuples OPERATOR(pg_catalog.>=) 0::pg_catalog.float4 THEN
            pg_catalog.round(s.null_frac::pg_catalog.numeric OPERATOR(pg_catalog.*) c.reltuples::pg_catalog.numeric)::pg_catalog.int8 END
        FROM pg_catalog.pg_stats s
        WHERE s.schemaname OPERATOR(pg_catalog.=) n.nspname AND s.tablename OPERATOR(pg_catalog.=) c.relname
          AND s.attname OPERATOR(pg_catalog.=) k.embedding_column
        ORDER BY s.inherited DESC LIMIT 1) AS waiting
FROM (SELECT t.tgrelid::pg_catalog.regclass AS relation,
             pg_catalog.convert_from(
                 pg_catalog.substring(t.tgargs, 1, b.first OPERATOR(pg_catalog.-) 1),
                 pg_catalog.getdatabaseencoding())::pg_catalog.name AS text_column,
             pg_catalog.convert_from(
                 pg_catalog.substring(r.rest, 1, r.second OPERATOR(pg_catalog.-) 1),
                 pg_catalog.getdatabaseencoding())::pg_catalog.name AS embedding_column,
             CASE WHEN t.tgnargs OPERATOR(pg_catalog.=) 3 THEN pg_catalog.convert_from(
                 pg_catalog.substring(r.rest, r.second OPERATOR(pg_catalog.+) 1,
                     pg_catalog.length(r.rest) OPERATOR(pg_catalog.-) r.second OPERATOR(pg_catalog.-) 1),
                 pg_catalog.getdatabaseencoding()) END AS model,
             t.tgenabled OPERATOR(pg_catalog.<>) 'D' AS enabled
      FROM pg_catalog.pg_trigger t
      CROSS JOIN LATERAL (SELECT pg_catalog.position(t.tgargs, pg_catalog.decode('00', 'hex')) AS first OFFSET 0) b
      CROSS JOIN LATERAL (
          SELECT s.rest, pg_catalog.position(s.rest, pg_catalog.decode('00', 'hex')) AS second
          FROM (SELECT pg_catalog.substring(t.tgargs, b.first OPERATOR(pg_catalog.+) 1) AS rest OFFSET 0) s OFFSET 0) r
      WHERE t.tgfoid OPERATOR(pg_catalog.=) '@extschema@.laser_forget_embedding()'::pg_catalog.regprocedure::pg_catalog.oid
        AND t.tgparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
        AND t.tgnargs OPERATOR(pg_catalog.>=) 2 AND t.tgnargs OPERATOR(pg_catalog.<=) 3
        -- Before an update of each row.
        AND t.tgtype OPERATOR(pg_catalog.=) 19::pg_catalog.int2) k
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) k.relation::pg_catalog.oid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
LEFT JOIN pg_catalog.pg_attribute a
  ON a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attname OPERATOR(pg_catalog.=) k.embedding_column AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_seclabel l
  ON l.objoid OPERATOR(pg_catalog.=) c.oid AND l.objsubid OPERATOR(pg_catalog.=) a.attnum::pg_catalog.int4
 AND l.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
 AND l.provider OPERATOR(pg_catalog.=) 'laser';

GRANT SELECT ON laser_kept_columns TO PUBLIC;

COMMENT ON VIEW laser_kept_columns IS 'columns of embeddings that laser_keep_embedded keeps in step with their text';
COMMENT ON COLUMN laser_kept_columns.enabled IS 'whether the trigger is enabled';
COMMENT ON COLUMN laser_kept_columns.model IS 'model that laser_keep_embedded was given, else the model in the label of the column, see laser_models_used';
COMMENT ON COLUMN laser_kept_columns.waiting IS
    'rows without an embedding as the last ANALYZE has estimated them; null where the role may not read the column or there was no ANALYZE';

-- Distances of an array, whatever its numbers: drivers send lists as arrays. No cast from arrays is implicit, since then what
-- compares or adds two arrays of different types would do it in float32. Each of these functions is inlined, so that an
-- index sees the operator of two embeddings.

CREATE FUNCTION laser_cosine_distance(embedding, double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1 OPERATOR(@extschema@.<=>) $2::@extschema@.embedding';

CREATE OPERATOR <=> (
    LEFTARG = embedding, RIGHTARG = double precision[], FUNCTION = laser_cosine_distance,
    COMMUTATOR = <=>
);

CREATE FUNCTION laser_cosine_distance(double precision[], embedding) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1::@extschema@.embedding OPERATOR(@extschema@.<=>) $2';

CREATE OPERATOR <=> (
    LEFTARG = double precision[], RIGHTARG = embedding, FUNCTION = laser_cosine_distance,
    COMMUTATOR = <=>
);

CREATE FUNCTION laser_l2_distance(embedding, double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1 OPERATOR(@extschema@.<->) $2::@extschema@.embedding';

CREATE OPERATOR <-> (
    LEFTARG = embedding, RIGHTARG = double precision[], FUNCTION = laser_l2_distance,
    COMMUTATOR = <->
);

CREATE FUNCTION laser_l2_distance(double precision[], embedding) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1::@extschema@.embedding OPERATOR(@extschema@.<->) $2';

CREATE OPERATOR <-> (
    LEFTARG = double precision[], RIGHTARG = embedding, FUNCTION = laser_l2_distance,
    COMMUTATOR = <->
);

CREATE FUNCTION laser_negative_inner_product(embedding, double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1 OPERATOR(@extschema@.<#>) $2::@extschema@.embedding';

CREATE OPERATOR <#> (
    LEFTARG = embedding, RIGHTARG = double precision[], FUNCTION = laser_negative_inner_product,
    COMMUTATOR = <#>
);

CREATE FUNCTION laser_negative_inner_product(double precision[], embedding) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1::@extschema@.embedding OPERATOR(@extschema@.<#>) $2';

CREATE OPERATOR <#> (
    LEFTARG = double precision[], RIGHTARG = embedding, FUNCTION = laser_negative_inner_product,
    COMMUTATOR = <#>
);

CREATE FUNCTION laser_l1_distance(embedding, double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1 OPERATOR(@extschema@.<+>) $2::@extschema@.embedding';

CREATE OPERATOR <+> (
    LEFTARG = embedding, RIGHTARG = double precision[], FUNCTION = laser_l1_distance,
    COMMUTATOR = <+>
);

CREATE FUNCTION laser_l1_distance(double precision[], embedding) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1::@extschema@.embedding OPERATOR(@extschema@.<+>) $2';

CREATE OPERATOR <+> (
    LEFTARG = double precision[], RIGHTARG = embedding, FUNCTION = laser_l1_distance,
    COMMUTATOR = <+>
);

CREATE FUNCTION laser_cosine_distance(halfembedding, double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1 OPERATOR(@extschema@.<=>) $2::@extschema@.halfembedding';

CREATE OPERATOR <=> (
    LEFTARG = halfembedding, RIGHTARG = double precision[], FUNCTION = laser_cosine_distance,
    COMMUTATOR = <=>
);

CREATE FUNCTION laser_cosine_distance(double precision[], halfembedding) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1::@extschema@.halfembedding OPERATOR(@extschema@.<=>) $2';

CREATE OPERATOR <=> (
    LEFTARG = double precision[], RIGHTARG = halfembedding, FUNCTION = laser_cosine_distance,
    COMMUTATOR = <=>
);

CREATE FUNCTION laser_l2_distance(halfembedding, double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1 OPERATOR(@extschema@.<->) $2::@extschema@.halfembedding';

CREATE OPERATOR <-> (
    LEFTARG = halfembedding, RIGHTARG = double precision[], FUNCTION = laser_l2_distance,
    COMMUTATOR = <->
);

CREATE FUNCTION laser_l2_distance(double precision[], halfembedding) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1::@extschema@.halfembedding OPERATOR(@extschema@.<->) $2';

CREATE OPERATOR <-> (
    LEFTARG = double precision[], RIGHTARG = halfembedding, FUNCTION = laser_l2_distance,
    COMMUTATOR = <->
);

CREATE FUNCTION laser_negative_inner_product(halfembedding, double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1 OPERATOR(@extschema@.<#>) $2::@extschema@.halfembedding';

CREATE OPERATOR <#> (
    LEFTARG = halfembedding, RIGHTARG = double precision[], FUNCTION = laser_negative_inner_product,
    COMMUTATOR = <#>
);

CREATE FUNCTION laser_negative_inner_product(double precision[], halfembedding) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1::@extschema@.halfembedding OPERATOR(@extschema@.<#>) $2';

CREATE OPERATOR <#> (
    LEFTARG = double precision[], RIGHTARG = halfembedding, FUNCTION = laser_negative_inner_product,
    COMMUTATOR = <#>
);

CREATE FUNCTION laser_l1_distance(halfembedding, double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1 OPERATOR(@extschema@.<+>) $2::@extschema@.halfembedding';

CREATE OPERATOR <+> (
    LEFTARG = halfembedding, RIGHTARG = double precision[], FUNCTION = laser_l1_distance,
    COMMUTATOR = <+>
);

CREATE FUNCTION laser_l1_distance(double precision[], halfembedding) RETURNS double precision
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 50
AS 'SELECT $1::@extschema@.halfembedding OPERATOR(@extschema@.<+>) $2';

CREATE OPERATOR <+> (
    LEFTARG = double precision[], RIGHTARG = halfembedding, FUNCTION = laser_l1_distance,
    COMMUTATOR = <+>
);

ALTER FUNCTION laser_in_transaction_block() PARALLEL RESTRICTED;
