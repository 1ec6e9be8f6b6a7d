//! The tokens before the learnt ones.

/// Tokens before the learnt ones, in the order of their ids.
pub const SPECIAL: [&str; 4] = ["<pad>", "<unk>", "<s>", "</s>"];

/// Stands for a hidden token, in tokenizers for transformers; behind the learnt ones.
pub const MASK: &str = "<mask>";

/// Name of the token of a byte.
#[must_use]
pub fn byte_token(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}
