//! Any page in place of any page: headers, and the pending list that reads it.
#![no_main]

use laser_index::memory::MemoryStore;
use laser_index::meta::{Meta, Parameters, Pending};
use laser_index::metric::Metric;
use laser_index::page::{self, BODY, PAYLOAD, PageKind};
use laser_index::pending;
use laser_index::quantization::Quantization;
use laser_index::raw::RawForm;
use libfuzzer_sys::fuzz_target;

// Byte 0: metric and quantization; byte 1: dimensions; the rest is a page.
fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let Some((&[how, dims], data)) = data.split_first_chunk::<2>() else {
        return;
    };
    let mut body = vec![0; BODY];
    let len = data.len().min(BODY);
    body[..len].copy_from_slice(&data[..len]);

    // Without a checksum, so that what lies behind it is reached.
    if let Ok(Some(PageKind::Pending)) = page::kind(1, &body) {
        body[page::HEADER + 12..page::HEADER + 16].fill(0);
    }
    let head = page::header(&body);
    let kind = page::kind(1, &body);
    assert_eq!(page::is_free(&body), matches!(kind, Ok(Some(PageKind::Free))));
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
    let quantization = (how & 0x80 == 0).then_some(quantization);
    let dims = usize::from(dims) + 1;
    let raw = RawForm::choose(dims, how & 0x40 != 0, quantization).expect("few dimensions");
    let store = MemoryStore::new();
    let parameters = Parameters {
        dims,
        metric,
        quantization,
        raw,
        element: 0,
        m: 16,
        ef_construction: 64,
        fingerprint: [0; 32],
        model: String::new(),
    };
    Meta::create(&store, parameters.clone()).expect("an empty store");
    let seq = head.owner;
    // No metapage with this number is read.
    if seq == u64::MAX {
        return;
    }
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

    let (mut entries, mut vector) = (0u64, Vec::new());
    let read = pending::read(&store, &parameters, &list, false, |entry| {
        entries += 1;
        if entry.tid & page::UNPLACED == 0 {
            entry.decode(&parameters, &mut vector);
            assert_eq!(vector.len(), dims);
        }
    });
    if read.is_ok() {
        assert!(entries <= (PAYLOAD / 8) as u64);
        let marked = pending::mark(&store, &parameters, &list, |tid| tid % 2 == 0);
        if let Ok((marked, live)) = marked {
            assert!(marked + live <= entries);
        }
    }
    // Whatever is on the page, an insert finds room, or an error.
    let x: Vec<f32> = (1..=dims).map(|i| i as f32).collect();
    let _ = pending::append(&store, &parameters, 7, Some(&x));
    let _ = pending::seal(&store);
}));
