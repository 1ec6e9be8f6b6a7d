//! A whole checkpoint of any known kind, imported into a model folder.
#![no_main]

use std::fs;
use std::path::Path;

use laser_fuzz::{folder, part};
use laser_import::{Kind, Options, Table, import};
use libfuzzer_sys::fuzz_target;

// Byte 0: kind; byte 1: storage of the table; then files: name and contents, each with its length.
fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let Some((&[kind, table], mut data)) = data.split_first_chunk::<2>() else { return };
    let source = folder().join("source");
    let out = folder().join("out");
    for folder in [&source, &out] {
        let _ = fs::remove_dir_all(folder);
    }
    fs::create_dir_all(&source).expect("a folder");
    while !data.is_empty() {
        let (name, bytes) = (part(&mut data), part(&mut data));
        let Ok(name) = std::str::from_utf8(name) else { continue };
        let plain = Path::new(name).components().all(|c| matches!(c, std::path::Component::Normal(_)));
        if !plain || name.len() > 64 || name.contains('\0') {
            continue;
        }
        let path = source.join(name);
        let _ = path.parent().map(fs::create_dir_all);
        let _ = fs::write(path, bytes);
    }
    let kinds = [Kind::Laser1, Kind::Laser2, Kind::Laser3, Kind::SentenceTransformer];
    let kind = kinds.get(usize::from(kind)).copied();
    let table = [Table::F32, Table::F16, Table::I8][usize::from(table) % 3];
    if import(&source, kind, &out, &Options { table, ..Options::default() }).is_ok() {
        let _ = laser_encoder::verify(&out);
    }
}));
