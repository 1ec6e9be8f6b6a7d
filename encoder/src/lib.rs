//! Sentence encoders: architectures and batch inference.
//!
//! [`Encoder::load`] opens a model folder ([`laser_model`]), [`Encoder::encode`] turns texts into
//! embeddings. Nothing here knows PostgreSQL.
//!
//! ```no_run
//! use laser_encoder::{Encoder, LoadOptions};
//! let encoder = Encoder::load("models/laser-small".as_ref(), &LoadOptions::default())?;
//! let embeddings = encoder.encode(&["Where is the station?", "Wo ist der Bahnhof?"])?;
//! assert_eq!(embeddings.rows().count(), 2);
//! # Ok::<(), laser_encoder::EncoderError>(())
//! ```

mod arch;
mod batch;
mod device;
mod encoder;
mod error;
mod input;

pub use device::DeviceChoice;
pub use encoder::{Embeddings, Encoder, LoadOptions, verify};
pub use error::EncoderError;
pub use input::Purpose;
pub use laser_kernels::Precision;
pub use laser_model::{Config, Tokenized};
