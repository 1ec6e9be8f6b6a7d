-- laser: texts to embeddings.

-- A text costs from some microseconds (a cheap model in the session) to some milliseconds, an
-- operator some ten nanoseconds. The cost suits the cheap ones: it is enough for other conditions to
-- come first, and more would have the planner plan a prepared statement again for each execution,
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

CREATE FUNCTION laser_models(
    OUT name text, OUT dimensions integer, OUT architecture text, OUT max_tokens integer,
    OUT fingerprint text, OUT loaded boolean, OUT is_default boolean, OUT in_backend boolean,
    OUT error text, OUT "precision" text, OUT reranker boolean, OUT query_prefix text, OUT passage_prefix text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_models_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL SAFE COST 100000 ROWS 10;

CREATE VIEW laser_models AS
SELECT name, dimensions, architecture, max_tokens, fingerprint, loaded, is_default, in_backend,
       error, "precision", reranker, query_prefix, passage_prefix
FROM @extschema@.laser_models();

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
       pg_catalog.round(sentences_per_second::numeric, 1) AS sentences_per_second, restarts,
       uptime_ms OPERATOR(pg_catalog.*) interval '1 millisecond' AS uptime, last_error, backend_model,
       backend_sentences
FROM @extschema@.laser_encoder_status();

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
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION laser_in_transaction_block()
IS 'whether a procedure called now could not commit: BEGIN was sent, or several statements at once';

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
CREATE PROCEDURE laser_embed_table(
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
