//! Which texts a session embeds itself: with the model that the server has loaded ([`resident`]), or with
//! copies of its own ([`own`]). Others go to the encoder process.

use std::sync::Arc;

use laser_model::{catalog, folder};

use super::error::CallError;
use super::guc::{self, InBackend};
use super::resident::{self, Resident};
use super::{installation, own};

/// The model by which the session embeds for this name (empty: its default) itself; `None` where it asks the
/// encoder process.
pub fn serving(name: &str) -> Result<Option<Arc<Resident>>, CallError> {
    match resident::serving(name) {
        Some(resident) => Ok(Some(resident.clone())),
        None if guc::in_backend() == InBackend::Always => own::model(name).map(Some),
        None => Ok(None),
    }
}

/// Whether the session embeds for this model itself, or would.
pub fn serves(name: &str) -> bool {
    resident::serving(name).is_some() || guc::in_backend() == InBackend::Always && own::serves(name)
}

/// Whether the session's model is one that sessions run themselves.
pub fn is_resident() -> bool {
    guc::in_backend() == InBackend::Always || resident::serving(&guc::model()).is_some()
}

/// Name of the model that the session's texts are embedded with where no other is named, as far as the
/// settings and folders tell: the encoder process is not asked.
pub fn session_model() -> Option<String> {
    let model = guc::model();
    if !model.is_empty() {
        return Some(model);
    }
    if let Some(resident) = resident::serving("") {
        return Some(resident.name().to_owned());
    }
    catalog::default_name(&guc::configured_model(), &installation::model_folders())
}

/// Whether the session's model embeds queries and passages differently, as far as its configuration can be
/// read: whoever embeds reads it again.
pub fn tells_queries_from_passages() -> bool {
    session_model()
        .and_then(|name| catalog::find(&installation::model_folders(), &name))
        .and_then(|path| folder::read_config(&path).ok())
        .is_some_and(|config| config.prefixes.differ())
}

/// The model that the server has loaded, whether or not it serves, with the texts it has embedded in all
/// sessions. Where there is none, the last that the session has loaded for itself.
pub fn statistics() -> Option<(String, u64)> {
    resident::statistics().or_else(own::statistics)
}
