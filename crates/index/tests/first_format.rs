//! What the first version of the format wrote is read as it was meant, in all of its quantizations and metrics: the
//! seeds of the fuzz targets, which the code of then has made.
//!
//! Each is an index of two segments with 40 and 12 rows and of 9 rows in the pending list, from which every row whose
//! address is a multiple of seven was deleted; and the same merged.

use std::path::Path;

use laser_index::bytes::SegmentBytes;
use laser_index::check::check;
use laser_index::codec::Format;
use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::page::{self, BODY, DEAD, PageKind};
use laser_index::pending;
use laser_index::quantization::Quantization;
use laser_index::segment::SegmentHeader;
use laser_index::space::prepare;
use laser_index::view::SegmentView;
use memmap2::MmapMut;

const SEEDS: [(Metric, Quantization); 6] = [
    (Metric::Cosine, Quantization::I8),
    (Metric::L2, Quantization::F32),
    (Metric::InnerProduct, Quantization::F16),
    (Metric::Cosine, Quantization::B1),
    (Metric::L2, Quantization::Bf16),
    (Metric::L2, Quantization::I8),
];
/// Address of the first row; those of the others follow.
const FIRST: u64 = 0x1_0001;
/// Rows of the first segment, of both, and of all.
const ENDS: [u64; 3] = [40, 52, 61];

/// A seed of a target, by the number of its index.
fn seed(target: &str, number: usize, behind: &str) -> Vec<u8> {
    let (metric, quantization) = SEEDS[number];
    let name = format!("first-{}-{}{behind}", metric.name(), quantization.name());
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let path = corpora.join(target).join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The body of a page of which the used part is kept.
fn body(used: &[u8]) -> Vec<u8> {
    let mut body = used.to_vec();
    body.resize(BODY, 0);
    body
}

/// A part with its length in front, and what follows.
fn part(data: &[u8]) -> (&[u8], &[u8]) {
    let (len, rest) = data.split_first_chunk::<4>().unwrap();
    rest.split_at(u32::from_le_bytes(*len) as usize)
}

/// The metapage of an index, which must be what the seed was made with.
fn meta(number: usize, used: &[u8]) -> Meta {
    let meta = Meta::parse(&body(used)).unwrap();
    let (metric, quantization) = SEEDS[number];
    let p = &meta.parameters;
    assert_eq!((p.metric, p.quantization), (metric, Some(quantization)));
    assert_eq!((p.dims, p.m, p.ef_construction), (4 + number, 4, 16));
    assert_eq!(p.fingerprint, [number as u8; 32]);
    assert_eq!(p.model, if number == 0 { "a-model" } else { "" });
    meta
}

fn is_deleted(row: u64) -> bool {
    (FIRST + row).is_multiple_of(7)
}

fn count(rows: std::ops::Range<u64>, deleted: bool) -> u64 {
    rows.filter(|row| is_deleted(*row) == deleted).count() as u64
}

/// The rows of the first segment.
fn rows(number: usize) -> Vec<Vec<f32>> {
    let mut state = (number as u64).wrapping_mul(2).wrapping_add(1);
    let mut numbers = std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    });
    let dims = 4 + number;
    let row = |i: u64| match i % 8 {
        7 => vec![0.5; dims],
        _ => numbers.by_ref().take(dims).collect(),
    };
    (0..ENDS[0]).map(row).collect()
}

#[test]
fn indexes_check_clean() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two, all] = ENDS;
    for (number, kind) in SEEDS.iter().enumerate() {
        for merged in [false, true] {
            let bytes = seed("index", number, if merged { "-merged" } else { "" });
            // The first byte is the fuzz target's.
            let store = MemoryStore::from_bytes(&bytes[1..]).unwrap();
            let report = check(&store, folder.path()).unwrap();
            assert_eq!(report.problems, Vec::<String>::new(), "{:?}", kind);
            let expected = match merged {
                true => [1, count(0..all, false), 0, 0, 0],
                false => [
                    2,
                    count(0..two, false),
                    count(0..two, true),
                    count(two..all, false),
                    count(two..all, true),
                ],
            };
            assert_eq!(report.counts, expected, "{:?}", kind);
            let live = (0..all).filter(|row| !is_deleted(*row));
            assert!(report.rows.into_iter().eq(live.map(|row| FIRST + row)));
            let meta = Meta::read(&store).unwrap();
            assert_eq!(
                meta.segments.iter().map(|s| s.count).max(),
                Some(match merged {
                    true => count(0..all, false) as u32,
                    false => one as u32,
                })
            );
        }
    }
}

#[test]
fn metapages_name_what_there_is() {
    let [one, two, _] = ENDS;
    for number in 0..SEEDS.len() {
        let meta = meta(number, &seed("metapage", number, ""));
        let found: Vec<_> = meta.segments.iter().map(|s| (s.count, s.dead)).collect();
        let entry =
            |rows: std::ops::Range<u64>| ((rows.end - rows.start) as u32, count(rows, true) as u32);
        assert_eq!(found, [entry(0..one), entry(one..two)]);
        assert_eq!(meta.pending.pages(), 1);
        // As it is written now, it says the same.
        let mut again = vec![0; BODY];
        meta.write(&mut again).unwrap();
        let again = Meta::parse(&again).unwrap();
        assert_eq!(meta.parameters, again.parameters);
        assert_eq!(
            (meta.segments, meta.pending),
            (again.segments, again.pending)
        );
    }
}

#[test]
fn segments_have_their_vectors() {
    for (number, &(metric, quantization)) in SEEDS.iter().enumerate() {
        let bytes = seed("segment", number, "");
        let (start, file) = part(&bytes);
        let meta = meta(number, start);
        let (p, entry) = (&meta.parameters, &meta.segments[0]);
        let head = SegmentHeader::parse(p, entry, file).unwrap();
        head.verify(file, &|| ()).unwrap();
        let mut bytes = MmapMut::map_anon(file.len()).unwrap();
        bytes.copy_from_slice(file);
        let view = SegmentView::open(p, entry, SegmentBytes::Memory(bytes)).unwrap();
        let codec = view.encoding().codec;
        assert_eq!(
            (codec.format, codec.quantization),
            (Format::First, quantization)
        );
        assert_eq!((view.len() as u64, view.unplaced().count()), (ENDS[0], 0));
        let (rows, mut seen) = (rows(number), Vec::new());
        for slot in 0..view.len() {
            let row = (view.tid(slot) - FIRST) as usize;
            seen.push(row);
            let expected = prepare(metric, p.dims, &rows[row]).unwrap().unwrap();
            let (stored, error) = view.vector(slot);
            let square = |(x, y): (&f32, &f32)| f64::from(x - y).powi(2);
            let off = stored.iter().zip(&expected).map(square).sum::<f64>().sqrt();
            assert!(off <= error + 1e-6, "{:?}: {off} > {error}", SEEDS[number]);
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..rows.len()));
    }
}

#[test]
fn pages_are_what_they_were() {
    let [_, two, all] = ENDS;
    for number in 0..SEEDS.len() {
        for (block, kind) in [
            (0, PageKind::Meta),
            (1, PageKind::Data),
            (2, PageKind::Bitmap),
            (3, PageKind::Map),
            (7, PageKind::Pending),
        ] {
            let bytes = seed("pages", number, &format!("-{block}"));
            // The first two are the fuzz target's.
            let body = body(&bytes[2..]);
            let head = page::header(&body);
            assert_eq!(head.version, 1);
            page::expect(block, &body, kind, head.owner, head.ordinal).unwrap();
        }
        // The metapage and the page of the list, and as many empty ones as are between them.
        let start = seed("metapage", number, "");
        let page = seed("pages", number, "-7");
        let mut bytes = Vec::new();
        for used in [&start[..], &[], &[], &[], &[], &[], &[], &page[2..]] {
            bytes.extend_from_slice(&(used.len() as u32).to_le_bytes());
            bytes.extend_from_slice(used);
        }
        let store = MemoryStore::from_bytes(&bytes).unwrap();
        let meta = meta(number, &start);
        let (mut live, mut dead, mut x) = (0, 0, Vec::new());
        pending::read(&store, &meta.parameters, &meta.pending, true, |entry| {
            match entry.tid & DEAD {
                0 => live += 1,
                _ => dead += 1,
            }
            entry.decode(&meta.parameters, &mut x);
            assert!(x.len() == meta.parameters.dims && x.iter().all(|x| x.is_finite()));
        })
        .unwrap();
        assert_eq!(
            (live, dead),
            (count(two..all, false), count(two..all, true))
        );
    }
}
