//! What the fuzz targets share.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::OnceLock;

pub mod seal;

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// libFuzzer's hook ends the process at every panic. Some libraries assert what a hostile file can
/// make untrue, and laser catches that; only a panic that reaches the caller is a finding.
pub fn init() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        LAST_PANIC.with(|last| *last.borrow_mut() = text);
    }));
}

/// Runs a target; a panic that laser has not caught ends the process with its message.
pub fn run(target: impl FnOnce()) {
    let end = |_: Box<dyn Any + Send>| {
        LAST_PANIC.with(|last| eprintln!("{}", last.borrow()));
        std::process::abort();
    };
    catch_unwind(AssertUnwindSafe(target)).unwrap_or_else(end);
}

/// A folder for files of this process.
pub fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("laser-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        path
    })
}

/// Takes a part with its length (`u32`, little-endian) in front; what is there if it is cut off.
pub fn part<'a>(data: &mut &'a [u8]) -> &'a [u8] {
    let Some((len, rest)) = data.split_first_chunk::<4>() else {
        return std::mem::take(data);
    };
    let len = (u32::from_le_bytes(*len) as usize).min(rest.len());
    let (part, rest) = rest.split_at(len);
    *data = rest;
    part
}

/// Appends a part for [`part`].
pub fn push_part(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&(part.len() as u32).to_le_bytes());
    out.extend_from_slice(part);
}

/// Stands for the fingerprint of the base in the configuration of a model.
pub const HASH: &str = "HASH";

/// Texts that a model or tokenizer is tried on.
pub const TEXTS: [&str; 6] = [
    "",
    "Where is the station?",
    "Größe  e\u{301}\u{200b}\t\n",
    "你好 мир ﷺ \u{1f600}",
    "a",
    "\0\u{ffff} <s></s>[CLS]@@ ▁",
];
