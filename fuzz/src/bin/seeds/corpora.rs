//! Where seeds go, and the numbers that they are made of.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the corpora, one for each target.
pub struct Corpora(PathBuf);

impl Corpora {
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    pub fn put(&self, target: &str, name: &str, bytes: &[u8]) {
        let folder = self.0.join(target);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(format!("seed-{name}")), bytes).expect("a file");
    }
}

/// Numbers that look random and are the same every time.
pub fn numbers(seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
}
