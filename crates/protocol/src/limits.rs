//! The version of the protocol, and how long its parts may be.

/// Version of the protocol; both ends must speak the same one. The library that a running session
/// has loaded and the encoder program on disk differ for the time of an upgrade.
pub const VERSION: u16 = 5;

/// Most texts that one embed request may carry. Sessions split larger arrays, so that one request
/// never occupies the encoder for long.
pub const MAX_TEXTS: usize = 4096;

/// Longest text in bytes that is accepted. It is far above what any model reads (the tokenizer
/// would cut it), and keeps one session from occupying the tokenizer.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// Longest model name in bytes.
pub const MAX_MODEL_NAME: usize = 63;

/// Between the name of a model that has an encoder for each language and the code of a language.
const LANGUAGE_SEPARATOR: char = '@';

/// Whether `name` may name a model: the name of a folder, or `MODEL@LANGUAGE`, the encoder for a language of a
/// model that has one for each; each of the two may be the name of a folder ([`valid_folder_name`]), and
/// together they have at most [`MAX_MODEL_NAME`] characters.
pub fn valid_model_name(name: &str) -> bool {
    let (model, language) = model_and_language(name);
    name.len() <= MAX_MODEL_NAME
        && valid_folder_name(model)
        && language.is_none_or(valid_folder_name)
}

/// The model that a name means, and the language of its encoder, if the name has one.
pub fn model_and_language(name: &str) -> (&str, Option<&str>) {
    match name.split_once(LANGUAGE_SEPARATOR) {
        Some((model, language)) => (model, Some(language)),
        None => (name, None),
    }
}

/// The name of the encoder for a language.
pub fn language_model_name(model: &str, language: &str) -> String {
    format!("{model}{LANGUAGE_SEPARATOR}{language}")
}

/// Whether `name` may be that of a folder with a model: 1 to [`MAX_MODEL_NAME`] characters of
/// `A-Z a-z 0-9 . _ -`, not starting with a dot, so that a name never leads out of the model folders.
pub fn valid_folder_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_MODEL_NAME
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Largest payload of a frame in bytes. It holds an embed reply of `MAX_TEXTS` embeddings with
/// 4,096 dimensions.
pub const MAX_FRAME: usize = 80 << 20;
