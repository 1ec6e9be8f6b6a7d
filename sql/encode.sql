-- laser: texts to embeddings.

-- A text costs the encoder some 100 microseconds to some milliseconds, which is 10,000 times and
-- more what the planner reckons for an operator. The functions are immutable in the sense that the
-- same text and model give the same embedding: a constant query text is embedded once per plan.
CREATE FUNCTION laser_embed(text) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embed'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 10000;

CREATE FUNCTION laser_embed(text, model text) RETURNS embedding
AS 'MODULE_PATHNAME', 'laser_embed'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 10000;

CREATE FUNCTION laser_embed(text[]) RETURNS embedding[]
AS 'MODULE_PATHNAME', 'laser_embed_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 100000;

CREATE FUNCTION laser_embed(text[], model text) RETURNS embedding[]
AS 'MODULE_PATHNAME', 'laser_embed_array'
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE COST 100000;

COMMENT ON FUNCTION laser_embed(text) IS 'embedding of a text by the model in laser.model';
COMMENT ON FUNCTION laser_embed(text, text) IS 'embedding of a text by a model';
COMMENT ON FUNCTION laser_embed(text[]) IS 'embeddings of texts by the model in laser.model';
COMMENT ON FUNCTION laser_embed(text[], text) IS 'embeddings of texts by a model';

CREATE FUNCTION laser_models(
    OUT name text, OUT dimensions integer, OUT architecture text, OUT max_tokens integer,
    OUT fingerprint text, OUT loaded boolean, OUT is_default boolean, OUT error text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_models_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL SAFE COST 100000 ROWS 10;

CREATE VIEW laser_models AS
SELECT name, dimensions, architecture, max_tokens, fingerprint, loaded, is_default, error
FROM laser_models();

COMMENT ON VIEW laser_models IS 'models that are installed';
COMMENT ON COLUMN laser_models.fingerprint IS 'hash of the model''s files';
COMMENT ON COLUMN laser_models.loaded IS 'whether the encoder holds it in memory';
COMMENT ON COLUMN laser_models.is_default IS 'whether it is used where laser.model is empty';
COMMENT ON COLUMN laser_models.error IS 'why it cannot be used';

CREATE FUNCTION laser_encoder_status(
    OUT state text, OUT pid integer, OUT worker_pid integer, OUT device text,
    OUT default_model text, OUT loaded_models text[], OUT memory_bytes bigint,
    OUT sessions integer, OUT queue_length bigint, OUT queue_limit bigint, OUT batches bigint,
    OUT sentences bigint, OUT tokens bigint, OUT sentences_per_second double precision,
    OUT restarts bigint, OUT uptime_ms bigint, OUT last_error text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'laser_encoder_status_wrapper'
LANGUAGE c VOLATILE STRICT PARALLEL SAFE COST 100000 ROWS 1;

CREATE VIEW laser_encoder_status AS
SELECT state, pid, worker_pid, device, default_model, loaded_models, memory_bytes, sessions,
       queue_length, queue_limit, batches, sentences, tokens,
       round(sentences_per_second::numeric, 1) AS sentences_per_second, restarts,
       uptime_ms * interval '1 millisecond' AS uptime, last_error
FROM laser_encoder_status();

COMMENT ON VIEW laser_encoder_status IS 'state of the encoder process; answers when it is down as well';

GRANT SELECT ON laser_models, laser_encoder_status TO PUBLIC;
