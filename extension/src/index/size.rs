//! How large an index will be, before it is built.

use laser_index::codec::Codec;
use laser_index::metric::Metric;
use laser_index::quantization::Quantization;
use laser_index::size;
use laser_vector::MAX_DIMENSIONS;
use pgrx::PgSqlErrorCode as Code;
use pgrx::prelude::*;

use super::resources;
use crate::pg::errors::raise;

const QUANTIZATIONS: [Quantization; 5] = [
    Quantization::F32,
    Quantization::F16,
    Quantization::Bf16,
    Quantization::I8,
    Quantization::B1,
];

/// One row for each quantization.
#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_index_estimate(
    rows: i64,
    dimensions: i32,
    m: i32,
    metric: &[u8],
) -> TableIterator<
    'static,
    (
        name!(quantization, String),
        name!(bytes, i64),
        name!(mapped_bytes, i64),
        name!(build_memory, i64),
        name!(segments, i32),
    ),
> {
    let refuse = |what: &str| raise(Code::ERRCODE_INVALID_PARAMETER_VALUE, what);
    if !(0..=u32::MAX.into()).contains(&rows) {
        refuse("rows must be from 0 to 4294967295");
    }
    if !(1..=MAX_DIMENSIONS as i32).contains(&dimensions) {
        refuse(&format!("dimensions must be from 1 to {MAX_DIMENSIONS}"));
    }
    if !(2..=128).contains(&m) {
        refuse("m must be from 2 to 128");
    }
    let metrics = [Metric::Cosine, Metric::L2, Metric::InnerProduct];
    let Some(metric) = metrics
        .into_iter()
        .find(|known| known.name().as_bytes() == metric)
    else {
        let names = metrics.map(|known| format!("\"{}\"", known.name()));
        raise(
            Code::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("metric must be one of {}", names.join(", ")),
        );
    };
    let budget = resources::budget();
    let rows = QUANTIZATIONS.map(|quantization| {
        let codec = Codec::new(dimensions as usize, metric, quantization);
        let size = size::estimate(&codec, m as usize, rows as usize, budget);
        (
            quantization.name().to_owned(),
            size.relation as i64,
            size.mapped as i64,
            size.memory as i64,
            size.segments.min(i32::MAX as usize) as i32,
        )
    });
    TableIterator::new(rows)
}
