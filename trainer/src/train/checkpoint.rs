//! Checkpoints to resume from, and model folders.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use laser_model::base;
use laser_model::folder::{Weights, read_config};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::TrainError;
use super::progress::Progress;
use crate::models::{Model, Parameter, Parameters};
use crate::optim::Optimizer;

/// Name of the checkpoint in the output folder.
pub const FILE: &str = "checkpoint.safetensors";

/// Writes `bytes` through a temporary file, so that `path` holds the old or the new contents
/// whatever happens.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let temporary = path.with_extension("tmp");
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|e| TrainError::io(path, e))
}

fn bad(path: &Path, message: impl std::fmt::Display) -> TrainError {
    TrainError::Checkpoint {
        path: path.display().to_string(),
        message: message.to_string(),
    }
}

/// Parameters of a run with their optimiser, whose names in the checkpoint begin with a prefix.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// What names of tensors and counts begin with in the checkpoint; empty for a run of one part.
    pub prefix: &'a str,
    /// Values that are saved, frozen ones excepted.
    pub parameters: &'a Parameters,
    /// Moments of these parameters, and the number of updates.
    pub optimizer: &'a Optimizer,
}

/// Saves a run; tensors that are frozen are not in it.
///
/// # Errors
/// [`TrainError::Io`].
pub fn save(folder: &Path, parts: &[Part<'_>], progress: &Progress) -> Result<(), TrainError> {
    let path = folder.join(FILE);
    let mut views = Vec::new();
    let progress = serde_json::to_string(progress).map_err(|e| bad(&path, e))?;
    let mut metadata = HashMap::from([("progress".to_string(), progress)]);
    for part in parts {
        let Part {
            prefix,
            parameters,
            optimizer,
        } = part;
        let list = &parameters.list()[parameters.frozen()..];
        let values = list
            .iter()
            .map(|p| (p.name.clone(), p.shape.clone(), &p.value[..]));
        let state = optimizer.state(parameters).into_iter();
        let state = state.map(|(name, values)| (name, vec![values.len()], values));
        for (name, shape, values) in values.chain(state) {
            let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values));
            views.push((format!("{prefix}{name}"), view.map_err(|e| bad(&path, e))?));
        }
        let steps = optimizer.steps().to_string();
        metadata.insert(format!("{prefix}{STEPS}"), steps);
    }
    let bytes = safetensors::serialize(views, Some(metadata)).map_err(|e| bad(&path, e))?;
    replace(&path, &bytes)
}

/// Name of the number of an optimiser's updates.
const STEPS: &str = "optimizer_steps";

fn floats(tensor: &TensorView<'_>) -> Result<Vec<f32>, String> {
    if tensor.dtype() != Dtype::F32 {
        return Err(format!("holds {:?} where f32 is needed", tensor.dtype()));
    }
    let words = tensor.data().chunks_exact(4);
    Ok(words
        .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]))
        .collect())
}

/// A checkpoint that [`save`] wrote.
pub struct Checkpoint {
    path: PathBuf,
    bytes: Vec<u8>,
    metadata: HashMap<String, String>,
    progress: Progress,
}

impl Checkpoint {
    /// Reads the checkpoint of a run's folder.
    ///
    /// # Errors
    /// [`TrainError::Io`] if there is none, [`TrainError::Checkpoint`] if it is damaged.
    pub fn read(folder: &Path) -> Result<Self, TrainError> {
        let path = folder.join(FILE);
        let bytes = std::fs::read(&path).map_err(|e| TrainError::io(&path, e))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| bad(&path, e))?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let progress = metadata
            .get("progress")
            .ok_or_else(|| bad(&path, "\"progress\" is missing"))?;
        let progress = serde_json::from_str(progress).map_err(|e| bad(&path, e))?;
        Ok(Self {
            path,
            bytes,
            metadata,
            progress,
        })
    }

    /// How far the run had come.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Restores the part of a prefix; its parameters must have been made with the same configuration, and have
    /// their frozen tensors.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if it belongs to another run.
    pub fn restore(
        &self,
        prefix: &str,
        parameters: &mut Parameters,
        optimizer: &mut Optimizer,
    ) -> Result<(), TrainError> {
        let path = &self.path;
        let name = format!("{prefix}{STEPS}");
        let steps = self.metadata.get(&name);
        let steps = steps.ok_or_else(|| bad(path, format!("\"{name}\" is missing")))?;
        let steps = steps.parse().map_err(|e| bad(path, e))?;
        let tensors = SafeTensors::deserialize(&self.bytes).map_err(|e| bad(path, e))?;
        let read = |name: &str, len: usize| -> Result<Vec<f32>, TrainError> {
            let name = format!("{prefix}{name}");
            let tensor = tensors.tensor(&name).map_err(|e| bad(path, e))?;
            let wrong = |what: String| bad(path, format!("tensor \"{name}\" {what}"));
            let values = floats(&tensor).map_err(wrong)?;
            if values.len() == len {
                Ok(values)
            } else {
                Err(wrong(format!("has {} elements, not {len}", values.len())))
            }
        };
        let frozen = parameters.frozen();
        for p in &mut parameters.list_mut()[frozen..] {
            p.value = read(&p.name, p.value.len())?;
        }
        optimizer.restore(parameters, steps, read)
    }
}

/// Copies the tensors of a model folder (or of a `.safetensors` file), of any type that model
/// folders have, into the parameters of the same name and shape. Returns their names. If the folder has
/// another tokenizer than `tokenizer`, rows of embedding tables are copied by what their tokens stand
/// for, and those of tokens that it does not have keep their random start. With `stack_layers` its layers are repeated
/// where the model has more.
///
/// # Errors
/// [`TrainError::Io`], [`TrainError::Checkpoint`] if nothing fits.
pub fn initialise_from(
    from: &Path,
    model: &mut Model,
    tokenizer: &Path,
    stack_layers: bool,
) -> Result<Vec<String>, TrainError> {
    let mut candidates: Vec<PathBuf> = vec![from.to_owned()];
    if from.is_dir() {
        candidates = [
            "model.safetensors",
            "best/model.safetensors",
            "last/model.safetensors",
            FILE,
        ]
        .iter()
        .map(|f| from.join(f))
        .collect();
    }
    let path = candidates.iter().find(|p| p.is_file()).ok_or_else(|| {
        bad(
            from,
            "no model.safetensors, best/model.safetensors or checkpoint in it",
        )
    })?;
    // A model folder may build on another one, a checkpoint does not.
    let folder = path.parent().unwrap_or(from);
    let config = read_config(folder).ok().filter(|c| c.base.is_some());
    let (weights, tokens) = match config {
        Some(config) => (
            base::weights(folder, &config).map_err(|e| bad(path, e))?,
            base::token_folder(folder, &config).map_err(|e| bad(path, e))?,
        ),
        None => (
            Weights::open(path).map_err(|e| bad(path, e))?,
            folder.to_owned(),
        ),
    };
    let layers = if stack_layers {
        let numbers = weights.shapes().filter_map(|(name, _)| layer(name));
        numbers.map(|(l, _)| l + 1).max().unwrap_or(0)
    } else {
        0
    };
    let mut used = Vec::new();
    let tables = model.parameters().sparse();
    let same = same_tokens(&tokens.join("tokenizer.json"), tokenizer)?;
    for (i, p) in model.parameters_mut().list_mut().iter_mut().enumerate() {
        if let (true, Some(same)) = (i < tables, &same) {
            let width = p.value.len() / p.shape[0];
            let old = if p.shape.len() == 1 {
                weights.vector(&p.name, same.rows)
            } else {
                weights
                    .matrix(&p.name, same.rows, width)
                    .map(|matrix| matrix.to_f32())
            };
            if let Ok(old) = old {
                for (to, from) in &same.pairs {
                    p.value[to * width..(to + 1) * width]
                        .copy_from_slice(&old[from * width..(from + 1) * width]);
                }
                used.push(format!("{} ({} rows)", p.name, same.pairs.len()));
            }
            continue;
        }
        let name = match layers {
            0 => p.name.clone(),
            layers => stacked(&p.name, layers),
        };
        let values = match p.shape[..] {
            [length] => weights.vector(&name, length),
            [rows, columns] => weights
                .matrix(&name, rows, columns)
                .map(|matrix| matrix.to_f32()),
            _ => continue,
        };
        // A tensor that is missing or of another shape keeps its random start.
        if let Ok(values) = values {
            p.value = values;
            used.push(p.name.clone());
        }
    }
    if used.is_empty() {
        return Err(bad(
            path,
            "no tensor has the name, shape and type of a parameter",
        ));
    }
    Ok(used)
}

/// Number of the layer of a tensor `layers.{l}.rest`, and the rest of its name.
fn layer(name: &str) -> Option<(usize, &str)> {
    let (number, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// The tensor of a model with `layers` layers that a tensor of a deeper one starts as.
fn stacked(name: &str, layers: usize) -> String {
    match layer(name) {
        Some((l, rest)) => format!("layers.{}.{rest}", l % layers),
        None => name.to_owned(),
    }
}

/// Ids, new and old, of the tokens that two tokenizers have in common.
struct SameTokens {
    /// Number of ids of the old one.
    rows: usize,
    pairs: Vec<(usize, usize)>,
}

/// `None` if there is no old tokenizer or it is the same one.
fn same_tokens(old: &Path, new: &Path) -> Result<Option<SameTokens>, TrainError> {
    if !old.is_file() || std::fs::read(old).ok() == std::fs::read(new).ok() {
        return Ok(None);
    }
    let names = crate::tokenizer::token_names(old)?;
    let ids: HashMap<&str, usize> = names.iter().map(String::as_str).zip(0..).collect();
    let pairs = crate::tokenizer::token_names(new)?
        .iter()
        .enumerate()
        .filter(|(_, name)| !name.is_empty())
        .filter_map(|(id, name)| Some((id, *ids.get(name.as_str())?)))
        .collect();
    Ok(Some(SameTokens {
        rows: names.len(),
        pairs,
    }))
}

/// Writes a model folder: `config.json`, `tokenizer.json` and f32 `model.safetensors`. `values`
/// replaces the parameters' own (averaged weights).
///
/// # Errors
/// [`TrainError::Io`].
pub fn write_model(
    folder: &Path,
    model: &Model,
    values: Option<&[Vec<f32>]>,
    tokenizer: &Path,
) -> Result<(), TrainError> {
    std::fs::create_dir_all(folder).map_err(|e| TrainError::io(folder, e))?;
    let path = folder.join("model.safetensors");
    let mut views = BTreeMap::new();
    for (i, Parameter { name, shape, value }) in model.encoder_parameters().iter().enumerate() {
        let value = values
            .map(|v| &v[i])
            .filter(|v| !v.is_empty())
            .unwrap_or(value);
        let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(value));
        views.insert(name.clone(), view.map_err(|e| bad(&path, e))?);
    }
    let bytes = safetensors::serialize(views, None).map_err(|e| bad(&path, e))?;
    replace(&path, &bytes)?;
    let json = std::fs::read(tokenizer).map_err(|e| TrainError::io(tokenizer, e))?;
    replace(&folder.join("tokenizer.json"), &json)?;
    replace(
        &folder.join("config.json"),
        (model.config().to_json() + "\n").as_bytes(),
    )
}
