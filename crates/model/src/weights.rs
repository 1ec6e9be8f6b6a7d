//! Memory-mapped weights.
//!
//! `model.safetensors` may store every matrix as f32, bf16, f16 or as row-wise int8: tensor
//! `<name>` I8 [rows, columns] with `<name>.scale` f32 [rows], the value being `scale * int8`.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use memmap2::{Mmap, MmapMut};
use safetensors::{Dtype, SafeTensors};

use crate::ModelError;
use crate::files::{map_file, open_plain};
use crate::matrix::{Kind, Matrix};

/// A memory-mapped `model.safetensors`.
pub struct Weights {
    path: PathBuf,
    map: Arc<Mmap>,
    index: HashMap<String, Info>,
}

struct Info {
    dtype: Dtype,
    shape: Vec<usize>,
    range: Range<usize>,
}

impl Weights {
    /// Maps the file and reads its header; tensor data is not touched.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::index(path, map_file(path)?)
    }

    /// Copies the file into memory that cannot be written to any more.
    pub fn copy(path: &Path) -> Result<Self, ModelError> {
        let read = || {
            let mut file = open_plain(path)?;
            let length = usize::try_from(file.metadata()?.len()).map_err(std::io::Error::other)?;
            // A mapping has at least one byte.
            let mut map = MmapMut::map_anon(length.max(1))?;
            // With large pages a fork of this process copies a few entries instead of thousands. There
            // may be none.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            file.read_exact(&mut map[..length])?;
            map.make_read_only()
        };
        Self::index(path, read().map_err(|e| ModelError::io(path, e))?)
    }

    fn index(path: &Path, map: Mmap) -> Result<Self, ModelError> {
        let tensors =
            SafeTensors::deserialize(&map).map_err(|e| ModelError::format(path, e.to_string()))?;
        let base = map.as_ptr() as usize;
        let index = tensors
            .iter()
            .map(|(name, view)| {
                let start = view.data().as_ptr() as usize - base;
                let info = Info {
                    dtype: view.dtype(),
                    shape: view.shape().to_vec(),
                    range: start..start + view.data().len(),
                };
                (name.to_owned(), info)
            })
            .collect();
        drop(tensors);
        Ok(Self {
            path: path.to_owned(),
            map: Arc::new(map),
            index,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    fn error(&self, name: &str, message: String) -> ModelError {
        ModelError::tensor(&self.path, name, message)
    }

    fn info(&self, name: &str) -> Result<&Info, ModelError> {
        self.index
            .get(name)
            .ok_or_else(|| self.error(name, "the tensor is missing".into()))
    }

    /// Rows of a two-dimensional tensor.
    pub fn rows(&self, name: &str) -> Result<usize, ModelError> {
        match self.info(name)?.shape[..] {
            [rows, _] => Ok(rows),
            ref shape => Err(self.error(name, format!("expected a matrix, found shape {shape:?}"))),
        }
    }

    /// A matrix of `rows` x `columns`, without copying it.
    pub fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<Matrix, ModelError> {
        let info = self.info(name)?;
        if info.shape != [rows, columns] {
            return Err(self.error(
                name,
                format!(
                    "expected shape {:?}, found {:?}",
                    [rows, columns],
                    info.shape
                ),
            ));
        }
        self.view(name, info, rows, columns)
    }

    /// A vector, converted to f32.
    pub fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>, ModelError> {
        let info = self.info(name)?;
        if info.shape != [length] {
            return Err(self.error(
                name,
                format!("expected shape {:?}, found {:?}", [length], info.shape),
            ));
        }
        if info.dtype == Dtype::I8 {
            return Err(self.error(name, "a vector cannot be of type I8".into()));
        }
        Ok(self.view(name, info, 1, length)?.to_f32())
    }

    fn view(
        &self,
        name: &str,
        info: &Info,
        rows: usize,
        columns: usize,
    ) -> Result<Matrix, ModelError> {
        let bytes = &self.map[info.range.clone()];
        let unaligned = |_| self.error(name, "its data is not aligned in the file".into());
        let (kind, scale) = match info.dtype {
            Dtype::F32 => {
                bytemuck::try_cast_slice::<u8, f32>(bytes).map_err(unaligned)?;
                (Kind::F32, Vec::new())
            }
            Dtype::F16 => {
                bytemuck::try_cast_slice::<u8, f16>(bytes).map_err(unaligned)?;
                (Kind::F16, Vec::new())
            }
            Dtype::BF16 => {
                bytemuck::try_cast_slice::<u8, bf16>(bytes).map_err(unaligned)?;
                (Kind::Bf16, Vec::new())
            }
            Dtype::I8 => (Kind::I8, self.vector(&format!("{name}.scale"), rows)?),
            other => {
                return Err(self.error(
                    name,
                    format!("type {other:?} is not supported, expected F32, F16, BF16 or I8"),
                ));
            }
        };
        let range = info.range.clone();
        Ok(Matrix::mapped(
            self.map.clone(),
            range,
            kind,
            scale,
            [rows, columns],
        ))
    }
}
