//! Writes the seeds of the corpora, made by the code that writes the formats: seeds FOLDER FIXTURES.

use std::path::PathBuf;

use corpora::{Corpora, numbers};
use laser_fuzz::push_part;
use laser_index::builder::BuildOptions;
use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::MemoryStore;
use laser_index::meta::{Meta, Parameters};
use laser_index::metric::Metric;
use laser_index::page::{BODY, HEADER, NULL, UNDIRECTED, header};
use laser_index::pending;
use laser_index::quantization::Quantization;
use laser_index::raw::RawForm;
use laser_index::segment::SegmentMap;
use laser_index::store::PageStore;
use laser_protocol::{
    ErrorCode, Failure, ModelInfo, Reply, Request, Role, Search, Status, VERSION, encode_reply,
    encode_request,
};
use laser_vector::{f16, wire};
// Coverage counters, with which everything here is compiled, are its business.
use libfuzzer_sys as _;

mod corpora;
#[cfg(feature = "encoder")]
mod models;

fn main() {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [corpora, fixtures] = &arguments[..] else {
        panic!("seeds FOLDER FIXTURES");
    };
    let corpora = Corpora::new(corpora);
    index(&corpora);
    frames(&corpora);
    types(&corpora);
    #[cfg(feature = "encoder")]
    {
        models::models(&corpora);
        models::checkpoints(&corpora, fixtures);
    }
    let _ = fixtures;
}

/// The used part of every page.
fn pages(store: &MemoryStore) -> Vec<Vec<u8>> {
    let used = |body: &[u8]| Ok(body[..(HEADER + header(body).len as usize).min(BODY)].to_vec());
    (0..store.blocks())
        .map(|block| store.read(block, used).expect("it is there"))
        .collect()
}

fn index(corpora: &Corpora) {
    for (number, (metric, quantization)) in [
        (Metric::Cosine, None),
        (Metric::L2, Some(Quantization::F32)),
        (Metric::InnerProduct, Some(Quantization::F16)),
        (Metric::Cosine, Some(Quantization::B1)),
        (Metric::L2, Some(Quantization::Bf16)),
        (Metric::InnerProduct, Some(Quantization::I8)),
    ]
    .into_iter()
    .enumerate()
    {
        let name = quantization.map_or("auto", Quantization::name);
        let name = format!("{}-{name}", metric.name());
        let dims = 4 + number;
        let half = number == 2;
        let parameters = Parameters {
            dims,
            metric,
            quantization,
            raw: RawForm::choose(dims, half, quantization).expect("few dimensions"),
            element: 1,
            m: 4,
            ef_construction: 16,
            fingerprint: [number as u8; 32],
            model: if number == 0 {
                "a-model".into()
            } else {
                String::new()
            },
        };
        let options = BuildOptions {
            parameters: parameters.clone(),
            threads: 1,
            memory: 8 << 20,
            cache: 0,
            expected: 100,
            folder: laser_fuzz::folder().clone(),
        };
        let store = MemoryStore::new();
        Meta::create(&store, parameters.clone()).expect("an empty store");
        let mut tid = 0x1_0001;
        let mut vectors = numbers(number as u64);
        let mut append = |count: usize| {
            for i in 0..count {
                let x: Vec<f32> = match i % 8 {
                    7 => vec![0.5; dims],
                    _ => vectors.by_ref().take(dims).collect(),
                };
                let (tid_and_flags, x) = match i % 10 {
                    9 => (tid | NULL, None),
                    8 if metric == Metric::Cosine => (tid | UNDIRECTED, None),
                    _ => (tid, Some(&x[..])),
                };
                pending::append(&store, &parameters, tid_and_flags, x).expect("room");
                tid += 1;
            }
        };
        let merge = || {
            let how = Merge::new(Plan::All, &options);
            maintain::merge(&store, &how, |_, _| ()).expect("a merge");
        };
        append(40);
        merge();
        append(9);
        maintain::delete(&store, |tid| tid % 7 == 0).expect("a sound index");

        let meta = Meta::read(&store).expect("a metapage");
        let form = if half { 0x40 } else { 0 };
        let how = 8 * metric as u8 + form + quantization.map_or(0x80, |q| q as u8);
        let bodies = pages(&store);
        corpora.put("metapage", &name, &bodies[0]);
        for (block, body) in bodies.iter().enumerate() {
            // One page of each kind.
            let first = bodies[..block]
                .iter()
                .all(|other| other[4..8] != body[4..8]);
            if first {
                let page = [&[how, dims as u8 - 1], &body[..]].concat();
                corpora.put("pages", &format!("{name}-{block}"), &page);
            }
        }
        let entry = meta.segments[0];
        let map = SegmentMap::read(&store, &entry).expect("a segment");
        let mut file = vec![0; entry.bytes as usize];
        map.read_bytes(&store, 0, &mut file).expect("a segment");
        let mut segment = Vec::new();
        push_part(&mut segment, &bodies[0]);
        segment.extend_from_slice(&file);
        corpora.put("segment", &name, &segment);
        let whole = [&[15], &store.to_bytes()[..]].concat();
        corpora.put("index", &name, &whole);
        merge();
        let whole = [&[7], &store.to_bytes()[..]].concat();
        corpora.put("index", &format!("{name}-merged"), &whole);
    }
}

fn frames(corpora: &Corpora) {
    let requests = [
        Request::Hello { version: VERSION },
        Request::Ping { id: 1 },
        Request::Embed {
            id: 2,
            model: "m".into(),
            texts: vec!["ä text".into(), String::new()],
            role: Role::Query,
        },
        Request::Rerank {
            id: 7,
            model: "m".into(),
            query: "ä".into(),
            texts: vec!["text".into()],
        },
        Request::Models { id: 3 },
        Request::Describe {
            id: 4,
            model: "laser-small".into(),
        },
        Request::Status { id: 5 },
        Request::Search {
            id: 6,
            search: Search {
                dimensions: 4,
                k: 2,
                backward: true,
                source_rows: 9,
                target_rows: 8,
                memory: 1 << 20,
                threads: 2,
            },
        },
    ];
    let mut out = vec![250];
    for request in &requests {
        encode_request(request, &mut out);
    }
    corpora.put("frames", "requests", &out);
    let info = ModelInfo {
        name: "m".into(),
        dimensions: 4,
        architecture: "mean".into(),
        reranker: false,
        max_tokens: 128,
        fingerprint: Some([7; 32]),
        loaded: true,
        precision: "f32".into(),
        default: false,
        query_prefix: "query: ".into(),
        passage_prefix: String::new(),
        error: "none".into(),
    };
    let broken = ModelInfo {
        fingerprint: None,
        ..info.clone()
    };
    let status = Status {
        pid: 7,
        device: "cpu".into(),
        default_model: "m".into(),
        loaded: vec!["m".into(), "n".into()],
        sentences_per_second: 1.5,
        last_error: "late".into(),
        ..Status::default()
    };
    let failure = Failure {
        code: ErrorCode::Busy,
        message: "busy".into(),
        hint: "wait".into(),
    };
    let replies = [
        Reply::Hello {
            version: VERSION,
            pid: 7,
        },
        Reply::Pong { id: 1 },
        Reply::Embeddings {
            id: 2,
            fingerprint: [9; 32],
            dimensions: 3,
            data: vec![1.0, -2.0, 0.5, 0.0, 1e-9, 3e9],
            truncated: vec![false, true],
        },
        Reply::Models {
            id: 3,
            models: vec![info, broken],
        },
        Reply::Status {
            id: 4,
            status: Box::new(status),
        },
        Reply::Ready {
            id: 5,
            device: "cuda:0".into(),
        },
        Reply::Progress {
            id: 5,
            done: 1,
            total: 2,
        },
        Reply::Found { id: 5 },
        Reply::Error { id: 0, failure },
    ];
    let mut out = vec![6];
    for reply in &replies {
        encode_reply(reply, &mut out);
    }
    corpora.put("frames", "replies", &out);
}

fn types(corpora: &Corpora) {
    for (name, text) in [
        ("plain", "[1,2,3]"),
        ("spaces", " \t[ 1 ,\n-2.5e0\r, +.5 ,5., 1E-2 ]\x0b\x0c"),
        (
            "extremes",
            "[3.4028235e38,-1.1754944e-38,1e-45,-0,65504,65519.9,6e-8,1e-60]",
        ),
        ("names", "[nan,Infinity,-inf]"),
        ("halves", "[65520,0.333251953125,0x10]"),
    ] {
        corpora.put("type_input", name, text.as_bytes());
    }
    let mut out = Vec::new();
    wire::encode(&[1.0f32, -2.5, 0.0], &mut out);
    corpora.put("type_input", "sent", &out);
    out.clear();
    wire::encode(&[f16::MAX, f16::MIN_POSITIVE], &mut out);
    corpora.put("type_input", "sent-half", &out);
}
