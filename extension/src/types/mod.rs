//! The types `embedding` and `halfembedding`.
