//! Numeric code has one home: what the processor can do is asked in one place, libraries of products are called
//! from one crate, and a function of numbers is not written twice.

use std::collections::BTreeSet;

use super::files::{files, root};

/// The crate whose kernels are for everybody.
const KERNELS: &[&str] = &["crates/kernels/"];

/// What stands in some sources alone; without any, nowhere.
const HOMES: [(&str, &[&str]); 15] = [
    ("_feature_detected!", &["crates/cpu/"]),
    ("__cpuid", &[]),
    ("_xgetbv", &[]),
    // Loops that are compiled for each instruction set.
    (
        "simd! {",
        &[
            "crates/cpu/",
            "crates/kernels/",
            "crates/mining/src/tile.rs",
        ],
    ),
    ("numkong::", KERNELS),
    ("gemm::gemm", KERNELS),
    ("tilerelease", KERNELS),
    ("_dpbf16_ps(", KERNELS),
    ("fn exp(", KERNELS),
    ("fn sigmoid(", KERNELS),
    ("fn tanh(", KERNELS),
    ("fn erf(", KERNELS),
    ("fn gelu(", KERNELS),
    ("fn softmax(", KERNELS),
    ("fn layer_norm(", KERNELS),
];

#[test]
fn numeric_code_has_one_home() {
    let (mut used, mut elsewhere) = (BTreeSet::new(), Vec::new());
    for path in files() {
        if !path.ends_with(".rs") || !path.contains("/src/") {
            continue;
        }
        let text = std::fs::read_to_string(root().join(&path)).expect("a source");
        for (code, homes) in HOMES {
            if !text.contains(code) {
                continue;
            }
            match homes.iter().find(|home| path.starts_with(**home)) {
                Some(home) => _ = used.insert((code, *home)),
                None => elsewhere.push(format!("{path}: {code}")),
            }
        }
    }
    assert!(elsewhere.is_empty(), "beside their home: {elsewhere:#?}");
    for (code, homes) in HOMES {
        for home in homes {
            assert!(used.contains(&(code, *home)), "{code} is not in {home}");
        }
    }
}
