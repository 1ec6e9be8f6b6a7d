//! What a text is to a model.

/// What a text is to a model that embeds queries and passages differently (E5, BGE and others put a prefix
/// before the one, the other, or both). To other models it makes no difference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Neither: it is embedded as it is.
    #[default]
    Plain = 0,
    /// What is searched for.
    Query = 1,
    /// What is searched in.
    Passage = 2,
    /// One of the two, and nobody knows which: a model that tells them apart refuses it.
    Undecided = 3,
}

impl Role {
    /// The role with this number in a frame.
    pub fn from_u8(role: u8) -> Option<Self> {
        [Self::Plain, Self::Query, Self::Passage, Self::Undecided]
            .into_iter()
            .find(|known| *known as u8 == role)
    }
}
