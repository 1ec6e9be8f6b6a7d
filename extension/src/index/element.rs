//! What an index is on: the type of its column, the metric, the dimensions, and the vectors in its
//! datums.
#![allow(unsafe_code)]

use std::rc::Rc;

use half::slice::HalfFloatSliceExt;
use laser_index::IndexError;
use laser_index::arithmetic::Arithmetic;
use laser_index::meta::{Parameters, UNDECIDED};
use laser_index::metric::Metric;
use laser_index::quantization::Quantization;
use laser_index::raw::RawForm;
use laser_protocol::model_and_language;
use pgrx::{PgSqlErrorCode as Code, PgTupleDesc, pg_sys, varlena};

use super::errors::report;
use super::options;
use crate::encode::{self, CachedEmbedding, Role};
use crate::pg::errors::{raise, raise_hint};
use crate::types::{Embedding, HalfEmbedding};

/// Type of the indexed column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Element {
    /// `embedding`, `f32` components
    Embedding = 0,
    /// `halfembedding`, `f16` components
    HalfEmbedding = 1,
    /// `text` and types like it, embedded by the index
    Text = 2,
    /// pgvector's `vector`, `f32` components
    Vector = 3,
    /// pgvector's `halfvec`, `f16` components
    HalfVec = 4,
}

impl Element {
    /// The element with this number on the metapage.
    pub fn from_u8(value: u8) -> Option<Self> {
        use Element::{Embedding, HalfEmbedding, HalfVec, Text, Vector};
        [Embedding, HalfEmbedding, Text, Vector, HalfVec]
            .into_iter()
            .find(|e| *e as u8 == value)
    }

    /// The type's name in SQL, without schema and modifier.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::HalfEmbedding => "halfembedding",
            Self::Text => "text",
            Self::Vector => "vector",
            Self::HalfVec => "halfvec",
        }
    }

    /// Whether components have 16 bits.
    pub fn is_half(self) -> bool {
        matches!(self, Self::HalfEmbedding | Self::HalfVec)
    }

    /// Whether the type and its operators are pgvector's.
    pub fn is_foreign(self) -> bool {
        matches!(self, Self::Vector | Self::HalfVec)
    }

    /// The arithmetic of its distances, which the executor computes to sort by.
    pub fn arithmetic(self) -> Arithmetic {
        match self.is_foreign() {
            true => Arithmetic::Plain,
            false => Arithmetic::Own,
        }
    }

    /// Raises an error of storing a value of this type, with the statements that help there.
    #[cold]
    pub fn report(self, error: IndexError) -> ! {
        match error {
            IndexError::TooWide {
                quantization: Quantization::B1,
                ..
            } if self != Self::Text => raise_hint(
                Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                error.to_string(),
                format!(
                    "Index a part of the vector: ((subvector(column, 1, 1024)::{}(1024))).",
                    self.type_name()
                ),
            ),
            // Where the column declares a length, its type refuses others.
            IndexError::Dimensions { expected, .. } => raise_hint(
                Code::ERRCODE_DATA_EXCEPTION,
                error.to_string(),
                format!(
                    "The column declares no length, so that the first vector has decided that of the index. {}",
                    self.own_index_hint(expected)
                ),
            ),
            error => report(error),
        }
    }

    /// What to do where a column has vectors of several lengths, one of which is `dims`.
    pub fn own_index_hint(self, dims: usize) -> String {
        format!(
            "Vectors of one length have an index of their own: \
             CREATE INDEX … ((column::{}({dims}))) WHERE vector_dims(column) = {dims}.",
            self.type_name()
        )
    }
}

/// The dimensions on the metapage while none are known, see [`UNDECIDED`].
const NO_DIMENSIONS: usize = 1;

/// Operator classes name their type and metric by support function 1, which returns
/// `16 * element + metric`.
pub const KIND_PROCEDURE: u16 = 1;

/// Type and metric of an index, from its operator class.
///
/// # Safety
/// `relation` is an open index of this access method.
unsafe fn kind(relation: pg_sys::Relation) -> (Element, Metric) {
    // SAFETY: the index has one column and its operator class has this procedure.
    let value = unsafe {
        let procedure = pg_sys::index_getprocinfo(relation, 1, KIND_PROCEDURE);
        let datum = pg_sys::FunctionCall0Coll(procedure, pg_sys::InvalidOid);
        datum.value() as u8
    };
    parse_kind(value).unwrap_or_else(|| {
        raise(
            Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("the operator class of the index has an unknown kind {value}"),
        )
    })
}

/// The type and the metric that a [`KIND_PROCEDURE`] names.
pub fn parse_kind(value: u8) -> Option<(Element, Metric)> {
    Some((Element::from_u8(value / 16)?, Metric::from_u8(value % 16)?))
}

/// Whether the indexed column declares no number of dimensions.
///
/// # Safety
/// `relation` is an open index of this access method.
pub unsafe fn is_undeclared(relation: pg_sys::Relation) -> bool {
    // SAFETY: by contract.
    let (columns, (element, _)) = unsafe {
        let columns = PgTupleDesc::from_pg_unchecked((*relation).rd_att);
        (columns, kind(relation))
    };
    let typmod = columns.get(0).map_or(-1, |column| column.atttypmod);
    element != Element::Text && typmod < 1
}

/// Whether an index embeds the texts of its column.
///
/// # Safety
/// `relation` is an open index of this access method.
pub unsafe fn is_of_text(relation: pg_sys::Relation) -> bool {
    // SAFETY: by contract.
    unsafe { kind(relation).0 == Element::Text }
}

/// Parameters for a new index.
///
/// # Safety
/// `relation` is an open index of this access method.
pub unsafe fn parameters(relation: pg_sys::Relation) -> Parameters {
    // SAFETY: by contract.
    let columns = unsafe { PgTupleDesc::from_pg_unchecked((*relation).rd_att) };
    if columns.len() != 1 {
        raise_hint(
            Code::ERRCODE_FEATURE_NOT_SUPPORTED,
            "a laser index has exactly one column",
            "Create an index on each of the columns.",
        );
    }
    let typmod = columns.get(0).expect("it has one").atttypmod;
    // SAFETY: by contract.
    let (options, (element, metric)) = unsafe { (options::of(relation), kind(relation)) };
    let (dims, fingerprint, model) = match element {
        Element::Text => {
            let model = encode::describe_model(options.model.as_deref());
            (model.dimensions, model.fingerprint, model.name)
        }
        _ if options.model.is_some() => refuse_model(),
        _ if typmod < 1 => (NO_DIMENSIONS, [0; 32], String::new()),
        _ => (typmod as usize, [0; 32], String::new()),
    };
    let raw = RawForm::choose(dims, element.is_half(), options.quantization)
        .unwrap_or_else(|error| element.report(error));
    let undecided = element != Element::Text && typmod < 1;
    Parameters {
        dims,
        metric,
        quantization: options.quantization,
        raw,
        element: element as u8 | if undecided { UNDECIDED } else { 0 },
        m: options.m,
        ef_construction: options.ef_construction,
        fingerprint,
        model,
    }
}

/// Raises the error of a model that is named for an index on embeddings.
#[cold]
pub fn refuse_model() -> ! {
    raise_hint(
        Code::ERRCODE_INVALID_PARAMETER_VALUE,
        "parameter \"model\" applies to indexes on text only",
        "Omit it: an index on embeddings stores the values of its column, whatever model they are of.",
    )
}

/// How the column of an index differs from what its metapage says of it, in words.
///
/// # Safety
/// `relation` is an open index of this access method.
pub unsafe fn mismatch(relation: pg_sys::Relation, parameters: &Parameters) -> Option<String> {
    // SAFETY: by contract.
    let (element, metric) = unsafe { kind(relation) };
    if parameters.element & !UNDECIDED != element as u8 {
        let name = element.type_name();
        let number = parameters.element;
        return Some(format!(
            "the metapage does not say that the column is of type {name}, but names type {number}"
        ));
    }
    (parameters.metric != metric).then(|| {
        format!(
            "the metapage names the metric {}, the operator class {}",
            parameters.metric.name(),
            metric.name()
        )
    })
}

/// The type of the column that the metapage names.
pub fn of(parameters: &Parameters) -> Element {
    Element::from_u8(parameters.element & !UNDECIDED).unwrap_or_else(|| {
        raise(
            Code::ERRCODE_INDEX_CORRUPTED,
            format!(
                "unknown column type {} of a laser index",
                parameters.element
            ),
        )
    })
}

/// Shows the vector in a datum of a type with vectors; pgvector's have the layout of ours.
///
/// # Safety
/// The datum is not null and of that type.
pub unsafe fn with_vector<R>(
    element: Element,
    datum: pg_sys::Datum,
    look: impl FnOnce(&[f32]) -> R,
) -> R {
    // SAFETY: by contract.
    unsafe {
        match element {
            Element::Embedding | Element::Vector => look(Embedding::from_raw(datum).as_slice()),
            Element::HalfEmbedding | Element::HalfVec => {
                let values = HalfEmbedding::from_raw(datum);
                let mut wide = vec![0.0; values.as_slice().len()];
                values.as_slice().convert_to_f32_slice(&mut wide);
                look(&wide)
            }
            Element::Text => unreachable!("text has no vector in its datum"),
        }
    }
}

/// The bytes of a text datum.
///
/// # Safety
/// The datum is not null and a varlena of text.
pub unsafe fn text(datum: pg_sys::Datum) -> Vec<u8> {
    // SAFETY: by contract; the copy that detoasting may make is freed again.
    unsafe {
        let stored = datum.cast_mut_ptr::<pg_sys::varlena>();
        let flat = pg_sys::pg_detoast_datum_packed(stored);
        let bytes = std::slice::from_raw_parts(
            varlena::vardata_any(flat).cast::<u8>(),
            varlena::varsize_any_exhdr(flat),
        )
        .to_vec();
        if flat != stored {
            pg_sys::pfree(flat.cast());
        }
        bytes
    }
}

/// Rows with texts on their way to the model, which embeds many at once at a fraction of the cost of
/// one by one.
#[derive(Debug, Default)]
pub struct TextBatch {
    rows: Vec<(u64, Vec<u8>)>,
    bytes: usize,
}

impl TextBatch {
    /// Texts that are embedded in one call.
    const ROWS: usize = 1024;
    /// Bytes of text after which no more are collected.
    const BYTES: usize = 1 << 20;

    /// Adds the text of a row; says whether it is time to embed.
    pub fn push(&mut self, tid: u64, text: Vec<u8>) -> bool {
        self.bytes += text.len();
        self.rows.push((tid, text));
        self.rows.len() >= Self::ROWS || self.bytes >= Self::BYTES
    }

    /// Rows that were collected.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Embeds what was collected and shows every row with its vector.
    pub fn embed(&mut self, parameters: &Parameters, mut look: impl FnMut(u64, &[f32])) {
        self.embed_with_texts(parameters, |tid, _, x| look(tid, x));
    }

    /// As [`TextBatch::embed`], with the texts.
    pub fn embed_with_texts(
        &mut self,
        parameters: &Parameters,
        mut look: impl FnMut(u64, &[u8], &[f32]),
    ) {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return;
        }
        let texts: Vec<&[u8]> = rows.iter().map(|(_, text)| text.as_slice()).collect();
        let vectors = embed(parameters, &texts);
        for ((tid, text), x) in rows.iter().zip(vectors.chunks_exact(parameters.dims)) {
            look(*tid, text, x);
        }
    }
}

/// Embeds texts of rows, which are searched in, with the model of an index; row-major.
///
/// Raises an error when the model is not the one with which the index was built.
pub fn embed(parameters: &Parameters, texts: &[&[u8]]) -> Vec<f32> {
    let embedded = encode::embed_rows(&parameters.model, texts);
    if embedded.fingerprint != parameters.fingerprint && !texts.is_empty() {
        other_version(parameters);
    }
    embedded.data
}

/// Embeds what is searched for in an index on text, with the model that `<=>` uses in this session.
///
/// Raises an error when that is not the one with which the index was built: the planner leaves such
/// an index alone, but a plan may be older than the setting (an open cursor), and a model may be
/// replaced under its name.
pub fn embed_query(parameters: &Parameters, index: &str, text: &[u8]) -> Rc<CachedEmbedding> {
    let embed = || encode::embed_once(None, Role::Query, text);
    let mut embedded = embed();
    if embedded.fingerprint != parameters.fingerprint {
        // The statement may have embedded it before the model was replaced, and the index rebuilt.
        encode::forget_recent();
        embedded = embed();
    }
    // Encoders of one model for different languages have one fingerprint, and `<=>` means one of them.
    let session = encode::session_model();
    let language = session
        .as_deref()
        .and_then(|name| model_and_language(name).1);
    let built_with = model_and_language(&parameters.model).1;
    if embedded.fingerprint == parameters.fingerprint && language == built_with {
        return embedded;
    }
    // SAFETY: may be called at any time: what is planned from now on is planned for the model.
    unsafe { pg_sys::ResetPlanCache() };
    match session {
        Some(model) if model != parameters.model => raise_hint(
            Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!(
                "index \"{index}\" was built with model \"{}\", this session's is \"{model}\"",
                parameters.model
            ),
            format!(
                "The query was planned for another model: run it again, or SET laser.model = '{}'.",
                parameters.model
            ),
        ),
        _ => other_version(parameters),
    }
}

#[cold]
fn other_version(parameters: &Parameters) -> ! {
    raise_hint(
        Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!(
            "model \"{}\" is not the one that the index was built with",
            parameters.model
        ),
        "Rebuild the index with REINDEX, or install the model again that it was built with.",
    )
}
