//! Models that a session has loaded for itself: under `laser.encode_in_backend = always`, where the server
//! has not loaded the one that is asked for.
//!
//! This is for servers that can preload nothing and run no worker. Each session, and each parallel worker, loads the
//! model when it first embeds a text, and keeps it: memory and time that others do not share.
//!
//! Invariant: only models that [`LocalEncoder::suits`] are loaded, which start no thread, and whose embeddings
//! are those of the encoder process, bit by bit.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use laser_model::LocalEncoder;
use laser_model::catalog::{self, RECHECK, Stamp};
use laser_model::{ModelError, folder, installed};
use laser_protocol::ModelInfo;

use super::error::CallError;
use super::resident::{self, Resident};
use super::{guc, installation};
use crate::pg::interrupts;

/// A model, and when its files were last checked.
struct Own {
    model: Arc<Resident>,
    checked: Instant,
}

static OWN: Mutex<Vec<Own>> = Mutex::new(Vec::new());

/// The session's copy of a model (empty: its default), loaded where needed, and again when its files have
/// changed.
pub fn model(name: &str) -> Result<Arc<Resident>, CallError> {
    let folders = installation::model_folders;
    let name = match name {
        "" => catalog::default_name(&guc::configured_model(), &folders())
            .ok_or_else(installed::no_default)?,
        name => name.to_owned(),
    };
    let mut own = OWN.lock().unwrap_or_else(|e| e.into_inner());
    let at = own.iter().position(|own| own.model.name() == name);
    if let Some(at) = at
        && own[at].checked.elapsed() < RECHECK
    {
        return Ok(own[at].model.clone());
    }
    // Only where its files are to be checked: this is asked for every text.
    let folders = folders();
    let path = catalog::find(&folders, &name).ok_or_else(|| installed::unknown(&name, &folders))?;
    if let Some(at) = at {
        if own[at].model.is_of(&path) {
            own[at].checked = Instant::now();
            return Ok(own[at].model.clone());
        }
        own.remove(at);
    }
    let broken = |error: String| installed::broken(&name, &path, error, installed::REPAIR);
    let stamp = Stamp::of(&path);
    let encoder = LocalEncoder::load_with(&path, &mut interrupts::pause)
        .map_err(|e| broken(e.to_string()))?
        .ok_or_else(|| CallError::NeedsProcess(format!("model \"{name}\"")))?;
    let model = resident::new(name.clone(), stamp, encoder).map_err(broken)?;
    let model = Arc::new(model);
    own.push(Own {
        model: model.clone(),
        checked: Instant::now(),
    });
    Ok(model)
}

/// Whether an installed model is one that sessions load.
pub fn serves(name: &str) -> bool {
    catalog::find(&installation::model_folders(), name)
        .and_then(|path| folder::read_config(&path).ok())
        .is_some_and(|config| LocalEncoder::suits(&config))
}

/// The model that was loaded last, and the texts that it has embedded.
pub fn statistics() -> Option<(String, u64)> {
    let own = OWN.lock().unwrap_or_else(|e| e.into_inner());
    own.last().map(|own| own.model.statistics())
}

/// The fingerprint of a model's files, which are hashed again when they have changed: others' models may be of
/// any size.
fn fingerprint(path: &Path) -> Result<[u8; 32], ModelError> {
    static KNOWN: Mutex<Vec<(Stamp, [u8; 32])>> = Mutex::new(Vec::new());
    let stamp = Stamp::of(path);
    let known = || KNOWN.lock().unwrap_or_else(|e| e.into_inner());
    if let Some((_, hash)) = known().iter().find(|(of, _)| *of == stamp) {
        return Ok(*hash);
    }
    let hash = folder::fingerprint_with(path, &mut interrupts::pause)?;
    let mut known = known();
    known.retain(|(of, _)| of.path() != path);
    known.push((stamp, hash));
    Ok(hash)
}

/// All installed models, as the encoder process would list them if it ran.
pub fn list_models() -> Vec<ModelInfo> {
    let folders = installation::model_folders();
    let default = catalog::default_name(&guc::configured_model(), &folders);
    let own = OWN.lock().unwrap_or_else(|e| e.into_inner());
    let models = installed::list(&folders).into_iter();
    models
        .map(|(name, path)| {
            let info = installed::describe(name, &path, fingerprint);
            ModelInfo {
                loaded: own.iter().any(|own| own.model.name() == info.name),
                default: default.as_deref() == Some(&info.name),
                ..info
            }
        })
        .collect()
}
