//! The types `embedding` (`f32`) and `halfembedding` (IEEE half precision).
//!
//! The datum has the layout of pgvector's `vector` and `halfvec`, so that `sql/laser_pgvector.sql`
//! can declare them binary coercible, and what reads ours reads those ([`pgvector`]). The SQL side is `sql/types.sql`; what needs no server (text
//! and wire formats, kernels, checks) is the crate `laser-vector`.
//!
//! For the other modules: [`Embedding`] and [`HalfEmbedding`] read a datum without copying it
//! where it is not toasted, [`new_embedding`] and [`new_half_embedding`] make one, and all can be
//! arguments and results of `#[pg_extern]` functions ([`OwnedEmbedding`] for results).

mod aggregates;
mod casts;
mod datum;
mod errors;
mod io;
mod operators;
mod pgvector;

// Used by the modules beside this one.
#[allow(unused_imports)]
pub use datum::{
    Embedding, HalfEmbedding, OwnedEmbedding, OwnedHalfEmbedding, Values, datum_size,
    new_embedding, new_half_embedding, new_values, write_values,
};
#[allow(unused_imports)]
pub use errors::report;
pub use pgvector::pgvector;
