//! Texts to embeddings for the rest of the extension: in the session itself where the resident
//! model serves, else by the encoder process.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::sync::Mutex;

use laser_model::config::Task;
use laser_model::{catalog, folder, installed};
use laser_protocol::{MAX_TEXT_BYTES, Role, valid_model_name};
use laser_vector::MAX_DIMENSIONS;
use pgrx::{PgSqlErrorCode, pg_sys};

use super::embedded::{Cut, Embedded, Model};
use super::error::CallError;
use super::privileges::check_model;
use super::{client, guc, installation, session};
use crate::pg::encoding::{to_server, to_utf8};
use crate::pg::errors::{raise_detail, raise_hint};
use crate::pg::memory::or_raise;

/// Embeds texts in the encoding of the database, which are what `role` says, with a model (`None`:
/// `laser.model`).
///
/// Texts beyond the model's limit are cut with a warning, once a statement, or refused under
/// `laser.long_text = 'error'`. A cancel works at any time. Raises a SQL error if the role may not use the model, there is no such
/// model, the encoder cannot be started, the queue stays full, or a text cannot be converted to
/// UTF-8.
pub fn embed_texts(model: Option<&str>, role: Role, texts: &[&[u8]]) -> Embedded {
    let name = model_name(model);
    check_privilege(&name);
    embed_by(&name, role, texts, TruncationReport::Count).0
}

/// Raises a SQL error unless the role that the session runs as may embed with a model, by its name as [`model_name`] gives it.
pub fn check_privilege(name: &str) {
    match name {
        // The default of the encoder process, where the session knows of none.
        "" => check_model(&describe_any(None).name),
        name => check_model(name),
    }
}

/// As [`embed_texts`] for rows of an index on text, which was given its model by those who may use it ([`super::check_parameter`]).
pub fn embed_rows(model: &str, texts: &[&[u8]]) -> Embedded {
    let name = model_name(Some(model));
    embed_by(&name, Role::Passage, texts, TruncationReport::Count).0
}

/// What is reported of texts that are longer than the model reads: never the texts or their lengths, since the server
/// may embed values of rows before policies hide them, and for roles that may not read the column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TruncationReport {
    /// Nothing: they are truncated, whatever `laser.long_text` is.
    Silent,
    /// How many there are, as a warning or an error, by `laser.long_text`.
    Count,
}

/// As [`embed_texts`], by a model's name as [`model_name`] gives it, which the caller has checked that the role may use; returns as well how many texts were
/// truncated, and reports it as `report` allows.
pub fn embed_by(
    name: &str,
    role: Role,
    texts: &[&[u8]],
    report: TruncationReport,
) -> (Embedded, Cut) {
    let converted = convert(texts);
    let result = session::serving(name).and_then(|resident| match resident {
        Some(resident) => resident.embed(role, &converted),
        None => client::embed(name, role, &converted),
    });
    let (embedded, cut) = result.unwrap_or_else(|error| error.raise());
    if cut > 0 && report != TruncationReport::Silent {
        report_cut(name, false, cut, converted.len());
    }
    (embedded, cut)
}

/// The scores by which texts answer a query, by a reranker: one dimension each. Pairs beyond the model's limit are
/// cut with a warning, or refused, as [`embed_texts`] does, and with its errors.
pub fn score_texts(model: &str, query: &[u8], texts: &[&[u8]]) -> Embedded {
    let name = model_name(Some(model));
    check_privilege(&name);
    let query = convert_one(query);
    let converted = convert(texts);
    let result = session::serving(&name).and_then(|resident| match resident {
        Some(resident) => Err(installed::wrong_task(resident.name(), Task::Embed).into()),
        None => client::rerank(&name, &query, &converted),
    });
    let (scores, cut) = result.unwrap_or_else(|error| error.raise());
    if cut > 0 {
        report_cut(&name, true, cut, converted.len());
    }
    scores
}

/// Texts in UTF-8, if they are not too long.
fn convert<'t>(texts: &[&'t [u8]]) -> Vec<Cow<'t, str>> {
    let mut converted = or_raise(laser_memory::with_capacity(texts.len()));
    converted.extend(texts.iter().map(|text| convert_one(text)));
    converted
}

fn convert_one(text: &[u8]) -> Cow<'_, str> {
    // Before it is converted, for which it may be far too long; the conversion may make it longer.
    check_length(text.len());
    let text = to_utf8(text);
    check_length(text.len());
    text
}

fn check_length(bytes: usize) {
    if bytes > MAX_TEXT_BYTES {
        raise_hint(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            // How long it is, is not said: it may be another's.
            format!("text of more than {MAX_TEXT_BYTES} bytes is too long for a model"),
            "Split it into sentences or paragraphs, or take its beginning: left(text, n).",
        )
    }
}

/// Texts, and bytes of texts, that go to a model at a time: enough to keep the encoder busy, and little
/// memory.
const BATCH_TEXTS: usize = 4096;
const BATCH_BYTES: usize = 8 << 20;

/// As [`embed_texts`] for any number of texts: each embedding is handed to `take`, in the order of
/// the texts, after `note` has had those that are made at a time. What is held of them meanwhile is bounded.
pub fn embed_each<'t>(
    model: Option<&str>,
    role: Role,
    texts: impl Iterator<Item = &'t [u8]>,
    note: impl Fn(&Embedded),
    take: impl FnMut(&[f32]),
) {
    let embed = |batch: &[&[u8]]| {
        let embedded = embed_texts(model, role, batch);
        note(&embedded);
        embedded
    };
    in_batches(texts, embed, take);
}

/// As [`score_texts`] for any number of texts, whose scores are handed to `take`.
pub fn score_each<'t>(
    model: &str,
    query: &[u8],
    texts: impl Iterator<Item = &'t [u8]>,
    mut take: impl FnMut(f32),
) {
    let score = |batch: &[&[u8]]| score_texts(model, query, batch);
    in_batches(texts, score, |score| take(score[0]));
}

/// Has `run` make a row of each text, some texts at a time; all must be of one model.
fn in_batches<'t>(
    texts: impl Iterator<Item = &'t [u8]>,
    run: impl Fn(&[&[u8]]) -> Embedded,
    mut take: impl FnMut(&[f32]),
) {
    let mut fingerprint = None;
    let mut batch: Vec<&[u8]> = or_raise(laser_memory::with_capacity(BATCH_TEXTS));
    let mut bytes = 0;
    let mut flush = |batch: &mut Vec<&[u8]>| {
        let embedded = run(batch);
        if *fingerprint.get_or_insert(embedded.fingerprint) != embedded.fingerprint {
            CallError::Replaced.raise();
        }
        (0..batch.len()).for_each(|row| take(embedded.row(row)));
        batch.clear();
    };
    for text in texts {
        if batch.len() == BATCH_TEXTS || (bytes + text.len() > BATCH_BYTES && !batch.is_empty()) {
            flush(&mut batch);
            bytes = 0;
        }
        bytes += text.len();
        batch.push(text);
    }
    if !batch.is_empty() {
        flush(&mut batch);
    }
}

/// Raises a SQL error unless the embeddings of `texts` texts fit into one value.
pub fn check_array(model: Option<&str>, texts: usize) {
    /// The largest value of PostgreSQL (`MaxAllocSize`), less what the array takes beside its elements.
    const LARGEST: usize = 0x3fff_ffff - (1 << 20);
    /// The header of an embedding.
    const HEADER: usize = 8;
    // This many fit, whatever their dimensions.
    if texts <= LARGEST / (HEADER + 4 * MAX_DIMENSIONS) {
        return;
    }
    let dimensions = describe_model(model).dimensions;
    let limit = LARGEST / (HEADER + 4 * dimensions);
    if texts > limit {
        raise_hint(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            format!(
                "array of {texts} texts is too long to be embedded, the limit is {limit} at \
                 {dimensions} dimensions"
            ),
            "Embed rows: SELECT laser_embed(body) FROM unnest(texts) AS body.",
        )
    }
}

/// Dimensions and fingerprint of a model (`None`: `laser.model`); loads it where needed. Raises SQL
/// errors as [`embed_texts`] does.
pub fn describe_model(model: Option<&str>) -> Model {
    let model = describe_any(model);
    if model.reranker {
        CallError::from(installed::wrong_task(&model.name, Task::Rerank)).raise();
    }
    model
}

/// Raises the SQL errors of [`describe_model`] for a model that is not installed, or is for another task, as its folder
/// says: nothing is loaded, and the encoder process need not be there.
pub fn check_installed(name: &str) {
    let name = model_name(Some(name));
    let folders = installation::model_folders();
    let Some(path) = catalog::find(&folders, &name) else {
        CallError::from(installed::unknown(&name, &folders)).raise()
    };
    if folder::read_config(&path).is_ok_and(|config| config.task == Task::Rerank) {
        CallError::from(installed::wrong_task(&name, Task::Rerank)).raise();
    }
}

/// As [`describe_model`], of a model that may be for another task.
fn describe_any(model: Option<&str>) -> Model {
    let name = model_name(model);
    let described = session::serving(&name).and_then(|resident| match resident {
        Some(resident) => Ok(resident.model()),
        None => client::describe(name),
    });
    described.unwrap_or_else(|error| error.raise())
}

/// The model's name as the encoder process takes it. That of `laser.model` is empty where there is none
/// at all: what the session's default is, the session knows, whose role or database may have another
/// than the encoder process.
pub fn model_name(model: Option<&str>) -> String {
    match model {
        None => session::session_model().unwrap_or_default(),
        Some(name) if valid_model_name(name) => name.to_owned(),
        Some(name) => raise_hint(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("invalid model name \"{}\"", to_server(name)),
            "Model names have up to 63 letters, digits, dots, underscores and hyphens, and @LANGUAGE behind \
             those of models with an encoder for each language; folders are set in laser.model_path. See \
             view laser_models.",
        ),
    }
}

/// Warns once a statement that texts, or `pairs` of a query and a text, were cut, or refuses them.
fn report_cut(model: &str, pairs: bool, cut: Cut, texts: usize) {
    static WARNED: Mutex<i64> = Mutex::new(i64::MIN);
    let detail = || describe_cut(model, pairs);
    if guc::LONG_TEXT.get() == guc::LongText::Error {
        let message = match (texts, pairs) {
            (1, false) => "text is longer than the model reads".to_owned(),
            (1, true) => "query and text are longer than the model reads".to_owned(),
            (texts, _) => format!(
                "{} of {texts} texts are longer than the model reads{}",
                cut,
                if pairs { " with the query" } else { "" }
            ),
        };
        raise_detail(
            PgSqlErrorCode::ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
            message,
            detail(),
            "Split them, choose another model (see max_tokens in view laser_models), or set \
             laser.long_text to 'warn' to embed only their beginning.",
        );
    }
    // SAFETY: reads a variable of the session.
    let statement = unsafe { pg_sys::GetCurrentStatementStartTimestamp() };
    let mut warned = WARNED.lock().unwrap_or_else(|e| e.into_inner());
    if std::mem::replace(&mut *warned, statement) != statement {
        drop(warned);
        pgrx::ereport!(
            WARNING,
            PgSqlErrorCode::ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
            match pairs {
                false => "text is longer than the model reads, only its beginning was embedded",
                true =>
                    "query and text are longer than the model reads, the longer one was truncated",
            },
            format!(
                "{} Further texts of this statement may have been truncated as well.",
                detail()
            )
        );
    }
}

/// What the model reads.
fn describe_cut(model: &str, pairs: bool) -> String {
    let model = describe_any((!model.is_empty()).then_some(model));
    let which = if pairs {
        "Together they have"
    } else {
        "It has"
    };
    to_server(&format!(
        "{which} more than the {} tokens that model \"{}\" reads.",
        model.max_tokens, model.name
    ))
}
