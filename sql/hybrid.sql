-- laser: hybrid search

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
