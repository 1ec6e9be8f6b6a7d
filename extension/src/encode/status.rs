//! The functions behind the views `laser_models` and `laser_encoder_status`. The declarations are
//! in `sql/encode.sql`.

use pgrx::prelude::*;

use super::files::State;
use super::guc::{self, InBackend};
use super::labels::hex;
use super::{client, own, session};
use crate::pg::encoding::to_server;

/// All installed models; starts the encoder where needed.
#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_models() -> TableIterator<
    'static,
    (
        name!(name, String),
        name!(dimensions, Option<i32>),
        name!(architecture, Option<String>),
        name!(max_tokens, Option<i32>),
        name!(fingerprint, Option<String>),
        name!(loaded, bool),
        name!(is_default, bool),
        name!(in_backend, bool),
        name!(error, Option<String>),
        name!(precision, Option<String>),
        name!(reranker, bool),
        name!(query_prefix, Option<String>),
        name!(passage_prefix, Option<String>),
    ),
> {
    let models = match guc::in_backend() {
        InBackend::Always => own::list_models(),
        _ => client::list_models(),
    };
    let rows: Vec<_> = models
        .into_iter()
        .map(|m| {
            let known = m.dimensions > 0;
            let in_backend = m.error.is_empty() && session::serves(&m.name);
            (
                m.name,
                known.then_some(m.dimensions as i32),
                known.then_some(m.architecture),
                known.then_some(m.max_tokens as i32),
                m.fingerprint.map(|fingerprint| hex(&fingerprint)),
                m.loaded,
                m.default,
                in_backend,
                some(&m.error),
                some(&m.precision),
                m.reranker,
                some(&m.query_prefix),
                some(&m.passage_prefix),
            )
        })
        .collect();
    TableIterator::new(rows)
}

/// One row about the encoder process; starts nothing.
#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_encoder_status() -> TableIterator<
    'static,
    (
        name!(state, String),
        name!(pid, Option<i32>),
        name!(worker_pid, Option<i32>),
        name!(device, Option<String>),
        name!(default_model, Option<String>),
        name!(loaded_models, Option<Vec<String>>),
        name!(memory_bytes, Option<i64>),
        name!(sessions, Option<i32>),
        name!(queue_length, Option<i64>),
        name!(queue_limit, Option<i64>),
        name!(batches, Option<i64>),
        name!(sentences, Option<i64>),
        name!(tokens, Option<i64>),
        name!(sentences_per_second, Option<f64>),
        name!(restarts, i64),
        name!(uptime_ms, Option<i64>),
        name!(last_error, Option<String>),
        name!(backend_model, Option<String>),
        name!(backend_sentences, Option<i64>),
    ),
> {
    let (backend_model, backend_sentences) = session::statistics().unzip();
    let backend_model = backend_model.as_deref().map(to_server);
    let backend_sentences = backend_sentences.map(|n| n as i64);
    let state = State::read();
    let worker = (state.worker > 0).then_some(state.worker as i32);
    let row = match client::status() {
        Some(s) => (
            "running".to_owned(),
            Some(s.pid as i32),
            worker,
            some(&s.device),
            some(&s.default_model),
            Some(s.loaded),
            Some(s.memory as i64),
            Some(s.sessions as i32),
            Some(s.queued as i64),
            Some(s.queue_limit as i64),
            Some(s.batches as i64),
            Some(s.sentences as i64),
            Some(s.tokens as i64),
            Some(s.sentences_per_second),
            s.restarts as i64,
            Some(s.uptime_ms as i64),
            some(&s.last_error).or_else(|| some(&state.last_error)),
            backend_model,
            backend_sentences,
        ),
        None => (
            // The worker knows nothing against it: it will answer after its batch.
            if state.state == "running" {
                "busy".to_owned()
            } else {
                state.state
            },
            (state.encoder > 0).then_some(state.encoder as i32),
            worker,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            state.restarts as i64,
            None,
            some(&state.last_error),
            backend_model,
            backend_sentences,
        ),
    };
    TableIterator::once(row)
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| to_server(text))
}
