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
-- 1 halfembedding, 2 text) plus the metric (0 cosine, 1 L2, 2 inner product).
CREATE FUNCTION laser_embedding_cosine_kind() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 0;
CREATE FUNCTION laser_embedding_l2_kind() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1;
CREATE FUNCTION laser_embedding_ip_kind() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 2;
CREATE FUNCTION laser_halfembedding_cosine_kind() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 16;
CREATE FUNCTION laser_halfembedding_l2_kind() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 17;
CREATE FUNCTION laser_halfembedding_ip_kind() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 18;
CREATE FUNCTION laser_text_cosine_kind() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 32;

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
