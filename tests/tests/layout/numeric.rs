//! Numeric code has one home: what the processor can do is asked in one place, libraries of products are called
//! from one crate, and a function of numbers is not written twice.

use super::files::{files, root};

/// What stands in the sources of one folder alone; without a folder, nowhere.
const HOMES: [(&str, Option<&str>); 14] = [
    ("_feature_detected!", Some("crates/cpu/")),
    ("__cpuid", None),
    ("_xgetbv", None),
    ("numkong::", Some("crates/kernels/")),
    ("gemm::gemm", Some("crates/kernels/")),
    ("tilerelease", Some("crates/kernels/")),
    ("_dpbf16_ps(", Some("crates/kernels/")),
    ("fn exp(", Some("crates/kernels/")),
    ("fn sigmoid(", Some("crates/kernels/")),
    ("fn tanh(", Some("crates/kernels/")),
    ("fn erf(", Some("crates/kernels/")),
    ("fn gelu(", Some("crates/kernels/")),
    ("fn softmax(", Some("crates/kernels/")),
    ("fn layer_norm(", Some("crates/kernels/")),
];

#[test]
fn numeric_code_has_one_home() {
    let (mut at_home, mut elsewhere) = ([false; HOMES.len()], Vec::new());
    for path in files() {
        if !path.ends_with(".rs") || !path.contains("/src/") {
            continue;
        }
        let text = std::fs::read_to_string(root().join(&path)).expect("a source");
        for (at, (code, home)) in HOMES.iter().enumerate() {
            if !text.contains(code) {
                continue;
            }
            match home.is_some_and(|home| path.starts_with(home)) {
                true => at_home[at] = true,
                false => elsewhere.push(format!("{path}: {code}")),
            }
        }
    }
    assert!(elsewhere.is_empty(), "beside their home: {elsewhere:#?}");
    for ((code, home), at_home) in HOMES.iter().zip(at_home) {
        assert_eq!(home.is_some(), at_home, "{code} is not at home");
    }
}
