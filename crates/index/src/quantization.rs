//! Quantizations: how many bits of a component are stored.

/// How components are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Quantization {
    /// Four bytes a component.
    F32 = 0,
    /// IEEE half precision.
    F16 = 1,
    /// The upper half of an f32.
    Bf16 = 2,
    /// Twelve bits a component, eight of them in the graph.
    I8 = 3,
    /// Nine bits a component, one of them in the graph.
    B1 = 4,
}

impl Quantization {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::I8, Self::B1];

    /// The quantization with this number on the metapage.
    pub fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|q| *q as u8 == value)
    }

    /// The quantization with this [`Quantization::name`], in lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|q| q.name() == name)
    }

    /// Its name in `WITH (quantization = …)`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::B1 => "b1",
        }
    }
}
