//! Texts to embeddings: settings, the model that sessions encode with themselves, the worker that
//! keeps the encoder process running, the client of that process, and the SQL functions on top.
//!
//! For the other modules: [`embed_texts`] embeds texts in the encoding of the database,
//! [`embed_rows`] those of an index, [`check_build`] asks whether that may be built,
//! [`embed_once`] and [`embed_pair`] those that a statement may ask for again,
//! [`Origins`] and [`refuse_two_models`] report of which model embeddings are,
//! [`describe_model`] tells a model's dimensions and fingerprint, [`session_model`] the name of the
//! one that is used where none is named, [`search`] lets the encoder
//! process search for neighbours.

mod arena;
mod client;
mod connection;
mod embed;
mod embedded;
mod error;
mod files;
mod functions;
mod guc;
mod heartbeat;
mod installation;
mod keep;
mod labels;
mod log;
mod mixing;
mod origins;
mod own;
mod privileges;
mod recent;
mod registration;
mod resident;
mod search;
mod session;
mod socket;
mod status;
mod texts;
mod transaction;
mod unnamed;
mod worker;

pub use laser_protocol::Role;

pub use embed::{
    TruncationReport, check_privilege, describe_model, embed_rows, embed_texts, model_name,
};
pub use labels::hex;
pub use mixing::{refuse_mixed_order, refuse_two_models};
pub use origins::{Origin, Origins};
pub use privileges::check_build;
pub use recent::{CachedEmbedding, Operand, embed_once, embed_pair, forget as forget_recent};
pub use search::{Files, Searched, search};
pub use session::{is_resident, session_model, tells_queries_from_passages};
pub use unnamed::embeds_by_setting;

/// Defines the settings and, with `shared_preload_libraries`, registers the worker and loads the
/// model for the sessions.
pub fn init() {
    guc::define();
    labels::init();
    registration::register_at_start();
    resident::load_at_start();
}

/// Declares that all settings below `laser.` are defined; others give an error from now on. Called
/// once all modules have defined theirs.
pub fn reserve_settings() {
    guc::reserve_prefix();
}
