//! The character map of SentencePiece's normalizer, before the crate that reads it sees it.
//!
//! The map (`precompiled_charsmap`, base64) is the length of a trie in bytes, the trie, and the texts that it
//! leads to (SentencePiece, `normalizer.cc`, `Normalizer::DecodePrecompiledCharsMap`). The reader asks for as
//! much memory as the length says.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;

const KEY: &str = "precompiled_charsmap";

/// What holds a normalizer, in either form of the file.
#[derive(Deserialize)]
struct Normalizers {
    normalizer: Option<Value>,
    tokenizer: Option<Box<Normalizers>>,
}

/// Refuses a `tokenizer.json` with a map whose trie is larger than the map.
///
/// # Errors
/// A message for the user, also when the JSON cannot be read.
pub(crate) fn check(json: &[u8]) -> Result<(), String> {
    let mut file: Normalizers = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    loop {
        if let Some(normalizer) = &file.normalizer {
            check_maps(normalizer)?;
        }
        match file.tokenizer {
            Some(inner) => file = *inner,
            None => return Ok(()),
        }
    }
}

fn check_maps(normalizer: &Value) -> Result<(), String> {
    match normalizer {
        Value::Object(fields) => fields.iter().try_for_each(|(key, value)| match value {
            Value::String(map) if key == KEY => check_map(map),
            _ => check_maps(value),
        }),
        Value::Array(parts) => parts.iter().try_for_each(check_maps),
        _ => Ok(()),
    }
}

fn check_map(map: &str) -> Result<(), String> {
    let bytes = BASE64_STANDARD
        .decode(map)
        .map_err(|e| format!("{KEY}: {e}"))?;
    let (len, rest) = bytes
        .split_first_chunk::<4>()
        .ok_or_else(|| format!("{KEY} has {} bytes", bytes.len()))?;
    let len = u32::from_le_bytes(*len) as usize;
    if len == 0 || !len.is_multiple_of(4) || len > rest.len() {
        return Err(format!(
            "{KEY} names a trie of {len} bytes where {} follow",
            rest.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(len: u32, rest: &[u8]) -> Value {
        let bytes = [&len.to_le_bytes(), rest].concat();
        json!({"type": "Precompiled", KEY: BASE64_STANDARD.encode(bytes)})
    }

    #[test]
    fn a_trie_lies_within_its_map() {
        let read = |normalizer: &Value| {
            let plain = json!({"normalizer": normalizer, "model": {"vocab": [KEY]}});
            let with_ngrams = json!({"ngrams": null, "tokenizer": plain});
            let one = check(plain.to_string().as_bytes());
            assert_eq!(one, check(with_ngrams.to_string().as_bytes()));
            one
        };
        assert_eq!(read(&Value::Null), Ok(()));
        assert_eq!(read(&json!({"type": "NFC"})), Ok(()));
        for (len, rest, sound) in [
            (4, &[0; 4][..], true),
            (4, &[0; 9], true),
            (8, &[0; 4], false),
            (0, &[0; 4], false),
            (3, &[0; 4], false),
            (u32::MAX, &[0; 4], false),
            (u32::MAX - 3, &[0; 4], false),
            (1 << 31, &[], false),
        ] {
            let map = map(len, rest);
            let inside = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, map]});
            assert_eq!(read(&map).is_ok(), sound, "{len}");
            assert_eq!(read(&inside).is_ok(), sound, "{len}");
        }
        for wrong in ["", "AAAA", "AAAAA", "!"] {
            assert!(read(&json!({ KEY: wrong })).is_err(), "{wrong}");
        }
        let escaped =
            br#"{"normalizer": {"type": "Precompiled", "\u0070recompiled_charsmap": "////fw=="}}"#;
        assert!(check(escaped).is_err());
    }
}
