//! Model folders on disk: memory-mapped weights, writing, fingerprints.
//!
//! `model.safetensors` may store every matrix as f32, bf16, f16 or as row-wise int8: tensor
//! `<name>` I8 [rows, columns] with `<name>.scale` f32 [rows], the value being `scale * int8`.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use memmap2::{Mmap, MmapMut};
use safetensors::{Dtype, SafeTensors};

use crate::base::PER_TOKEN;
use crate::kernels::int8;
use crate::{Config, EncoderError};

/// File name of the configuration.
pub const CONFIG: &str = "config.json";
/// File name of the tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// File name of the weights.
pub const WEIGHTS: &str = "model.safetensors";
/// File name of the dictionary of models whose text is segmented into words
/// ([`crate::config::Segmentation`]): the BLAKE3 hash of the rest, then the dictionary.
pub const DICTIONARY: &str = "dictionary.bin";

/// Largest `config.json` that is read.
const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Reads and validates `config.json` of a model folder.
pub fn read_config(folder: &Path) -> Result<Config, EncoderError> {
    let path = folder.join(CONFIG);
    let mut json = String::new();
    open_plain(&path)
        .and_then(|file| file.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut json))
        .map_err(|e| EncoderError::io(&path, e))?;
    if json.len() as u64 > MAX_CONFIG_BYTES {
        return Err(EncoderError::format(
            &path,
            "the file is too large for a configuration",
        ));
    }
    Config::from_json(&json).map_err(|e| match e {
        EncoderError::Config(message) => EncoderError::format(&path, message),
        other => other,
    })
}

/// Opens a file of a model. The folder need not be of the account that reads it, and a pipe there would
/// keep the reader waiting, a device have no end.
pub(crate) fn open_plain(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a plain file"));
    }
    Ok(file)
}

/// Maps a file read-only.
pub(crate) fn map_file(path: &Path) -> Result<Mmap, EncoderError> {
    let file = open_plain(path).map_err(|e| EncoderError::io(path, e))?;
    // SAFETY: the map is read-only. Model files are replaced by renaming (see `write`), never
    // changed in place; truncating one that is mapped would end the process with SIGBUS, which the
    // process model (an encoder process of its own) contains.
    unsafe { Mmap::map(&file) }.map_err(|e| EncoderError::io(path, e))
}

/// blake3 over the contents of configuration, tokenizer, weights and, where there is one, the
/// dictionary, each preceded by its length (u64, little endian). A model that builds on another has
/// configuration and weights alone; the former holds the fingerprint of the other ([`crate::base`]).
pub fn fingerprint(folder: &Path) -> Result<[u8; 32], EncoderError> {
    let mut hasher = blake3::Hasher::new();
    for name in [CONFIG, TOKENIZER, WEIGHTS, DICTIONARY] {
        let path = folder.join(name);
        if name == DICTIONARY && !path.exists() {
            continue;
        }
        if name == TOKENIZER
            && !path.exists()
            && read_config(folder).is_ok_and(|config| config.base.is_some())
        {
            continue;
        }
        let mut hash = || {
            let file = open_plain(&path)?;
            let length = file.metadata()?.len();
            hasher.update(&length.to_le_bytes());
            std::io::copy(&mut file.take(length), &mut hasher)
        };
        hash().map_err(|e| EncoderError::io(&path, e))?;
    }
    Ok(*hasher.finalize().as_bytes())
}

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
    pub fn open(path: &Path) -> Result<Self, EncoderError> {
        Self::index(path, map_file(path)?)
    }

    /// Copies the file into memory that cannot be written to any more.
    pub(crate) fn copy(path: &Path) -> Result<Self, EncoderError> {
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
        Self::index(path, read().map_err(|e| EncoderError::io(path, e))?)
    }

    fn index(path: &Path, map: Mmap) -> Result<Self, EncoderError> {
        let tensors = SafeTensors::deserialize(&map)
            .map_err(|e| EncoderError::format(path, e.to_string()))?;
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
    pub(crate) fn on(mut self, base: Self) -> Result<Self, EncoderError> {
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

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.holder(name).index.contains_key(name)
    }

    fn error(&self, name: &str, message: String) -> EncoderError {
        EncoderError::tensor(&self.path, name, message)
    }

    fn info(&self, name: &str) -> Result<&Info, EncoderError> {
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
    pub fn rows(&self, name: &str) -> Result<usize, EncoderError> {
        let holder = self.holder(name);
        match holder.info(name)?.shape[..] {
            [rows, _] => Ok(rows),
            ref shape => {
                Err(holder.error(name, format!("expected a matrix, found shape {shape:?}")))
            }
        }
    }

    /// A matrix of `rows` x `columns`, without copying it.
    pub fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<Matrix, EncoderError> {
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
    pub fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>, EncoderError> {
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
    ) -> Result<Matrix, EncoderError> {
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
        let source = Source::Mapped(self.map.clone(), info.range.clone());
        Ok(Matrix {
            source,
            kind,
            scale,
            rows,
            columns,
        })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    F32,
    F16,
    Bf16,
    I8,
}

enum Source {
    Mapped(Arc<Mmap>, Range<usize>),
    Owned(Vec<f32>),
}

/// A row-major matrix in a mapped file (or in memory).
pub struct Matrix {
    source: Source,
    kind: Kind,
    scale: Vec<f32>,
    rows: usize,
    columns: usize,
}

/// The elements of a [`Matrix`].
pub enum Values<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE half floats.
    F16(&'a [f16]),
    /// Brain floats.
    Bf16(&'a [bf16]),
    /// Row-wise int8.
    I8 {
        /// Elements.
        data: &'a [i8],
        /// Factor of each row.
        scale: &'a [f32],
    },
}

impl Matrix {
    /// A matrix in memory.
    pub fn from_f32(rows: usize, columns: usize, data: Vec<f32>) -> Self {
        assert_eq!(data.len(), rows * columns, "matrix [rows, columns]");
        Self {
            source: Source::Owned(data),
            kind: Kind::F32,
            scale: Vec::new(),
            rows,
            columns,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        match &self.source {
            Source::Mapped(_, range) => range.len(),
            Source::Owned(data) => std::mem::size_of_val(&data[..]),
        }
    }

    /// The elements.
    pub fn values(&self) -> Values<'_> {
        let bytes: &[u8] = match &self.source {
            Source::Mapped(map, range) => &map[range.clone()],
            Source::Owned(data) => bytemuck::cast_slice(data),
        };
        // Alignment was checked when the matrix was made.
        match self.kind {
            Kind::F32 => Values::F32(bytemuck::cast_slice(bytes)),
            Kind::F16 => Values::F16(bytemuck::cast_slice(bytes)),
            Kind::Bf16 => Values::Bf16(bytemuck::cast_slice(bytes)),
            Kind::I8 => Values::I8 {
                data: bytemuck::cast_slice(bytes),
                scale: &self.scale,
            },
        }
    }

    /// Copies row `row` as f32.
    ///
    /// # Panics
    /// If the row does not exist or `out` has another length than a row.
    pub fn row_into(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns, "row length");
        let range = row * self.columns..(row + 1) * self.columns;
        match self.values() {
            Values::F32(data) => out.copy_from_slice(&data[range]),
            Values::F16(data) => {
                out.iter_mut()
                    .zip(&data[range])
                    .for_each(|(y, x)| *y = x.to_f32());
            }
            Values::Bf16(data) => {
                out.iter_mut()
                    .zip(&data[range])
                    .for_each(|(y, x)| *y = x.to_f32());
            }
            Values::I8 { data, scale } => {
                let s = scale[row];
                out.iter_mut()
                    .zip(&data[range])
                    .for_each(|(y, x)| *y = s * f32::from(*x));
            }
        }
    }

    /// All elements as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut data = vec![0f32; self.rows * self.columns];
        for (row, out) in data.chunks_exact_mut(self.columns.max(1)).enumerate() {
            self.row_into(row, out);
        }
        data
    }
}

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    values: TensorValues,
}

/// Elements of a [`Tensor`].
#[derive(Debug, Clone, PartialEq)]
enum TensorValues {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    I8(Vec<i8>),
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

impl Tensor {
    /// 32-bit floats.
    ///
    /// # Panics
    /// If the shape does not hold as many elements.
    pub fn f32(shape: &[usize], data: Vec<f32>) -> Self {
        assert_eq!(
            shape.iter().product::<usize>(),
            data.len(),
            "elements of {shape:?}"
        );
        Self {
            shape: shape.to_vec(),
            values: TensorValues::F32(data),
        }
    }

    /// The same tensor in another floating type.
    pub fn to_f16(&self) -> Self {
        let values = self.to_vec().into_iter().map(f16::from_f32).collect();
        Self {
            shape: self.shape.clone(),
            values: TensorValues::F16(values),
        }
    }

    /// The same tensor as brain floats.
    pub fn to_bf16(&self) -> Self {
        let values = self.to_vec().into_iter().map(bf16::from_f32).collect();
        Self {
            shape: self.shape.clone(),
            values: TensorValues::Bf16(values),
        }
    }

    /// Row-wise int8: the tensor `<name>` and its `<name>.scale`. Each row's largest magnitude
    /// becomes 127.
    ///
    /// # Panics
    /// If the tensor is not a matrix.
    pub fn to_i8(&self) -> (Self, Self) {
        let [rows, columns] = self.shape[..] else {
            panic!("int8 rows need a matrix")
        };
        let data = self.to_vec();
        let mut values = Vec::with_capacity(data.len());
        let mut scales = Vec::with_capacity(rows);
        for row in data.chunks_exact(columns.max(1)) {
            let (inverse, scale) = int8::factors(int8::largest(row));
            values.extend(row.iter().map(|x| (x * inverse).round() as i8));
            scales.push(scale);
        }
        scales.resize(rows, 0.0);
        (
            Self {
                shape: self.shape.clone(),
                values: TensorValues::I8(values),
            },
            Self::f32(&[rows], scales),
        )
    }

    /// The elements as f32 (of int8 tensors: without their scale).
    pub fn to_vec(&self) -> Vec<f32> {
        match &self.values {
            TensorValues::F32(v) => v.clone(),
            TensorValues::F16(v) => v.iter().map(|x| x.to_f32()).collect(),
            TensorValues::Bf16(v) => v.iter().map(|x| x.to_f32()).collect(),
            TensorValues::I8(v) => v.iter().map(|&x| f32::from(x)).collect(),
        }
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
}

impl safetensors::View for &Tensor {
    fn dtype(&self) -> Dtype {
        match self.values {
            TensorValues::F32(_) => Dtype::F32,
            TensorValues::F16(_) => Dtype::F16,
            TensorValues::Bf16(_) => Dtype::BF16,
            TensorValues::I8(_) => Dtype::I8,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        match &self.values {
            TensorValues::F32(v) => bytemuck::cast_slice(v).into(),
            TensorValues::F16(v) => bytemuck::cast_slice(v).into(),
            TensorValues::Bf16(v) => bytemuck::cast_slice(v).into(),
            TensorValues::I8(v) => bytemuck::cast_slice(v).into(),
        }
    }

    fn data_len(&self) -> usize {
        self.data().len()
    }
}

/// Reads what [`write_dictionary`] has written.
///
/// # Errors
/// [`EncoderError::Io`], or [`EncoderError::Format`] if the file is damaged.
pub fn read_dictionary(folder: &Path) -> Result<Vec<u8>, EncoderError> {
    let path = folder.join(DICTIONARY);
    let mut bytes = std::fs::read(&path).map_err(|e| EncoderError::io(&path, e))?;
    match bytes.split_first_chunk::<{ blake3::OUT_LEN }>() {
        Some((hash, rest)) if blake3::hash(rest) == *hash => {
            bytes.drain(..blake3::OUT_LEN);
            Ok(bytes)
        }
        _ => Err(EncoderError::format(path, "the dictionary is damaged")),
    }
}

/// Writes the dictionary of a model folder, which is made if missing.
pub fn write_dictionary(folder: &Path, dictionary: &[u8]) -> Result<(), EncoderError> {
    std::fs::create_dir_all(folder).map_err(|e| EncoderError::io(folder, e))?;
    replace(&folder.join(DICTIONARY), |path| {
        std::fs::write(
            path,
            [blake3::hash(dictionary).as_bytes(), dictionary].concat(),
        )
    })
}

/// Writes a model folder (made if missing; files of the same names are replaced by renaming, the
/// configuration last) and opens it once to make sure that it can be loaded.
pub fn write(
    folder: &Path,
    config: &Config,
    tokenizer: &tokenizers::Tokenizer,
    tensors: &Tensors,
) -> Result<(), EncoderError> {
    config.validate()?;
    let json = tokenizer
        .to_string(true)
        .map_err(|e| EncoderError::Tokenizer(e.to_string()))?;
    write_parts(folder, config, &json, tensors)
}

/// As [`write`], with the tokenizer as JSON text. It is not written for a model that builds on another.
pub fn write_parts(
    folder: &Path,
    config: &Config,
    tokenizer_json: &str,
    tensors: &Tensors,
) -> Result<(), EncoderError> {
    config.validate()?;
    std::fs::create_dir_all(folder).map_err(|e| EncoderError::io(folder, e))?;
    let tensors = tensors.iter();
    replace(&folder.join(WEIGHTS), |path| {
        safetensors::serialize_to_file(tensors, None, path).map_err(|e| match e {
            safetensors::SafeTensorError::IoError(e) => e,
            other => std::io::Error::other(other.to_string()),
        })
    })?;
    let tokenizer = folder.join(TOKENIZER);
    if config.base.is_none() {
        replace(&tokenizer, |path| std::fs::write(path, tokenizer_json))?;
    } else if tokenizer.exists() {
        std::fs::remove_file(&tokenizer).map_err(|e| EncoderError::io(&tokenizer, e))?;
    }
    replace(&folder.join(CONFIG), |path| {
        std::fs::write(path, config.to_json() + "\n")
    })?;
    crate::Encoder::load(
        folder,
        &crate::LoadOptions {
            device: crate::DeviceChoice::Cpu,
            precision: crate::Precision::F32,
            threads: 1,
        },
    )?;
    Ok(())
}

/// Writes a file beside `path`, makes it durable and renames it.
fn replace(
    path: &Path,
    write: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<(), EncoderError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let result = (|| {
        // `safetensors` makes files for their owner alone; models are read by the server's account.
        let permissions = File::create(&temporary)?.metadata()?.permissions();
        write(&temporary)?;
        std::fs::set_permissions(&temporary, permissions)?;
        File::open(&temporary)?.sync_all()?;
        std::fs::rename(&temporary, path)
    })();
    result.map_err(|e| {
        let _ = std::fs::remove_file(&temporary);
        EncoderError::io(path, e)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A pipe in the place of a file would keep its reader waiting, a device would have no end.
    #[test]
    fn what_is_no_plain_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let pipe = std::process::Command::new("mkfifo")
            .arg(path.join("pipe"))
            .status();
        assert!(pipe.unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", path.join("device")).unwrap();
        let (done, all_done) = mpsc::channel();
        std::thread::spawn(move || {
            for kind in ["pipe", "device"] {
                for name in [CONFIG, TOKENIZER, WEIGHTS] {
                    let model = path.join(format!("{kind} {name}"));
                    std::fs::create_dir(&model).unwrap();
                    for other in [CONFIG, TOKENIZER, WEIGHTS]
                        .iter()
                        .filter(|other| **other != name)
                    {
                        std::fs::write(model.join(other), "{}").unwrap();
                    }
                    std::os::unix::fs::symlink(path.join(kind), model.join(name)).unwrap();
                    let error = fingerprint(&model).unwrap_err().to_string();
                    assert!(error.contains("plain file"), "{error}");
                    assert!(map_file(&model.join(name)).is_err());
                    assert!(Weights::copy(&model.join(name)).is_err());
                }
                let error = read_config(&path.join(format!("{kind} {CONFIG}"))).unwrap_err();
                assert!(error.to_string().contains("plain file"), "{error}");
            }
            done.send(()).unwrap();
        });
        all_done.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}
