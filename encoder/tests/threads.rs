//! With one thread, an encoder starts none: it can be used where threads must not exist.
#![cfg(target_os = "linux")]

use std::path::Path;

use laser_encoder::{DeviceChoice, Encoder, LoadOptions, Precision};
use laser_import::{Options, import};

/// Threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// The only test of this program, so that no other one starts threads meanwhile.
#[test]
fn one_thread_starts_none() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::TempDir::new().unwrap();
    let before = threads();
    let [bilstm, transformer] = ["laser2", "labse"].map(|name| {
        let (source, folder) = (
            root.join("../crates/import/tests/fixtures").join(name),
            dir.path().join(name),
        );
        import(&source, None, &folder, &Options::default()).unwrap();
        folder
    });
    let texts: Vec<String> = (0..300).map(|i| format!("the {i} cats sat")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for folder in [bilstm, transformer, root.join("models/laser-mean-384")] {
        let options = LoadOptions {
            device: DeviceChoice::Cpu,
            precision: Precision::Auto,
            threads: 1,
        };
        let encoder = Encoder::load(&folder, &options).unwrap();
        encoder.encode(&texts).unwrap();
        assert_eq!(threads(), before, "{}", folder.display());
        let options = LoadOptions {
            threads: 3,
            ..options
        };
        let encoder = Encoder::load(&folder, &options).unwrap();
        assert_eq!(threads(), before + 3, "{}", folder.display());
        drop(encoder);
        // Threads of a pool that is dropped end in their own time.
        while threads() > before {
            std::thread::yield_now();
        }
    }
}
