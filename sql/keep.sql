-- laser: columns of embeddings that stay in step with their text

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
