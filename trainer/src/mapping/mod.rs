//! Models from models without training: orthogonal mappings between spaces, weighted averages, word
//! vectors as a model.

pub mod append;
pub mod procrustes;
pub mod sif;
pub mod vectors;
