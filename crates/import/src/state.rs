//! The tensors of a folder as transformers writes it.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use crate::files::read;
use crate::torch::Checkpoint;
use laser_model::ModelError;
use laser_model::folder::Tensor;

/// Tensors by their original names, whichever file they are in.
pub(super) enum State {
    SafeTensors(PathBuf, Vec<u8>),
    Torch(Checkpoint, std::collections::HashMap<String, usize>),
}

impl State {
    /// `model.safetensors` or `pytorch_model.bin` of a folder.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("model.safetensors");
        if path.exists() {
            let bytes = read(&path)?;
            SafeTensors::deserialize(&bytes)
                .map_err(|e| ModelError::import(&path, e.to_string()))?;
            return Ok(Self::SafeTensors(path, bytes));
        }
        let path = folder.join("pytorch_model.bin");
        if !path.exists() {
            return Err(ModelError::import(
                folder,
                "there is neither \"model.safetensors\" nor \"pytorch_model.bin\"",
            ));
        }
        let checkpoint = Checkpoint::open(&path)?;
        let tensors = checkpoint.tensors(checkpoint.pickle.root())?;
        Ok(Self::Torch(checkpoint, tensors))
    }

    pub fn path(&self) -> &Path {
        match self {
            Self::SafeTensors(path, _) => path,
            Self::Torch(checkpoint, _) => checkpoint.path(),
        }
    }

    pub fn error(&self, message: String) -> ModelError {
        ModelError::import(self.path(), message)
    }

    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::SafeTensors(_, bytes) => {
                SafeTensors::deserialize(bytes).is_ok_and(|t| t.tensor(name).is_ok())
            }
            Self::Torch(_, tensors) => tensors.contains_key(name),
        }
    }

    /// A tensor of the shape given.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let missing = || self.error(format!("tensor \"{name}\" is missing"));
        let tensor = match self {
            Self::SafeTensors(_, bytes) => {
                let tensors =
                    SafeTensors::deserialize(bytes).map_err(|e| self.error(e.to_string()))?;
                let view = tensors.tensor(name).map_err(|_| missing())?;
                let data = view.data();
                let values: Vec<f32> = match view.dtype() {
                    safetensors::Dtype::F32 => data
                        .chunks_exact(4)
                        .map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")))
                        .collect(),
                    safetensors::Dtype::F16 => data
                        .chunks_exact(2)
                        .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                        .collect(),
                    safetensors::Dtype::BF16 => data
                        .chunks_exact(2)
                        .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
                        .collect(),
                    other => {
                        return Err(self.error(format!("tensor \"{name}\" is of type {other:?}")));
                    }
                };
                Tensor::f32(view.shape(), values)
            }
            Self::Torch(checkpoint, tensors) => {
                checkpoint.tensor(name, *tensors.get(name).ok_or_else(missing)?)?
            }
        };
        if tensor.shape() != shape {
            return Err(self.error(format!(
                "tensor \"{name}\": expected shape {shape:?}, found {:?}",
                tensor.shape()
            )));
        }
        Ok(tensor)
    }
}
