//! PyTorch checkpoints, in the zip container (since 1.6) and in the older one of back-to-back
//! pickles. Tensors are read with their storage offsets and strides; nothing is executed.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;

use super::pickle::{Id, Node, Pickle};
use super::zip;
use laser_model::ModelError;
use laser_model::folder::{Tensor, map_file};

/// First pickle of the older container.
const LEGACY_MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// Second pickle of the older container.
const LEGACY_PROTOCOL: i64 = 1001;

/// An opened checkpoint.
pub struct Checkpoint {
    path: PathBuf,
    map: Mmap,
    /// The object that was saved.
    pub pickle: Pickle,
    storages: HashMap<String, Range<usize>>,
}

#[derive(Clone, Copy)]
enum Type {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

impl Type {
    fn of(storage_class: &str) -> Option<Self> {
        Some(match storage_class.rsplit('.').next()? {
            "DoubleStorage" => Self::F64,
            "FloatStorage" => Self::F32,
            "HalfStorage" => Self::F16,
            "BFloat16Storage" => Self::Bf16,
            "LongStorage" => Self::I64,
            "IntStorage" => Self::I32,
            "ShortStorage" => Self::I16,
            "CharStorage" => Self::I8,
            "ByteStorage" => Self::U8,
            "BoolStorage" => Self::Bool,
            _ => return None,
        })
    }

    fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    fn read(self, b: &[u8]) -> f32 {
        match self {
            Self::F64 => f64::from_le_bytes(b.try_into().expect("eight bytes")) as f32,
            Self::F32 => f32::from_le_bytes(b.try_into().expect("four bytes")),
            Self::F16 => f16::from_le_bytes(b.try_into().expect("two bytes")).to_f32(),
            Self::Bf16 => bf16::from_le_bytes(b.try_into().expect("two bytes")).to_f32(),
            Self::I64 => i64::from_le_bytes(b.try_into().expect("eight bytes")) as f32,
            Self::I32 => i32::from_le_bytes(b.try_into().expect("four bytes")) as f32,
            Self::I16 => f32::from(i16::from_le_bytes(b.try_into().expect("two bytes"))),
            Self::I8 => f32::from(b[0].cast_signed()),
            Self::U8 | Self::Bool => f32::from(b[0]),
        }
    }
}

impl Checkpoint {
    /// Opens a `.pt` or `.bin` file.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let map = map_file(path)?;
        let fail = |message: String| ModelError::import(path, message);
        let (pickle, storages) = if map.starts_with(b"PK") {
            Self::read_zip(&map).map_err(fail)?
        } else {
            Self::read_legacy(&map).map_err(fail)?
        };
        Ok(Self {
            path: path.to_owned(),
            map,
            pickle,
            storages,
        })
    }

    fn read_zip(bytes: &[u8]) -> Result<(Pickle, HashMap<String, Range<usize>>), String> {
        let entries = zip::entries(bytes)?;
        let (name, range) = entries
            .iter()
            .find(|(name, _)| *name == "data.pkl" || name.ends_with("/data.pkl"))
            .ok_or("the zip archive has no \"data.pkl\": it is no PyTorch checkpoint")?;
        let root = &name[..name.len() - "data.pkl".len()];
        if let Some(order) = entries.get(&format!("{root}byteorder"))
            && !bytes[order.clone()].starts_with(b"little")
        {
            return Err("big-endian checkpoints are not supported".into());
        }
        let (pickle, _) = Pickle::read(&bytes[range.clone()]).map_err(|e| e.to_string())?;
        let data = format!("{root}data/");
        let storages = entries
            .iter()
            .filter_map(|(name, range)| Some((name.strip_prefix(&data)?.to_owned(), range.clone())))
            .collect();
        Ok((pickle, storages))
    }

    fn read_legacy(bytes: &[u8]) -> Result<(Pickle, HashMap<String, Range<usize>>), String> {
        let mut at = 0;
        let mut next = |what: &str| {
            let (pickle, length) =
                Pickle::read(&bytes[at..]).map_err(|e| format!("{what}: {e}"))?;
            at += length;
            Ok::<_, String>((pickle, at))
        };
        let foreign = "it is neither a PyTorch zip archive nor an older PyTorch checkpoint";
        let (magic, _) = next("magic number").map_err(|_| foreign)?;
        if *magic.node(magic.root()) != Node::Long(LEGACY_MAGIC.to_vec()) {
            return Err(foreign.into());
        }
        let (protocol, _) = next("protocol version")?;
        if protocol.int(protocol.root()) != Some(LEGACY_PROTOCOL) {
            return Err("its protocol version is not 1001".into());
        }
        let (system, _) = next("system information")?;
        let little = system
            .get(system.root(), "little_endian")
            .and_then(|id| system.int(id));
        if little == Some(0) {
            return Err("big-endian checkpoints are not supported".into());
        }
        let (object, _) = next("object")?;
        let (keys, mut at) = next("storage keys")?;
        let keys = keys
            .list(keys.root())
            .and_then(|list| {
                list.iter()
                    .map(|&id| keys.str(id).map(str::to_owned))
                    .collect::<Option<Vec<_>>>()
            })
            .ok_or("its storage keys are no list of strings")?;
        // The length of a storage is its number of elements; their size is in the object.
        let mut sizes = HashMap::new();
        for id in 0.. {
            match object.try_node(id) {
                None => break,
                Some(Node::Persistent(id)) => {
                    if let Ok(storage) = Storage::new(&object, *id) {
                        sizes.insert(storage.key.to_owned(), storage.kind.size());
                    }
                }
                Some(_) => {}
            }
        }
        let mut storages = HashMap::new();
        for key in keys {
            let size = *sizes
                .get(&key)
                .ok_or_else(|| format!("storage \"{key}\" is of unknown type"))?;
            let header = bytes
                .get(at..at + 8)
                .ok_or_else(|| truncated(&object, &key))?;
            let elements = u64::from_le_bytes(header.try_into().expect("eight bytes"));
            at += 8;
            let end = usize::try_from(elements)
                .ok()
                .and_then(|n| n.checked_mul(size))
                .and_then(|n| n.checked_add(at))
                .filter(|&end| end <= bytes.len())
                .ok_or_else(|| truncated(&object, &key))?;
            storages.insert(key, at..end);
            at = end;
        }
        Ok((object, storages))
    }

    /// The path that the checkpoint was opened by, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An error about this file.
    pub fn error(&self, message: impl Into<String>) -> ModelError {
        ModelError::import(&self.path, message)
    }

    /// A value inside nested dictionaries.
    pub fn find(&self, id: Id, key: &str) -> Result<Id, ModelError> {
        self.pickle
            .get(id, key)
            .ok_or_else(|| self.error(format!("key \"{key}\" is missing")))
    }

    /// The tensors of a dictionary (a state dict); other values are left out.
    pub fn tensors(&self, id: Id) -> Result<HashMap<String, Id>, ModelError> {
        let items = self
            .pickle
            .dict(id)
            .ok_or_else(|| self.error("the state dict is no dictionary"))?;
        let mut tensors = HashMap::new();
        for &(key, value) in items {
            if let (Some(key), true) = (self.pickle.str(key), self.is_tensor(value)) {
                tensors.insert(key.to_owned(), value);
            }
        }
        Ok(tensors)
    }

    fn is_tensor(&self, id: Id) -> bool {
        matches!(self.pickle.node(id), Node::Object { class, .. }
            if class.starts_with("torch._utils._rebuild_"))
    }

    /// Reads a tensor as f32.
    pub fn tensor(&self, name: &str, id: Id) -> Result<Tensor, ModelError> {
        self.read_tensor(id)
            .map_err(|message| self.error(format!("tensor \"{name}\": {message}")))
    }

    fn read_tensor(&self, mut id: Id) -> Result<Tensor, String> {
        let pickle = &self.pickle;
        let arguments = loop {
            let Node::Object {
                class, arguments, ..
            } = pickle.node(id)
            else {
                return Err("it is no tensor".into());
            };
            let arguments = pickle.list(*arguments).unwrap_or_default();
            match class.as_str() {
                "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2" => {
                    break arguments;
                }
                "torch._utils._rebuild_parameter" => {
                    let inner = *arguments.first().ok_or("a parameter has no tensor")?;
                    if inner >= id {
                        return Err("a parameter contains itself".into());
                    }
                    id = inner;
                }
                other => return Err(format!("\"{other}\" is not a supported kind of tensor")),
            }
        };
        let [storage, offset, shape, strides, ..] = arguments else {
            return Err("it has too few arguments".into());
        };
        let Node::Persistent(storage) = pickle.node(*storage) else {
            return Err("it has no storage".into());
        };
        let storage = Storage::new(pickle, *storage)?;
        let numbers = |id: Id| -> Option<Vec<usize>> {
            let list = pickle.list(id)?;
            list.iter()
                .map(|&id| usize::try_from(pickle.int(id)?).ok())
                .collect()
        };
        let offset = pickle
            .int(*offset)
            .and_then(|n| usize::try_from(n).ok())
            .and_then(|n| n.checked_add(storage.offset))
            .ok_or("its offset is no number")?;
        let shape = numbers(*shape).ok_or("its shape is no list of numbers")?;
        let strides = numbers(*strides).ok_or("its strides are no list of numbers")?;
        if shape.len() != strides.len() || shape.len() > 8 {
            return Err("its shape and strides do not fit".into());
        }
        let range = self
            .storages
            .get(storage.key)
            .ok_or_else(|| format!("its storage \"{}\" is missing", storage.key))?;
        let bytes = &self.map[range.clone()];
        let size = storage.kind.size();
        let available = bytes.len() / size;
        let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let count = count.ok_or("its shape overflows")?;
        // The element farthest from the start.
        let last = shape.iter().zip(&strides).try_fold(offset, |n, (&d, &s)| {
            n.checked_add(d.saturating_sub(1).checked_mul(s)?)
        });
        let outside = last.is_none_or(|last| last >= available);
        if count > 0 && outside || count > available {
            return Err(format!(
                "shape {shape:?} does not fit its storage of {available} elements"
            ));
        }
        let mut data = Vec::with_capacity(count);
        // Wrapping: the stride of an axis of one element may be anything.
        let mut index = vec![0usize; shape.len()];
        let mut at = offset;
        for _ in 0..count {
            data.push(storage.kind.read(&bytes[at * size..(at + 1) * size]));
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                at = at.wrapping_add(strides[axis]);
                if index[axis] < shape[axis] {
                    break;
                }
                at = at.wrapping_sub(strides[axis].wrapping_mul(shape[axis]));
                index[axis] = 0;
            }
        }
        Ok(Tensor::f32(&shape, data))
    }
}

/// What is wrong with a file that ends before or in storage `key`.
fn truncated(object: &Pickle, key: &str) -> String {
    let uses = |id: Id| -> Option<bool> {
        let Node::Object { arguments, .. } = object.node(id) else {
            return None;
        };
        let Node::Persistent(storage) = object.node(*object.list(*arguments)?.first()?) else {
            return None;
        };
        Some(Storage::new(object, *storage).ok()?.key == key)
    };
    let tensor = (0..)
        .map_while(|id| object.try_node(id))
        .filter_map(|node| match node {
            Node::Dict(items) => Some(items),
            _ => None,
        })
        .flatten()
        .find(|(_, value)| uses(*value) == Some(true))
        .and_then(|(name, _)| object.str(*name));
    let what = match tensor {
        Some(name) => format!("tensor \"{name}\""),
        None => format!("storage \"{key}\""),
    };
    format!("the file ends before the data of {what}: it is truncated, download it again")
}

/// The persistent id of a storage: ("storage", class, key, location, elements[, view]).
struct Storage<'p> {
    kind: Type,
    key: &'p str,
    /// First element of a view, in elements.
    offset: usize,
}

impl<'p> Storage<'p> {
    fn new(pickle: &'p Pickle, id: Id) -> Result<Self, String> {
        let list = pickle.list(id).unwrap_or_default();
        let [tag, class, key, ..] = list else {
            return Err("its storage has too few arguments".into());
        };
        if pickle.str(*tag) != Some("storage") {
            return Err("its persistent id is no storage".into());
        }
        let Node::Global(class) = pickle.node(*class) else {
            return Err("its storage has no type".into());
        };
        let kind = Type::of(class)
            .ok_or_else(|| format!("its storage type \"{class}\" is not supported"))?;
        let key = pickle.str(*key).ok_or("its storage key is no string")?;
        // Views: (key of the view, offset, size).
        let view = list.get(5).and_then(|&id| pickle.list(id));
        let offset = match view {
            Some(&[_, offset, _]) => pickle
                .int(offset)
                .and_then(|n| usize::try_from(n).ok())
                .ok_or("its storage view has no offset")?,
            _ => 0,
        };
        Ok(Self { kind, key, offset })
    }
}
