//! A reader of Python pickles that builds data and executes nothing.
//!
//! The machine knows the opcodes of protocols 2 to 5 that data uses (Python's `pickletools` is the
//! specification). What a pickle would call (`GLOBAL`, `REDUCE`, `NEWOBJ`, `BUILD`) is only noted:
//! an unknown callable becomes an [`Node::Object`] with its name and arguments. Nodes live in an
//! arena and refer to each other by index, so that neither nesting nor cycles can exhaust the stack.

use std::collections::HashMap;

/// Index of a node in a [`Pickle`].
pub type Id = usize;

/// A value of a pickle; those that it consists of are named by their [`Id`]s.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// A longer integer, little-endian two's complement.
    Long(Vec<u8>),
    /// A Python `float`, 64 bits.
    Float(f64),
    /// A `str`, or a Python 2 string that is UTF-8.
    Str(String),
    /// Bytes (or a Python 2 string that is not UTF-8).
    Bytes(Vec<u8>),
    /// A list, tuple or set.
    List(Vec<Id>),
    /// A dictionary (or `OrderedDict`) in order of insertion.
    Dict(Vec<(Id, Id)>),
    /// A name, `module.attribute`.
    Global(String),
    /// A persistent id: in PyTorch files, a storage.
    Persistent(Id),
    /// The result of calling something; state set by `BUILD` and items, if any.
    Object {
        /// What would have been called.
        class: String,
        /// The node of its arguments: a tuple, as [`Node::List`].
        arguments: Id,
        /// Argument of `BUILD`.
        state: Option<Id>,
        /// Items set on it.
        items: Vec<(Id, Id)>,
    },
}

/// The values of one pickle.
#[derive(Debug, Default)]
pub struct Pickle {
    nodes: Vec<Node>,
    root: Id,
}

/// What is wrong with a pickle.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("invalid pickle at byte {at}: {message}")]
pub struct PickleError {
    /// Offset of the opcode.
    pub at: usize,
    /// What is wrong.
    pub message: String,
}

impl Pickle {
    /// Reads one pickle from the start of `bytes`; returns it and its length.
    pub fn read(bytes: &[u8]) -> Result<(Self, usize), PickleError> {
        let mut machine = Machine {
            bytes,
            at: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            copied: 0,
        };
        loop {
            let at = machine.at;
            match machine.opcode() {
                Ok(None) => {}
                Ok(Some(root)) => {
                    return Ok((
                        Self {
                            nodes: machine.nodes,
                            root,
                        },
                        machine.at,
                    ));
                }
                Err(message) => return Err(PickleError { at, message }),
            }
        }
    }

    /// The value that was pickled.
    pub fn root(&self) -> Id {
        self.root
    }

    /// The node with an id of this pickle.
    ///
    /// # Panics
    /// If there is none; [`Pickle::try_node`] is for ids from elsewhere.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id]
    }

    /// A node; `None` if the id is not below the number of nodes.
    pub fn try_node(&self, id: Id) -> Option<&Node> {
        self.nodes.get(id)
    }

    /// Keys and values of a dictionary, or of an object that items were set on, in order of insertion; `None` for
    /// other nodes.
    pub fn dict(&self, id: Id) -> Option<&[(Id, Id)]> {
        match &self.nodes[id] {
            Node::Dict(items) => Some(items),
            Node::Object { items, .. } if !items.is_empty() => Some(items),
            _ => None,
        }
    }

    /// The value of a string key in a dictionary, or of an attribute of an object.
    pub fn get(&self, id: Id, key: &str) -> Option<Id> {
        let items = match &self.nodes[id] {
            Node::Object {
                state: Some(state),
                items,
                ..
            } if items.is_empty() => match &self.nodes[*state] {
                Node::Dict(items) => items,
                _ => return None,
            },
            _ => self.dict(id)?,
        };
        items
            .iter()
            .rev()
            .find(|(k, _)| self.str(*k) == Some(key))
            .map(|(_, v)| *v)
    }

    /// A list's or tuple's items.
    pub fn list(&self, id: Id) -> Option<&[Id]> {
        match &self.nodes[id] {
            Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// The text of a string node; `None` for other nodes.
    pub fn str(&self, id: Id) -> Option<&str> {
        match &self.nodes[id] {
            Node::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The value of an integer or boolean; `None` for other nodes and for more than 64 bits.
    pub fn int(&self, id: Id) -> Option<i64> {
        match &self.nodes[id] {
            Node::Int(n) => Some(*n),
            Node::Bool(b) => Some(i64::from(*b)),
            _ => None,
        }
    }

    /// Whether a value is a true boolean or a non-zero integer.
    pub fn truth(&self, id: Id) -> Option<bool> {
        self.int(id).map(|n| n != 0)
    }
}

struct Machine<'b> {
    bytes: &'b [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    /// Stack heights at the marks.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
    /// Bytes that opcodes have copied from values that were there before.
    copied: usize,
}

/// Bytes that may be copied for each byte that was read: many times what PyTorch's files need. Without
/// a limit, a small file could name a large list again and again.
const COPIES: usize = 16;

type Step<T> = Result<T, String>;

impl Machine<'_> {
    fn take(&mut self, n: usize) -> Step<&[u8]> {
        let rest = &self.bytes[self.at..];
        if n > rest.len() {
            return Err("it ends in the middle of a value".into());
        }
        self.at += n;
        Ok(&rest[..n])
    }

    /// Counts a copy of `n` bytes.
    fn copy(&mut self, n: usize) -> Step<()> {
        self.copied = self.copied.saturating_add(n);
        if self.copied > self.at.saturating_add(256).saturating_mul(COPIES) {
            return Err("it copies the same values too often".into());
        }
        Ok(())
    }

    fn byte(&mut self) -> Step<u8> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Step<u16> {
        Ok(u16::from_le_bytes(
            self.take(2)?.try_into().expect("two bytes"),
        ))
    }

    fn u32(&mut self) -> Step<u32> {
        Ok(u32::from_le_bytes(
            self.take(4)?.try_into().expect("four bytes"),
        ))
    }

    fn u64(&mut self) -> Step<u64> {
        Ok(u64::from_le_bytes(
            self.take(8)?.try_into().expect("eight bytes"),
        ))
    }

    fn length64(&mut self) -> Step<usize> {
        usize::try_from(self.u64()?).map_err(|_| "a length is out of range".into())
    }

    fn line(&mut self) -> Step<String> {
        let rest = &self.bytes[self.at..];
        let end = rest
            .iter()
            .position(|&b| b == b'\n')
            .ok_or("a line does not end")?;
        self.at += end + 1;
        String::from_utf8(rest[..end].to_vec()).map_err(|_| "a name is not UTF-8".into())
    }

    fn push(&mut self, node: Node) {
        self.nodes.push(node);
        self.stack.push(self.nodes.len() - 1);
    }

    fn string(&mut self, n: usize) -> Step<()> {
        let text = std::str::from_utf8(self.take(n)?).map_err(|_| "a string is not UTF-8")?;
        let node = Node::Str(text.to_owned());
        self.push(node);
        Ok(())
    }

    fn raw(&mut self, n: usize) -> Step<()> {
        let bytes = self.take(n)?;
        // Python 2 wrote all its strings this way.
        let node = match std::str::from_utf8(bytes) {
            Ok(text) => Node::Str(text.to_owned()),
            Err(_) => Node::Bytes(bytes.to_vec()),
        };
        self.push(node);
        Ok(())
    }

    fn long(&mut self, n: usize) -> Step<()> {
        let bytes = self.take(n)?;
        let node = if n <= 8 {
            let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
            let mut full = [if negative { 0xff } else { 0 }; 8];
            full[..n].copy_from_slice(bytes);
            Node::Int(i64::from_le_bytes(full))
        } else {
            Node::Long(bytes.to_vec())
        };
        self.push(node);
        Ok(())
    }

    fn pop(&mut self) -> Step<Id> {
        if self.stack.len() <= self.marks.last().copied().unwrap_or(0) {
            return Err("the stack is empty".into());
        }
        Ok(self.stack.pop().expect("checked"))
    }

    fn top(&self) -> Step<Id> {
        if self.stack.len() <= self.marks.last().copied().unwrap_or(0) {
            return Err("the stack is empty".into());
        }
        Ok(self.stack[self.stack.len() - 1])
    }

    fn pop_mark(&mut self) -> Step<Vec<Id>> {
        let mark = self.marks.pop().ok_or("there is no mark")?;
        Ok(self.stack.split_off(mark))
    }

    fn pop_pairs(&mut self) -> Step<Vec<(Id, Id)>> {
        let items = self.pop_mark()?;
        if items.len() % 2 != 0 {
            return Err("a key has no value".into());
        }
        Ok(items
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1]))
            .collect())
    }

    fn set_items(&mut self, new: Vec<(Id, Id)>) -> Step<()> {
        let target = self.top()?;
        match &mut self.nodes[target] {
            Node::Dict(items) | Node::Object { items, .. } => {
                items.extend(new);
                Ok(())
            }
            _ => Err("items are set on something that is no dictionary".into()),
        }
    }

    fn append(&mut self, new: Vec<Id>) -> Step<()> {
        let target = self.top()?;
        match &mut self.nodes[target] {
            Node::List(items) => {
                items.extend(new);
                Ok(())
            }
            // A list of a foreign class.
            Node::Object { items, .. } => {
                items.extend(new.into_iter().map(|id| (id, id)));
                Ok(())
            }
            _ => Err("something is appended to what is no list".into()),
        }
    }

    fn global(&mut self, module: &str, name: &str) {
        self.push(Node::Global(format!("{module}.{name}")));
    }

    /// Notes a call. Constructors of plain containers give the containers.
    fn call(&mut self) -> Step<()> {
        let arguments = self.pop()?;
        let callable = self.pop()?;
        let Node::Global(class) = &self.nodes[callable] else {
            return Err("something that is no name is called".into());
        };
        let class = class.clone();
        let first = match &self.nodes[arguments] {
            Node::List(items) => items.first().copied(),
            _ => return Err("the arguments of a call are no tuple".into()),
        };
        let items = match first.map(|id| &self.nodes[id]) {
            Some(Node::List(items)) => size_of_val(&items[..]),
            _ => 0,
        };
        self.copy(class.len() + items)?;
        let node = match (class.as_str(), first.map(|id| &self.nodes[id])) {
            ("collections.OrderedDict", None) => Node::Dict(Vec::new()),
            ("collections.OrderedDict", Some(Node::List(pairs))) => {
                let pair = |&id: &Id| match &self.nodes[id] {
                    Node::List(pair) if pair.len() == 2 => Ok((pair[0], pair[1])),
                    _ => Err("an OrderedDict is made of something else than pairs".to_owned()),
                };
                Node::Dict(pairs.iter().map(pair).collect::<Step<_>>()?)
            }
            ("torch.Size" | "builtins.set" | "__builtin__.set", Some(Node::List(items))) => {
                Node::List(items.clone())
            }
            _ => Node::Object {
                class,
                arguments,
                state: None,
                items: Vec::new(),
            },
        };
        self.push(node);
        Ok(())
    }

    /// One opcode; the root after the last.
    fn opcode(&mut self) -> Step<Option<Id>> {
        match self.byte()? {
            b'.' => return Ok(Some(self.pop()?)),
            0x80 => {
                let protocol = self.byte()?;
                if protocol > 5 {
                    return Err(format!("protocol {protocol} is not known"));
                }
            }
            0x95 => {
                self.take(8)?;
            }
            b'(' => self.marks.push(self.stack.len()),
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.pop_mark()?;
            }
            b'2' => self.stack.push(self.top()?),
            b'N' => self.push(Node::None),
            0x88 => self.push(Node::Bool(true)),
            0x89 => self.push(Node::Bool(false)),
            b'J' => {
                let n = self.u32()?.cast_signed();
                self.push(Node::Int(i64::from(n)));
            }
            b'K' => {
                let n = self.byte()?;
                self.push(Node::Int(i64::from(n)));
            }
            b'M' => {
                let n = self.u16()?;
                self.push(Node::Int(i64::from(n)));
            }
            0x8a => {
                let n = self.byte()?;
                self.long(usize::from(n))?;
            }
            0x8b => {
                let n = self.u32()?;
                self.long(n as usize)?;
            }
            b'G' => {
                let bytes = self.take(8)?.try_into().expect("eight bytes");
                self.push(Node::Float(f64::from_be_bytes(bytes)));
            }
            b'X' => {
                let n = self.u32()?;
                self.string(n as usize)?;
            }
            0x8c => {
                let n = self.byte()?;
                self.string(usize::from(n))?;
            }
            0x8d => {
                let n = self.length64()?;
                self.string(n)?;
            }
            b'U' | b'C' => {
                let n = self.byte()?;
                self.raw(usize::from(n))?;
            }
            b'T' | b'B' => {
                let n = self.u32()?;
                self.raw(n as usize)?;
            }
            0x8e => {
                let n = self.length64()?;
                self.raw(n)?;
            }
            b')' | b']' | 0x8f => self.push(Node::List(Vec::new())),
            b'}' => self.push(Node::Dict(Vec::new())),
            b't' | b'l' | 0x91 => {
                let items = self.pop_mark()?;
                self.push(Node::List(items));
            }
            b'd' => {
                let items = self.pop_pairs()?;
                self.push(Node::Dict(items));
            }
            n @ 0x85..=0x87 => {
                let mut items = Vec::new();
                for _ in 0x84..n {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.push(Node::List(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.append(items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set_items(vec![(key, value)])?;
            }
            b'u' => {
                let items = self.pop_pairs()?;
                self.set_items(items)?;
            }
            b'q' => {
                let key = self.byte()?;
                let top = self.top()?;
                self.memo.insert(u64::from(key), top);
            }
            b'r' => {
                let key = self.u32()?;
                let top = self.top()?;
                self.memo.insert(u64::from(key), top);
            }
            0x94 => {
                let top = self.top()?;
                self.memo.insert(self.memo.len() as u64, top);
            }
            op @ (b'h' | b'j') => {
                let key = if op == b'h' {
                    u64::from(self.byte()?)
                } else {
                    u64::from(self.u32()?)
                };
                let id = *self.memo.get(&key).ok_or("a remembered value is missing")?;
                self.stack.push(id);
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(&module, &name);
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (&self.nodes[module], &self.nodes[name]) {
                    (Node::Str(module), Node::Str(name)) => {
                        let (module, name) = (module.clone(), name.clone());
                        self.copy(module.len() + name.len())?;
                        self.global(&module, &name);
                    }
                    _ => return Err("a name is no string".into()),
                }
            }
            b'R' | 0x81 => self.call()?,
            0x92 => {
                self.pop()?;
                self.call()?;
            }
            b'b' => {
                let new = self.pop()?;
                let target = self.top()?;
                // A dictionary's attributes (PyTorch's `_metadata`) are of no interest.
                if let Node::Object { state, .. } = &mut self.nodes[target] {
                    *state = Some(new);
                }
            }
            b'Q' => {
                let id = self.pop()?;
                self.push(Node::Persistent(id));
            }
            other => return Err(format!("opcode 0x{other:02x} is not known")),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_python_wrote() {
        // pickle.dumps({"a": [1, -2, 70000], "b": (None, True, 1.5), 3: 2**70}, protocol=2)
        let bytes =
            b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffJp\x11\x01\
            \x00eX\x01\x00\x00\x00bq\x03N\x88G?\xf8\x00\x00\x00\x00\x00\x00\x87q\x04K\x03\x8a\x09\
            \x00\x00\x00\x00\x00\x00\x00\x00@u.";
        let (pickle, length) = Pickle::read(bytes).unwrap();
        assert_eq!(length, bytes.len());
        let list = pickle
            .list(pickle.get(pickle.root(), "a").unwrap())
            .unwrap();
        let ints: Vec<_> = list.iter().map(|&id| pickle.int(id).unwrap()).collect();
        assert_eq!(ints, [1, -2, 70000]);
        let tuple = pickle
            .list(pickle.get(pickle.root(), "b").unwrap())
            .unwrap();
        assert_eq!(pickle.node(tuple[2]), &Node::Float(1.5));
        assert_eq!(pickle.dict(pickle.root()).unwrap().len(), 3);
    }

    #[test]
    fn calls_are_noted_and_never_made() {
        // os.system("echo"): the classic attack.
        let bytes = b"cos\nsystem\n(S'x'\ntR.";
        assert!(Pickle::read(bytes).is_err(), "text opcodes are not known");
        let bytes = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00echo\x85R.";
        let (pickle, _) = Pickle::read(bytes).unwrap();
        assert!(matches!(
            pickle.node(pickle.root()),
            Node::Object { class, .. } if class == "os.system"
        ));
    }

    #[test]
    fn small_files_do_not_become_large() {
        // A list of 20,000 items, remembered, and torch.Size of it 20,000 times.
        let mut bytes = b"\x80\x02]q\x00(".to_vec();
        bytes.extend([b'N'; 20_000]);
        bytes.extend(b"e0ctorch\nSize\nq\x01");
        for _ in 0..20_000 {
            bytes.extend(b"h\x01h\x00\x85R0");
        }
        bytes.push(b'.');
        let error = Pickle::read(&bytes).unwrap_err();
        assert!(error.message.contains("too often"), "{error}");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Pickle::read(&bytes);
        }

        #[test]
        fn arbitrary_opcodes_never_panic(
            ops in prop::collection::vec(
                prop::sample::select(&b"().0123NJKMGXUC]}tldaesuqrhjcRbQ\x80\x81\x85\x86\x87\x88\x89\
                    \x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x00\x01\x02"[..]),
                0..300,
            ),
        ) {
            let _ = Pickle::read(&ops);
        }
    }
}
