//! Texts to embeddings: settings, the model that sessions encode with themselves, the worker that
//! keeps the encoder process running, the client of that process, and the SQL functions on top.
//!
//! For the other modules: [`embed_texts`] embeds texts in the encoding of the database,
//! [`embed_rows`] those of an index, [`check_parameter`] and [`check_default`] ask whether that may have its model,
//! [`embed_once`] and [`embed_pair`] those that a statement may ask for again,
//! [`Origins`] and [`refuse_two_models`] report of which model embeddings are,
//! [`describe_model`] tells a model's dimensions and fingerprint, [`check_installed`] whether it is there, [`session_model`] the name of the
//! one that is used where none is named, [`search`] lets the encoder
//! process search for neighbours.
//!
//! ```text
//!  functions      laser_embed, laser_rerank
//!  texts          their arrays
//!  embed          texts to embeddings, in the session or in the encoder process; limits of length
//!  embedded       the result, error the failures
//!  recent         embeddings of the running statement, which others in it ask for again
//!  session        whether the session embeds for a model itself
//!  resident       ... with the model that the postmaster has loaded
//!  arena          ... and the memory that is in
//!  own            ... with models that it has loaded for itself
//!  client         the encoder process as a session calls it: one connection, kept between calls
//!  connection     frames in both directions, waits that a cancel ends
//!  socket         the process's socket
//!  search         searches for neighbours in the process
//!  worker         the background worker that starts the process, watches it and ends it
//!  registration   how the postmaster gets to know the worker
//!  heartbeat      whether the process hangs
//!  files          what worker and sessions share: socket, locks, the worker's state
//!  status         laser_models, laser_encoder_status
//!  guc            settings
//!  installation   where the program and the models are
//!  log            lines of the server's log
//!  privileges     who may embed with a model
//!  labels         security labels: the model of a column
//!  origins        of which model the embeddings of an expression are
//!  mixing         refuses distances between those of two models
//!  named_late     ... also where a model is named when the plan runs
//!  unnamed        expressions whose model is that of whoever evaluates them
//!  keep           the trigger of laser_keep_embedded
//!  transaction    what laser_embed_table needs to know of its transactions
//! ```
//!
//! # From the postmaster to a session
//!
//! ```text
//!  postmaster, preloading   load_at_start: the default model, if it is cheap
//!      |                      weights        an anonymous mapping, read-only once filled
//!      |                      vocabularies   in the arena, apart from the heap
//!      |                      cache of words, count of texts   shared mappings of atomic numbers
//!      | fork                 sessions read the same pages; nobody loads again, nobody writes but to the atomics
//!      v
//!  session                  resident::serving: is it still what the process would use? the session's own answer
//!      |                    own::model, under laser.encode_in_backend = always: loaded for this session alone
//!      | socket             client: all other models, and all of them once settings or files have changed
//!      v
//!  encoder process          child of the worker, not of the session; loads models for itself, and again
//! ```
//!
//! Whoever has loaded a model owns it until it ends. Without preloading there is no resident model: sessions go to the
//! process, or load for themselves. ARCHITECTURE.md, "Whose memory a model is in", has who reads and writes each part,
//! [`resident`] the invariants.

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
mod named_late;
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
    TruncationReport, check_installed, check_privilege, describe_model, embed_rows, embed_texts,
    model_name,
};
pub use guc::model_changes;
pub use labels::hex;
pub use mixing::{refuse_mixed_order, refuse_two_models};
pub use origins::{Origin, Origins};
pub use privileges::{check_default, check_parameter};
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
