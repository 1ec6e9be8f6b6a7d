-- laser: the types embedding (float32) and halfembedding (float16).
--
-- The layout is that of pgvector's vector and halfvec; pgvector_casts.sql declares the casts where
-- that extension is installed. Costs are in units of cpu_operator_cost (about 10 ns): a distance
-- of 1,024 dimensions takes 0.1 to 0.2 microseconds, and as much again to fetch the value from its
-- TOAST table, which the planner does not count.

-- embedding: input and output

CREATE TYPE embedding;

CREATE FUNCTION embedding_in(cstring, oid, integer) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_in'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 100;

CREATE FUNCTION embedding_out(embedding) RETURNS cstring
AS 'MODULE_PATHNAME', 'laser_embedding_out'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 1000;

CREATE FUNCTION embedding_typmod_in(cstring[]) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_typmod_in'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION embedding_recv(internal, oid, integer) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_recv'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION embedding_send(embedding) RETURNS bytea
AS 'MODULE_PATHNAME', 'laser_embedding_send'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE TYPE embedding (
    INPUT = embedding_in,
    OUTPUT = embedding_out,
    TYPMOD_IN = embedding_typmod_in,
    RECEIVE = embedding_recv,
    SEND = embedding_send,
    ALIGNMENT = int4,
    STORAGE = external,
    -- A literal without a type is an embedding where both would do.
    CATEGORY = 'e',
    PREFERRED = true
);

COMMENT ON TYPE embedding IS 'embedding of up to 16,000 dimensions, float32';

-- halfembedding: input and output

CREATE TYPE halfembedding;

CREATE FUNCTION halfembedding_in(cstring, oid, integer) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_in'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 100;

CREATE FUNCTION halfembedding_out(halfembedding) RETURNS cstring
AS 'MODULE_PATHNAME', 'laser_halfembedding_out'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 1000;

CREATE FUNCTION halfembedding_typmod_in(cstring[]) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_typmod_in'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION halfembedding_recv(internal, oid, integer) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_recv'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION halfembedding_send(halfembedding) RETURNS bytea
AS 'MODULE_PATHNAME', 'laser_halfembedding_send'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE TYPE halfembedding (
    INPUT = halfembedding_in,
    OUTPUT = halfembedding_out,
    TYPMOD_IN = halfembedding_typmod_in,
    RECEIVE = halfembedding_recv,
    SEND = halfembedding_send,
    ALIGNMENT = int4,
    STORAGE = external,
    CATEGORY = 'e'
);

COMMENT ON TYPE halfembedding IS 'embedding of up to 16,000 dimensions, float16';

-- embedding: distances

-- Refuses to plan distances between embeddings of two models, where both are known.
CREATE FUNCTION laser_distance_support(internal) RETURNS internal
AS 'MODULE_PATHNAME', 'laser_distance_support'
LANGUAGE c STRICT;

CREATE FUNCTION cosine_distance(embedding, embedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_embedding_cosine_distance'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20
SUPPORT laser_distance_support;

CREATE FUNCTION l2_distance(embedding, embedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_embedding_l2_distance'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20
SUPPORT laser_distance_support;

CREATE FUNCTION inner_product(embedding, embedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_embedding_inner_product'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20
SUPPORT laser_distance_support;

CREATE FUNCTION negative_inner_product(embedding, embedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_embedding_negative_inner_product'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20
SUPPORT laser_distance_support;

CREATE FUNCTION l1_distance(embedding, embedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_embedding_l1_distance'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20
SUPPORT laser_distance_support;

CREATE OPERATOR <=> (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = cosine_distance,
    COMMUTATOR = <=>
);

CREATE OPERATOR <-> (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = l2_distance,
    COMMUTATOR = <->
);

CREATE OPERATOR <#> (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = negative_inner_product,
    COMMUTATOR = <#>
);

CREATE OPERATOR <+> (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = l1_distance,
    COMMUTATOR = <+>
);

-- embedding: functions and arithmetic

CREATE FUNCTION dimensions(embedding) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_dimensions'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 2;

CREATE FUNCTION norm(embedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_embedding_norm'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

-- The names that pgvector has for these two.
CREATE FUNCTION vector_dims(embedding) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_dimensions'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 2;

CREATE FUNCTION l2_norm(embedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_embedding_norm'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION l2_normalize(embedding) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_l2_normalize'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 50;

CREATE FUNCTION subvector(embedding, start integer, count integer) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_subvector'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 10;

CREATE FUNCTION embedding_add(embedding, embedding) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_add'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION embedding_subtract(embedding, embedding) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_subtract'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION embedding_multiply(embedding, embedding) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_multiply'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION embedding_concat(embedding, embedding) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_concat'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE OPERATOR + (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = embedding_add,
    COMMUTATOR = +
);

CREATE OPERATOR - (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = embedding_subtract
);

CREATE OPERATOR * (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = embedding_multiply,
    COMMUTATOR = *
);

CREATE OPERATOR || (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = embedding_concat
);

COMMENT ON FUNCTION dimensions(embedding) IS 'number of dimensions';
COMMENT ON FUNCTION norm(embedding) IS 'Euclidean norm';
COMMENT ON FUNCTION vector_dims(embedding) IS 'number of dimensions';
COMMENT ON FUNCTION l2_norm(embedding) IS 'Euclidean norm';
COMMENT ON FUNCTION l2_normalize(embedding) IS 'scaled to a Euclidean norm of 1';
COMMENT ON FUNCTION subvector(embedding, integer, integer) IS 'count elements from position start (from 1)';
COMMENT ON FUNCTION cosine_distance(embedding, embedding) IS '1 - cosine similarity';
COMMENT ON OPERATOR <=> (embedding, embedding) IS 'cosine distance';
COMMENT ON OPERATOR <-> (embedding, embedding) IS 'Euclidean distance';
COMMENT ON OPERATOR <#> (embedding, embedding) IS 'negative inner product';
COMMENT ON OPERATOR <+> (embedding, embedding) IS 'taxicab distance';

-- embedding: comparison, by elements and then by dimensions, as arrays compare

CREATE FUNCTION embedding_lt(embedding, embedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_embedding_lt'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION embedding_le(embedding, embedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_embedding_le'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION embedding_eq(embedding, embedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_embedding_eq'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION embedding_ne(embedding, embedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_embedding_ne'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION embedding_ge(embedding, embedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_embedding_ge'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION embedding_gt(embedding, embedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_embedding_gt'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION embedding_cmp(embedding, embedding) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_cmp'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION embedding_hash(embedding) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_embedding_hash'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION embedding_hash_extended(embedding, bigint) RETURNS bigint
AS 'MODULE_PATHNAME', 'laser_embedding_hash_extended'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE OPERATOR < (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = embedding_lt,
    COMMUTATOR = >, NEGATOR = >=,
    RESTRICT = scalarltsel, JOIN = scalarltjoinsel
);

CREATE OPERATOR <= (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = embedding_le,
    COMMUTATOR = >=, NEGATOR = >,
    RESTRICT = scalarlesel, JOIN = scalarlejoinsel
);

CREATE OPERATOR = (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = embedding_eq,
    COMMUTATOR = =, NEGATOR = <>,
    RESTRICT = eqsel, JOIN = eqjoinsel,
    HASHES, MERGES
);

CREATE OPERATOR <> (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = embedding_ne,
    COMMUTATOR = <>, NEGATOR = =,
    RESTRICT = neqsel, JOIN = neqjoinsel
);

CREATE OPERATOR >= (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = embedding_ge,
    COMMUTATOR = <=, NEGATOR = <,
    RESTRICT = scalargesel, JOIN = scalargejoinsel
);

CREATE OPERATOR > (
    LEFTARG = embedding, RIGHTARG = embedding, FUNCTION = embedding_gt,
    COMMUTATOR = <, NEGATOR = <=,
    RESTRICT = scalargtsel, JOIN = scalargtjoinsel
);

CREATE OPERATOR CLASS embedding_ops DEFAULT FOR TYPE embedding USING btree AS
    OPERATOR 1 <,
    OPERATOR 2 <=,
    OPERATOR 3 =,
    OPERATOR 4 >=,
    OPERATOR 5 >,
    FUNCTION 1 embedding_cmp(embedding, embedding);

CREATE OPERATOR CLASS embedding_ops DEFAULT FOR TYPE embedding USING hash AS
    OPERATOR 1 =,
    FUNCTION 1 embedding_hash(embedding),
    FUNCTION 2 embedding_hash_extended(embedding, bigint);

-- halfembedding: distances

CREATE FUNCTION cosine_distance(halfembedding, halfembedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_halfembedding_cosine_distance'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20
SUPPORT laser_distance_support;

CREATE FUNCTION l2_distance(halfembedding, halfembedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_halfembedding_l2_distance'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20
SUPPORT laser_distance_support;

CREATE FUNCTION inner_product(halfembedding, halfembedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_halfembedding_inner_product'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20
SUPPORT laser_distance_support;

CREATE FUNCTION negative_inner_product(halfembedding, halfembedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_halfembedding_negative_inner_product'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20
SUPPORT laser_distance_support;

CREATE FUNCTION l1_distance(halfembedding, halfembedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_halfembedding_l1_distance'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20
SUPPORT laser_distance_support;

CREATE OPERATOR <=> (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = cosine_distance,
    COMMUTATOR = <=>
);

CREATE OPERATOR <-> (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = l2_distance,
    COMMUTATOR = <->
);

CREATE OPERATOR <#> (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = negative_inner_product,
    COMMUTATOR = <#>
);

CREATE OPERATOR <+> (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = l1_distance,
    COMMUTATOR = <+>
);

-- halfembedding: functions and arithmetic

CREATE FUNCTION dimensions(halfembedding) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_dimensions'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 2;

CREATE FUNCTION norm(halfembedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_halfembedding_norm'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

-- The names that pgvector has for these two.
CREATE FUNCTION vector_dims(halfembedding) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_dimensions'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 2;

CREATE FUNCTION l2_norm(halfembedding) RETURNS double precision
AS 'MODULE_PATHNAME', 'laser_halfembedding_norm'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION l2_normalize(halfembedding) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_l2_normalize'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 50;

CREATE FUNCTION subvector(halfembedding, start integer, count integer) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_subvector'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 10;

CREATE FUNCTION halfembedding_add(halfembedding, halfembedding) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_add'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION halfembedding_subtract(halfembedding, halfembedding) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_subtract'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION halfembedding_multiply(halfembedding, halfembedding) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_multiply'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION halfembedding_concat(halfembedding, halfembedding) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_concat'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE OPERATOR + (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = halfembedding_add,
    COMMUTATOR = +
);

CREATE OPERATOR - (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = halfembedding_subtract
);

CREATE OPERATOR * (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = halfembedding_multiply,
    COMMUTATOR = *
);

CREATE OPERATOR || (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = halfembedding_concat
);

COMMENT ON FUNCTION dimensions(halfembedding) IS 'number of dimensions';
COMMENT ON FUNCTION norm(halfembedding) IS 'Euclidean norm';
COMMENT ON FUNCTION vector_dims(halfembedding) IS 'number of dimensions';
COMMENT ON FUNCTION l2_norm(halfembedding) IS 'Euclidean norm';
COMMENT ON FUNCTION l2_normalize(halfembedding) IS 'scaled to a Euclidean norm of 1';
COMMENT ON FUNCTION subvector(halfembedding, integer, integer) IS 'count elements from position start (from 1)';
COMMENT ON FUNCTION cosine_distance(halfembedding, halfembedding) IS '1 - cosine similarity';
COMMENT ON OPERATOR <=> (halfembedding, halfembedding) IS 'cosine distance';
COMMENT ON OPERATOR <-> (halfembedding, halfembedding) IS 'Euclidean distance';
COMMENT ON OPERATOR <#> (halfembedding, halfembedding) IS 'negative inner product';
COMMENT ON OPERATOR <+> (halfembedding, halfembedding) IS 'taxicab distance';

-- halfembedding: comparison, by elements and then by dimensions, as arrays compare

CREATE FUNCTION halfembedding_lt(halfembedding, halfembedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_halfembedding_lt'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION halfembedding_le(halfembedding, halfembedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_halfembedding_le'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION halfembedding_eq(halfembedding, halfembedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_halfembedding_eq'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION halfembedding_ne(halfembedding, halfembedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_halfembedding_ne'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION halfembedding_ge(halfembedding, halfembedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_halfembedding_ge'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION halfembedding_gt(halfembedding, halfembedding) RETURNS boolean
AS 'MODULE_PATHNAME', 'laser_halfembedding_gt'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION halfembedding_cmp(halfembedding, halfembedding) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_cmp'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 5;

CREATE FUNCTION halfembedding_hash(halfembedding) RETURNS integer
AS 'MODULE_PATHNAME', 'laser_halfembedding_hash'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION halfembedding_hash_extended(halfembedding, bigint) RETURNS bigint
AS 'MODULE_PATHNAME', 'laser_halfembedding_hash_extended'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE OPERATOR < (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = halfembedding_lt,
    COMMUTATOR = >, NEGATOR = >=,
    RESTRICT = scalarltsel, JOIN = scalarltjoinsel
);

CREATE OPERATOR <= (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = halfembedding_le,
    COMMUTATOR = >=, NEGATOR = >,
    RESTRICT = scalarlesel, JOIN = scalarlejoinsel
);

CREATE OPERATOR = (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = halfembedding_eq,
    COMMUTATOR = =, NEGATOR = <>,
    RESTRICT = eqsel, JOIN = eqjoinsel,
    HASHES, MERGES
);

CREATE OPERATOR <> (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = halfembedding_ne,
    COMMUTATOR = <>, NEGATOR = =,
    RESTRICT = neqsel, JOIN = neqjoinsel
);

CREATE OPERATOR >= (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = halfembedding_ge,
    COMMUTATOR = <=, NEGATOR = <,
    RESTRICT = scalargesel, JOIN = scalargejoinsel
);

CREATE OPERATOR > (
    LEFTARG = halfembedding, RIGHTARG = halfembedding, FUNCTION = halfembedding_gt,
    COMMUTATOR = <, NEGATOR = <=,
    RESTRICT = scalargtsel, JOIN = scalargtjoinsel
);

CREATE OPERATOR CLASS halfembedding_ops DEFAULT FOR TYPE halfembedding USING btree AS
    OPERATOR 1 <,
    OPERATOR 2 <=,
    OPERATOR 3 =,
    OPERATOR 4 >=,
    OPERATOR 5 >,
    FUNCTION 1 halfembedding_cmp(halfembedding, halfembedding);

CREATE OPERATOR CLASS halfembedding_ops DEFAULT FOR TYPE halfembedding USING hash AS
    OPERATOR 1 =,
    FUNCTION 1 halfembedding_hash(halfembedding),
    FUNCTION 2 halfembedding_hash_extended(halfembedding, bigint);

-- aggregates; the state is the number of rows followed by the sums

CREATE FUNCTION embedding_combine(double precision[], double precision[]) RETURNS double precision[]
AS 'MODULE_PATHNAME', 'laser_embedding_combine'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION embedding_accumulate(double precision[], embedding) RETURNS double precision[]
AS 'MODULE_PATHNAME', 'laser_embedding_accumulate'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION embedding_avg(double precision[]) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_avg'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 50;

CREATE FUNCTION embedding_sum(double precision[]) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_sum'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 50;

CREATE AGGREGATE avg(embedding) (
    SFUNC = embedding_accumulate,
    STYPE = double precision[],
    FINALFUNC = embedding_avg,
    COMBINEFUNC = embedding_combine,
    INITCOND = '{0}',
    PARALLEL = SAFE
);

CREATE AGGREGATE sum(embedding) (
    SFUNC = embedding_accumulate,
    STYPE = double precision[],
    FINALFUNC = embedding_sum,
    COMBINEFUNC = embedding_combine,
    INITCOND = '{0}',
    PARALLEL = SAFE
);

CREATE FUNCTION halfembedding_accumulate(double precision[], halfembedding) RETURNS double precision[]
AS 'MODULE_PATHNAME', 'laser_halfembedding_accumulate'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION halfembedding_avg(double precision[]) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_avg'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 50;

CREATE FUNCTION halfembedding_sum(double precision[]) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_sum'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 50;

CREATE AGGREGATE avg(halfembedding) (
    SFUNC = halfembedding_accumulate,
    STYPE = double precision[],
    FINALFUNC = halfembedding_avg,
    COMBINEFUNC = embedding_combine,
    INITCOND = '{0}',
    PARALLEL = SAFE
);

CREATE AGGREGATE sum(halfembedding) (
    SFUNC = halfembedding_accumulate,
    STYPE = double precision[],
    FINALFUNC = halfembedding_sum,
    COMBINEFUNC = embedding_combine,
    INITCOND = '{0}',
    PARALLEL = SAFE
);

-- casts: contexts as pgvector's

CREATE FUNCTION embedding(embedding, integer, boolean) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_typmod_cast'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 2;

CREATE FUNCTION array_to_embedding(integer[], integer, boolean) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_from_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION array_to_embedding(real[], integer, boolean) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_from_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION array_to_embedding(double precision[], integer, boolean) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_from_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION array_to_embedding(numeric[], integer, boolean) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embedding_from_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION embedding_to_float4(embedding, integer, boolean) RETURNS real[]
AS 'MODULE_PATHNAME', 'laser_embedding_to_float4'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION embedding_to_float8(embedding, integer, boolean) RETURNS double precision[]
AS 'MODULE_PATHNAME', 'laser_embedding_to_float8'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION halfembedding(halfembedding, integer, boolean) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_typmod_cast'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 2;

CREATE FUNCTION array_to_halfembedding(integer[], integer, boolean) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_from_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION array_to_halfembedding(real[], integer, boolean) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_from_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION array_to_halfembedding(double precision[], integer, boolean) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_from_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION array_to_halfembedding(numeric[], integer, boolean) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_from_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION halfembedding_to_float4(halfembedding, integer, boolean) RETURNS real[]
AS 'MODULE_PATHNAME', 'laser_halfembedding_to_float4'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION halfembedding_to_float8(halfembedding, integer, boolean) RETURNS double precision[]
AS 'MODULE_PATHNAME', 'laser_halfembedding_to_float8'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION embedding_to_halfembedding(embedding, integer, boolean) RETURNS halfembedding
AS 'MODULE_PATHNAME', 'laser_embedding_to_halfembedding'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE FUNCTION halfembedding_to_embedding(halfembedding, integer, boolean) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_halfembedding_to_embedding'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 20;

CREATE CAST (embedding AS embedding)
    WITH FUNCTION embedding(embedding, integer, boolean) AS IMPLICIT;

CREATE CAST (integer[] AS embedding)
    WITH FUNCTION array_to_embedding(integer[], integer, boolean) AS ASSIGNMENT;

CREATE CAST (real[] AS embedding)
    WITH FUNCTION array_to_embedding(real[], integer, boolean) AS ASSIGNMENT;

CREATE CAST (double precision[] AS embedding)
    WITH FUNCTION array_to_embedding(double precision[], integer, boolean) AS ASSIGNMENT;

CREATE CAST (numeric[] AS embedding)
    WITH FUNCTION array_to_embedding(numeric[], integer, boolean) AS ASSIGNMENT;

CREATE CAST (embedding AS real[])
    WITH FUNCTION embedding_to_float4(embedding, integer, boolean) AS IMPLICIT;

CREATE CAST (embedding AS double precision[])
    WITH FUNCTION embedding_to_float8(embedding, integer, boolean) AS ASSIGNMENT;

CREATE CAST (halfembedding AS halfembedding)
    WITH FUNCTION halfembedding(halfembedding, integer, boolean) AS IMPLICIT;

CREATE CAST (integer[] AS halfembedding)
    WITH FUNCTION array_to_halfembedding(integer[], integer, boolean) AS ASSIGNMENT;

CREATE CAST (real[] AS halfembedding)
    WITH FUNCTION array_to_halfembedding(real[], integer, boolean) AS ASSIGNMENT;

CREATE CAST (double precision[] AS halfembedding)
    WITH FUNCTION array_to_halfembedding(double precision[], integer, boolean) AS ASSIGNMENT;

CREATE CAST (numeric[] AS halfembedding)
    WITH FUNCTION array_to_halfembedding(numeric[], integer, boolean) AS ASSIGNMENT;

CREATE CAST (halfembedding AS real[])
    WITH FUNCTION halfembedding_to_float4(halfembedding, integer, boolean) AS ASSIGNMENT;

CREATE CAST (halfembedding AS double precision[])
    WITH FUNCTION halfembedding_to_float8(halfembedding, integer, boolean) AS ASSIGNMENT;

CREATE CAST (embedding AS halfembedding)
    WITH FUNCTION embedding_to_halfembedding(embedding, integer, boolean) AS IMPLICIT;

CREATE CAST (halfembedding AS embedding)
    WITH FUNCTION halfembedding_to_embedding(halfembedding, integer, boolean) AS ASSIGNMENT;

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
