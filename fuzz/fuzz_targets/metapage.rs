//! The metapage: what can be read can be written, and is the same again.
#![no_main]

use laser_index::meta::{MAX_SEGMENTS, Meta};
use laser_index::page::BODY;
use laser_index::query::Query;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let mut body = vec![0; BODY];
    let len = data.len().min(BODY);
    body[..len].copy_from_slice(&data[..len]);
    Meta::unseal(&mut body);
    let Ok(meta) = Meta::parse(&body) else { return };
    assert!(meta.segments.len() <= MAX_SEGMENTS);
    let _ = meta.pending.pages();
    for entry in &meta.segments {
        assert!(entry.live() <= entry.count);
    }
    let p = &meta.parameters;
    let query = Query::new(p.metric, p.dims, &vec![0.5; p.dims]).expect("finite");
    assert_eq!(query.given().len(), p.dims);
    let mut again = vec![0; BODY];
    meta.write(&mut again).expect("it was read");
    let second = Meta::parse(&again).expect("it was written");
    assert_eq!(meta.parameters, second.parameters);
    assert_eq!(meta.segments, second.segments);
    assert_eq!(meta.pending, second.pending);
    assert_eq!(meta.complete, second.complete);
}));
