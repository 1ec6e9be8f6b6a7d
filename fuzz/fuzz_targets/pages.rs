//! Any page in place of any page: headers, and the pending list that reads it.
#![no_main]

use laser_index::codec::{Codec, Metric, Quantization};
use laser_index::memory::MemoryStore;
use laser_index::meta::{Meta, Parameters, Pending};
use laser_index::page::{self, BODY, PAYLOAD, PageKind};
use laser_index::pending;
use libfuzzer_sys::fuzz_target;

// Byte 0: metric and quantization; byte 1: dimensions; the rest is a page.
fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let Some((&[how, dims], data)) = data.split_first_chunk::<2>() else {
        return;
    };
    let mut body = vec![0; BODY];
    let len = data.len().min(BODY);
    body[..len].copy_from_slice(&data[..len]);

    let head = page::header(&body);
    let kind = page::kind(1, &body);
    assert_eq!(page::is_free(&body), matches!(kind, Ok(None | Some(PageKind::Free))));
    for wanted in [
        PageKind::Free,
        PageKind::Meta,
        PageKind::Map,
        PageKind::Data,
        PageKind::Bitmap,
        PageKind::Pending,
    ] {
        let found = page::expect(1, &body, wanted, head.owner, head.ordinal);
        assert_eq!(found.is_ok(), matches!(kind, Ok(Some(kind)) if kind == wanted));
        assert!(found.map_or(0, <[u8]>::len) <= PAYLOAD);
        assert!(page::expect(1, &body, wanted, !head.owner, head.ordinal).is_err());
    }

    let quantization = Quantization::ALL[usize::from(how) % Quantization::ALL.len()];
    let metric = Metric::from_u8(how / 8 % 3).expect("three metrics");
    let codec = Codec::new(usize::from(dims) + 1, metric, quantization).expect("few dimensions");
    let store = MemoryStore::new();
    let parameters = Parameters {
        codec,
        element: 0,
        m: 16,
        ef_construction: 64,
        fingerprint: [0; 32],
        model: String::new(),
    };
    Meta::create(&store, parameters).expect("an empty store");
    let seq = head.owner;
    let list = Pending { head_seq: seq, tail_seq: seq, head: 1, tail: 1 };
    let grown = Meta::update(&store, |meta| {
        meta.pending = list;
        Ok(())
    });
    grown.expect("a metapage");
    let mut bytes = store.to_bytes();
    bytes.extend_from_slice(&(BODY as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    let store = MemoryStore::from_bytes(&bytes).expect("two pages");

    let mut entries = 0u64;
    let read = pending::read(&store, &codec, &list, false, |_, stored| {
        entries += 1;
        let _ = stored.iter().fold(0u8, |sum, byte| sum ^ byte);
    });
    if read.is_ok() {
        assert!(entries <= (PAYLOAD / 8) as u64);
        let marked = pending::mark(&store, &codec, &list, |tid| tid % 2 == 0);
        if let Ok((marked, live)) = marked {
            assert!(marked + live <= entries);
        }
    }
    // Whatever is on the page, an insert finds room, or an error.
    let mut stored = vec![0; codec.len()];
    let x: Vec<f32> = (0..=dims).map(|i| f32::from(i) + 1.0).collect();
    assert!(codec.encode(&x, &mut stored).expect("finite"));
    if seq < u64::MAX {
        let _ = pending::append(&store, &codec, 7, &stored);
        let _ = pending::seal(&store, &codec);
    }
}));
