//! The file of a segment, with correct checksums: opened, searched, read.
#![no_main]

use laser_fuzz::{part, seal};
use laser_index::graph::Layout;
use laser_index::meta::Meta;
use laser_index::page::BODY;
use laser_index::query::Query;
use laser_index::reach;
use laser_index::segment::SegmentHeader;
use libfuzzer_sys::fuzz_target;

// A metapage, then the file of its first segment.
fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let mut data = data;
    let mut body = vec![0; BODY];
    let start = part(&mut data);
    let len = start.len().min(BODY);
    body[..len].copy_from_slice(&start[..len]);
    let Ok(meta) = Meta::parse(&body) else { return };
    let Some(entry) = meta.segments.first() else { return };
    let parameters = &meta.parameters;
    if parameters.dims > 1024 {
        return;
    }
    // As the file is: its checksums are wrong for most mutations, and then it is refused.
    let mut file = data.to_vec();
    if let Ok(head) = SegmentHeader::parse(parameters, entry, &file) {
        let _ = head.verify(&file, &|| ());
    }
    let Some(head) = seal::seal(&mut file) else { return };
    let entry = seal::entry_of(&head, &file, entry);
    let Some(view) = seal::open(parameters, &entry, &file) else { return };

    let codec = view.encoding().codec;
    let placed = view.header().placed() as usize;
    let nodes = view.nodes();
    let mut next = 0;
    for node in 0..nodes {
        let entries = view.entries(node);
        assert_eq!(entries.start, next);
        next = entries.end;
        assert_eq!(view.graph_part(node).len(), codec.graph_len());
    }
    assert_eq!(next, placed);
    assert!(placed <= view.len());
    assert_eq!(view.unplaced().count(), view.len() - placed);
    let mut seen = 0;
    let all = view.for_each(|entry, graph, fine| {
        seen += 1;
        let _ = (view.tid(entry), view.node(entry), codec.decode(graph, fine));
        Ok::<(), ()>(())
    });
    all.expect("nothing fails");
    assert_eq!(seen, placed);
    let mut scratch = Vec::new();
    for (wanted, sign) in [(1, 1.0), (10, -1.0), (nodes + 1, 0.5)] {
        let x: Vec<f32> = (0..parameters.dims).map(|i| sign * (1.0 + i as f32)).collect();
        let query = Query::new(parameters.metric, parameters.dims, &x).expect("finite");
        let probe = view.probe(&query);
        let mut found = view.search(&probe, wanted, false, &mut scratch).found;
        found.sort_unstable_by_key(|&(_, entry)| entry);
        assert!(found.iter().all(|&(_, entry)| (entry as usize) < view.len()));
        assert!(found.windows(2).all(|w| w[0].1 != w[1].1), "an entry is found twice");
        view.scan(&probe, &mut scratch, &|| (), |_| ());
    }
    if nodes == 0 {
        return;
    }
    let layout = Layout::parse(&codec, view.header().graph.of(view.bytes())).expect("it is open");
    let _ = layout.verify(&|| ());
    let _ = reach::reach(&codec, view.header().graph.of(view.bytes()), &|| ());
}));
