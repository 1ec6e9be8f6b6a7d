//! What `laser_index_info` tells of an index, or of all parts of a partitioned one together. The declaration is in
//! `sql/index.sql`.

use std::collections::BTreeMap;

use laser_index::codec::Format;
use laser_index::meta::Meta;
use laser_index::store::PageStore;
use laser_index::{Result, maintain, pending};
use pgrx::pg_sys;
use pgrx::prelude::*;

use super::element::{self, Element};
use super::info::{Opened, retry};
use super::pages::RelationStore;
use super::rights::{self, Use};
use crate::encode::hex;
use crate::pg::interrupts::pause;

/// How many segments have taken a quantization, and the largest share of noise that was measured for it.
type Taken = BTreeMap<&'static str, (usize, Option<f32>)>;

/// Sizes, which add up over the parts of a partitioned index.
#[derive(Default)]
struct Sizes {
    segments: usize,
    live: i64,
    dead: i64,
    pending: i64,
    pending_bytes: i64,
    bytes: i64,
    taken: Taken,
}

/// What the parts of a partitioned index may differ in, and is unknown of the whole then.
struct Shape {
    type_name: Option<String>,
    dimensions: Option<i32>,
    metric: Option<String>,
    quantization: Option<String>,
    m: Option<i32>,
    ef_construction: Option<i32>,
    model: Option<String>,
    fingerprint: Option<String>,
    generation: Option<i64>,
    format_version: Option<i32>,
}

impl Sizes {
    fn of(store: &RelationStore, meta: &Meta) -> Result<Self> {
        let page = i64::from(pg_sys::BLCKSZ);
        Ok(Self {
            segments: meta.segments.len(),
            live: meta.segments.iter().map(|s| i64::from(s.live())).sum(),
            dead: meta.segments.iter().map(|s| i64::from(s.dead)).sum(),
            pending: pending_len(store, meta)?,
            pending_bytes: meta.pending.pages() as i64 * page,
            bytes: i64::from(store.blocks()) * page,
            taken: taken(store, meta)?,
        })
    }

    fn add(&mut self, other: Self) {
        self.segments += other.segments;
        self.live += other.live;
        self.dead += other.dead;
        self.pending += other.pending;
        self.pending_bytes += other.pending_bytes;
        self.bytes += other.bytes;
        for (name, (count, noise)) in other.taken {
            count_in(&mut self.taken, name, count, noise);
        }
    }
}

impl Shape {
    fn of(meta: &Meta) -> Self {
        let p = &meta.parameters;
        let element = element::of(p);
        let text = element == Element::Text;
        Self {
            type_name: Some(element.type_name().to_owned()),
            dimensions: (!p.is_undecided()).then_some(p.dims as i32),
            metric: Some(p.metric.name().to_owned()),
            quantization: Some(p.quantization.map_or("auto", |q| q.name()).to_owned()),
            m: Some(p.m as i32),
            ef_construction: Some(p.ef_construction as i32),
            model: text.then(|| p.model.clone()),
            fingerprint: text.then(|| hex(&p.fingerprint)),
            generation: Some(meta.generation as i64),
            format_version: Some(meta.format as i32),
        }
    }

    fn keep_what_agrees(&mut self, other: &Self) {
        keep(&mut self.type_name, &other.type_name);
        keep(&mut self.dimensions, &other.dimensions);
        keep(&mut self.metric, &other.metric);
        keep(&mut self.quantization, &other.quantization);
        keep(&mut self.m, &other.m);
        keep(&mut self.ef_construction, &other.ef_construction);
        keep(&mut self.model, &other.model);
        keep(&mut self.fingerprint, &other.fingerprint);
        keep(&mut self.generation, &other.generation);
        keep(&mut self.format_version, &other.format_version);
    }
}

fn keep<T: PartialEq>(a: &mut Option<T>, b: &Option<T>) {
    if a != b {
        *a = None;
    }
}

/// Live entries of the pending list.
fn pending_len(store: &RelationStore, meta: &Meta) -> Result<i64> {
    let mut len = 0;
    pending::read(store, &meta.parameters, &meta.pending, true, |entry| {
        len += i64::from(entry.is_live());
    })?;
    Ok(len)
}

fn count_in(taken: &mut Taken, name: &'static str, segments: usize, noise: Option<f32>) {
    let (count, largest) = taken.entry(name).or_default();
    *count += segments;
    *largest = match (*largest, noise) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
}

/// What the segments of an index have taken as quantization.
fn taken(store: &RelationStore, meta: &Meta) -> Result<Taken> {
    let mut kinds = Taken::new();
    for entry in &meta.segments {
        let encoding = maintain::encoding(store, &meta.parameters, entry)?;
        let mut name = encoding.codec.quantization.name();
        if encoding.codec.format == Format::First {
            name = "i8 of format 1";
        }
        count_in(&mut kinds, name, 1, encoding.noise);
    }
    Ok(kinds)
}

/// What was taken and why, in words, by the parameter `quantization`; `None` without segments.
fn stored_as(taken: Taken, asked: Option<&str>) -> Option<String> {
    // Why nothing was measured, see `laser_index::choice`.
    let why = |name: &str| match (asked, name) {
        (Some("auto"), "f32") => " (no larger than with 8 bits)",
        (Some("auto"), "i8") => " (too few different vectors to measure whether 8 bits suffice)",
        _ => "",
    };
    let words: Vec<String> = taken
        .into_iter()
        .map(|(name, (count, noise))| {
            let segments = if count == 1 { "segment" } else { "segments" };
            match noise {
                Some(noise) => format!(
                    "{name} in {count} {segments} (8 bits blur distances by {:.1} % of the gap between near neighbors, {:.0} % are allowed)",
                    100.0 * noise,
                    100.0 * laser_index::choice::LARGEST_NOISE
                ),
                None => format!("{name} in {count} {segments}{}", why(name)),
            }
        })
        .collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// Sizes and parameters of one index with pages.
fn look(index: pg_sys::Oid, wanted: Use) -> (Sizes, Shape) {
    let opened = Opened::new(index, wanted, pg_sys::AccessShareLock);
    opened.expect_ready();
    let store = opened.store();
    retry(|| {
        let meta = Meta::read(&store)?;
        Ok((Sizes::of(&store, &meta)?, Shape::of(&meta)))
    })
}

/// Of a partitioned index: the sum of its parts, and of their parameters those that all have; no row where it
/// has none.
fn look_at_all(parts: Vec<pg_sys::Oid>) -> Option<(Sizes, Shape)> {
    let mut whole: Option<(Sizes, Shape)> = None;
    for part in parts {
        pause();
        let (part_sizes, part_shape) = look(part, Use::LookAtPart);
        let Some((sizes, shape)) = &mut whole else {
            whole = Some((part_sizes, part_shape));
            continue;
        };
        sizes.add(part_sizes);
        shape.keep_what_agrees(&part_shape);
    }
    whole
}

#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_index_info(
    index: pg_sys::Oid,
) -> TableIterator<
    'static,
    (
        name!(segments, i32),
        name!(live, i64),
        name!(dead, i64),
        name!(pending, i64),
        name!(pending_bytes, i64),
        name!(bytes, i64),
        name!(type_name, Option<String>),
        name!(dimensions, Option<i32>),
        name!(metric, Option<String>),
        name!(quantization, Option<String>),
        name!(m, Option<i32>),
        name!(ef_construction, Option<i32>),
        name!(model, Option<String>),
        name!(fingerprint, Option<String>),
        name!(generation, Option<i64>),
        name!(format_version, Option<i32>),
        name!(stored_as, Option<String>),
    ),
> {
    let found = match rights::parts_of(index) {
        Some(parts) => look_at_all(parts),
        None => Some(look(index, Use::Look)),
    };
    let row = found.map(|(sizes, shape)| {
        let stored_as = stored_as(sizes.taken, shape.quantization.as_deref());
        (
            sizes.segments as i32,
            sizes.live,
            sizes.dead,
            sizes.pending,
            sizes.pending_bytes,
            sizes.bytes,
            shape.type_name,
            shape.dimensions,
            shape.metric,
            shape.quantization,
            shape.m,
            shape.ef_construction,
            shape.model,
            shape.fingerprint,
            shape.generation,
            shape.format_version,
            stored_as,
        )
    });
    TableIterator::new(row)
}
