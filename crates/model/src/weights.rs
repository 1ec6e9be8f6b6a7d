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
use crate::files::{PIECE, map_file, open_plain};
use crate::matrix::{Kind, Matrix};

/// Tensors with a row, or an entry, for each token.
pub const PER_TOKEN: [&str; 3] = [
    "embed_tokens.weight",
    "embed_tokens.weight.scale",
    "token_weight",
];

/// A memory-mapped `model.safetensors`.
pub struct Weights {
    path: PathBuf,
    map: Arc<Mmap>,
    index: HashMap<String, Info>,
    /// Where [`PER_TOKEN`] is found instead.
    base: Option<Box<Weights>>,
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
        Self::index(path, Self::read(path, &mut || ())?)
    }

    /// The bytes of the file, in such memory; `pause` is called now and then, and may unwind.
    pub(crate) fn read(path: &Path, pause: &mut dyn FnMut()) -> Result<Mmap, ModelError> {
        let mut read = || {
            let mut file = open_plain(path)?;
            let length = usize::try_from(file.metadata()?.len()).map_err(std::io::Error::other)?;
            // A mapping has at least one byte.
            let mut map = MmapMut::map_anon(length.max(1))?;
            // With large pages a fork of this process copies a few entries instead of thousands. There
            // may be none.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            for piece in map[..length].chunks_mut(PIECE) {
                pause();
                file.read_exact(piece)?;
            }
            map.make_read_only()
        };
        read().map_err(|e| ModelError::io(path, e))
    }

    pub(crate) fn index(path: &Path, map: Mmap) -> Result<Self, ModelError> {
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
            base: None,
        })
    }

    /// The same, with the tensors that belong to tokens from `base`.
    pub(crate) fn on(mut self, base: Self) -> Result<Self, ModelError> {
        if let Some(name) = PER_TOKEN.iter().find(|name| self.contains(name)) {
            return Err(self.error(name, "it must be that of the base model alone".into()));
        }
        self.base = Some(Box::new(base));
        Ok(self)
    }

    /// The file that a tensor is in.
    fn holder(&self, name: &str) -> &Self {
        match &self.base {
            Some(base) if PER_TOKEN.contains(&name) => base,
            _ => self,
        }
    }

    /// Path of the safetensors file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.holder(name).index.contains_key(name)
    }

    fn error(&self, name: &str, message: String) -> ModelError {
        ModelError::tensor(&self.path, name, message)
    }

    fn info(&self, name: &str) -> Result<&Info, ModelError> {
        self.index
            .get(name)
            .ok_or_else(|| self.error(name, "the tensor is missing".into()))
    }

    /// Names and shapes of the tensors, those of the base included; the scales of int8 rows are none.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let theirs = self.base.iter().flat_map(|base| &base.index);
        let theirs = theirs.filter(|(name, _)| PER_TOKEN.contains(&name.as_str()));
        let listed = self.index.iter().chain(theirs);
        let tensors = listed.filter(|(name, _)| {
            let scaled = name.strip_suffix(".scale").and_then(|of| self.info_of(of));
            scaled.is_none_or(|info| info.dtype != Dtype::I8)
        });
        tensors.map(|(name, info)| (name.as_str(), &info.shape[..]))
    }

    fn info_of(&self, name: &str) -> Option<&Info> {
        self.holder(name).index.get(name)
    }

    /// Rows of a two-dimensional tensor.
    pub fn rows(&self, name: &str) -> Result<usize, ModelError> {
        let holder = self.holder(name);
        match holder.info(name)?.shape[..] {
            [rows, _] => Ok(rows),
            ref shape => {
                Err(holder.error(name, format!("expected a matrix, found shape {shape:?}")))
            }
        }
    }

    /// A matrix of `rows` x `columns`, without copying it.
    pub fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<Matrix, ModelError> {
        let holder = self.holder(name);
        let info = holder.info(name)?;
        if info.shape != [rows, columns] {
            return Err(holder.error(
                name,
                format!(
                    "expected shape {:?}, found {:?}",
                    [rows, columns],
                    info.shape
                ),
            ));
        }
        holder.view(name, info, rows, columns)
    }

    /// A vector, converted to f32.
    pub fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>, ModelError> {
        let holder = self.holder(name);
        let info = holder.info(name)?;
        if info.shape != [length] {
            return Err(holder.error(
                name,
                format!("expected shape {:?}, found {:?}", [length], info.shape),
            ));
        }
        if info.dtype == Dtype::I8 {
            return Err(holder.error(name, "a vector cannot be of type I8".into()));
        }
        Ok(holder.view(name, info, 1, length)?.to_f32())
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
