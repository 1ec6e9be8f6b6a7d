//! [`Precision`]: the arithmetic of matrix products.

/// Arithmetic of the matrix products.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floats.
    F32,
    /// Weights as brain floats.
    Bf16,
    /// Weights as row-wise int8; of transformers, those that eight bits are too few for are bf16 where
    /// the processor has a unit for it.
    I8,
    /// The fastest, as measured while loading, with a cosine to f32 of at least 0.9995 on the
    /// model's check sentences.
    #[default]
    Auto,
}

impl Precision {
    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::Auto => "auto",
        }
    }
}

impl std::str::FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(name: &str) -> Result<Self, UnknownPrecision> {
        [Self::F32, Self::Bf16, Self::I8, Self::Auto]
            .into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| UnknownPrecision(name.to_owned()))
    }
}

/// A name that is none of [`Precision::name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown precision \"{0}\"")]
pub struct UnknownPrecision(pub String);
