//! Segments whose checksums are right and whose contents are not.

use laser_index::builder::BuildOptions;
use laser_index::codec::Codec;
use laser_index::graph::{Graph, Layout};
use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::MemoryStore;
use laser_index::meta::{Meta, Parameters};
use laser_index::metric::Metric;
use laser_index::page::NULL;
use laser_index::quantization::Quantization;
use laser_index::raw::RawForm;
use laser_index::segment::{SegmentHeader, SegmentMap};
use laser_index::{IndexError, pending};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

const NODES: u64 = 200;

fn serialized(codec: Codec) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let graph = Graph::new(codec, 4, 16).unwrap();
    graph.reserve(NODES as usize, 1).unwrap();
    let mut scratch = Vec::new();
    for key in 0..NODES {
        let x: Vec<u8> = (0..codec.graph_len() / 4)
            .flat_map(|_| rng.random::<f32>().to_le_bytes())
            .collect();
        graph.add(key, &x, &mut scratch).unwrap();
    }
    let mut bytes = vec![0; graph.serialized_len()];
    graph.save(&mut bytes).unwrap();
    bytes
}

/// What is written over a sound graph, and where.
fn load_with(codec: Codec, bytes: &[u8], at: usize, value: &[u8]) -> Result<Graph, IndexError> {
    let mut bytes = bytes.to_vec();
    assert_ne!(bytes[at..at + value.len()], *value);
    bytes[at..at + value.len()].copy_from_slice(value);
    Graph::load(codec, 4, 16, &bytes)
}

#[test]
fn a_graph_that_leads_out_of_itself_is_not_continued() {
    let codec = Codec::new(4, Metric::L2, Quantization::F32);
    let bytes = serialized(codec);
    assert_eq!(Graph::load(codec, 4, 16, &bytes).unwrap().len(), 200);
    let layout = Layout::parse(&codec, &bytes).unwrap();
    let (node, _) = layout.keys().unwrap()[7];
    // Key and level of the node, number of its edges, edges.
    let edge = load_with(codec, &bytes, node + 14, &u32::MAX.to_le_bytes());
    let many = load_with(codec, &bytes, node + 10, &u32::MAX.to_le_bytes());
    let key = load_with(codec, &bytes, node, &u64::MAX.to_le_bytes());
    // Behind the vectors and the header of usearch: size, two limits of edges, the highest level and
    // the node from which walks begin.
    let head = layout.vector_at(layout.rows()) + 64;
    let level = load_with(codec, &bytes, head + 24, &1000u64.to_le_bytes());
    let entry = load_with(codec, &bytes, head + 32, &NODES.to_le_bytes());
    for (what, result) in [
        ("edge", edge),
        ("edges", many),
        ("key", key),
        ("level", level),
        ("entry", entry),
    ] {
        assert!(matches!(result, Err(IndexError::Graph(_))), "{what}");
    }
}

#[test]
fn an_entry_without_a_place_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let parameters = Parameters {
        dims: 2,
        metric: Metric::L2,
        quantization: None,
        raw: RawForm::choose(2, false, None).unwrap(),
        element: 0,
        m: 4,
        ef_construction: 16,
        fingerprint: [0; 32],
        model: String::new(),
    };
    let options = BuildOptions {
        parameters: parameters.clone(),
        threads: 1,
        memory: 8 << 20,
        cache: 0,
        expected: 10,
        folder: folder.path().to_owned(),
    };
    let store = MemoryStore::new();
    Meta::create(&store, parameters.clone()).unwrap();
    pending::append(&store, &parameters, 1, Some(&[1.0, 2.0])).unwrap();
    pending::append(&store, &parameters, 2 | NULL, None).unwrap();
    let (plan, options) = (Plan::All, &options);
    maintain::merge(&store, &Merge::new(plan, options), |_, _| ()).unwrap();

    let entry = Meta::read(&store).unwrap().segments[0];
    let map = SegmentMap::read(&store, &entry).unwrap();
    let mut file = vec![0; entry.bytes as usize];
    map.read_bytes(&store, 0, &mut file).unwrap();
    let mut head = SegmentHeader::parse(&parameters, &entry, &file).unwrap();
    head.verify(&file, &|| ()).unwrap();
    let tids = head.tids.of_mut(&mut file);
    assert_eq!(tids[8..], (2 | NULL).to_le_bytes());
    tids[8..].copy_from_slice(&2u64.to_le_bytes());
    head.seal(&mut file);
    let error = head.verify(&file, &|| ()).unwrap_err().to_string();
    assert!(error.contains("without a place"), "{error}");
}
