//! SentencePiece models (`*.spm`, a protocol buffer; `sentencepiece_model.proto` is the
//! specification) and their conversion to `tokenizer.json`.

use std::collections::{HashMap, HashSet};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// Marks a space inside of pieces.
const SPACE: char = '\u{2581}';

/// Kind of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceType {
    /// A piece of text with a score.
    Normal,
    /// The unknown token.
    Unknown,
    /// A control token, never produced from text.
    Control,
    /// Always kept in one piece.
    UserDefined,
    /// Never produced.
    Unused,
    /// A byte, for byte fallback.
    Byte,
}

/// The parts of a SentencePiece model that segmentation needs.
#[derive(Debug)]
pub struct SentencePiece {
    /// Piece, score, kind.
    pub pieces: Vec<(String, f32, PieceType)>,
    /// Merges by score (true) or the likeliest path of a unigram model (false).
    pub is_bpe: bool,
    byte_fallback: bool,
    charsmap: Vec<u8>,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
}

/// One field of a message.
enum Field<'b> {
    Varint(u64),
    Fixed32(u32),
    Bytes(&'b [u8]),
}

/// Calls `each` with every field of a message.
fn fields<'b>(
    mut bytes: &'b [u8],
    mut each: impl FnMut(u64, Field<'b>) -> Result<(), String>,
) -> Result<(), String> {
    fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = bytes.split_first().ok_or("it is truncated")?;
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("it contains an overlong number".into())
    }
    fn take<'b>(bytes: &mut &'b [u8], n: u64) -> Result<&'b [u8], String> {
        let n = usize::try_from(n)
            .ok()
            .filter(|&n| n <= bytes.len())
            .ok_or("it is truncated")?;
        let (head, rest) = bytes.split_at(n);
        *bytes = rest;
        Ok(head)
    }
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let field = match tag & 7 {
            0 => Field::Varint(varint(&mut bytes)?),
            1 => Field::Bytes(take(&mut bytes, 8)?),
            2 => {
                let n = varint(&mut bytes)?;
                Field::Bytes(take(&mut bytes, n)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(
                take(&mut bytes, 4)?.try_into().expect("four bytes"),
            )),
            other => return Err(format!("it contains a field of unknown wire type {other}")),
        };
        each(tag >> 3, field)?;
    }
    Ok(())
}

impl SentencePiece {
    /// Parses a `ModelProto`.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut model = Self {
            pieces: Vec::new(),
            is_bpe: false,
            byte_fallback: false,
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
        };
        fields(bytes, |number, field| {
            match (number, field) {
                (1, Field::Bytes(piece)) => {
                    let (mut text, mut score, mut kind) = (String::new(), 0f32, PieceType::Normal);
                    fields(piece, |number, field| {
                        match (number, field) {
                            (1, Field::Bytes(b)) => {
                                text = String::from_utf8(b.to_vec())
                                    .map_err(|_| "a piece is not UTF-8")?;
                            }
                            (2, Field::Fixed32(bits)) => score = f32::from_bits(bits),
                            (3, Field::Varint(n)) => {
                                kind = match n {
                                    1 => PieceType::Normal,
                                    2 => PieceType::Unknown,
                                    3 => PieceType::Control,
                                    4 => PieceType::UserDefined,
                                    5 => PieceType::Unused,
                                    6 => PieceType::Byte,
                                    _ => return Err(format!("piece type {n} is not known")),
                                };
                            }
                            _ => {}
                        }
                        Ok(())
                    })?;
                    if !score.is_finite() {
                        return Err(format!("the score of piece \"{text}\" is not finite"));
                    }
                    model.pieces.push((text, score, kind));
                }
                (2, Field::Bytes(trainer)) => fields(trainer, |number, field| {
                    match (number, field) {
                        (3, Field::Varint(1)) => model.is_bpe = false,
                        (3, Field::Varint(2)) => model.is_bpe = true,
                        (3, Field::Varint(n)) => {
                            return Err(format!("model type {n} is neither unigram nor BPE"));
                        }
                        (24, Field::Varint(1)) => {
                            return Err("white space as suffix is not supported".into());
                        }
                        (35, Field::Varint(n)) => model.byte_fallback = n != 0,
                        _ => {}
                    }
                    Ok(())
                })?,
                (3, Field::Bytes(normalizer)) => fields(normalizer, |number, field| {
                    match (number, field) {
                        (2, Field::Bytes(map)) => model.charsmap = map.to_vec(),
                        (3, Field::Varint(n)) => model.add_dummy_prefix = n != 0,
                        (4, Field::Varint(n)) => model.remove_extra_whitespaces = n != 0,
                        (5, Field::Varint(0)) => {
                            return Err("spaces that are not escaped are not supported".into());
                        }
                        _ => {}
                    }
                    Ok(())
                })?,
                _ => {}
            }
            Ok(())
        })?;
        if model.pieces.is_empty() {
            return Err("it contains no pieces: it is no SentencePiece model".into());
        }
        if let Some((piece, ..)) = model
            .pieces
            .iter()
            .find(|(_, _, kind)| *kind == PieceType::UserDefined)
        {
            return Err(format!("user-defined piece \"{piece}\" is not supported"));
        }
        Ok(model)
    }

    /// A `tokenizer.json` whose ids are those of `dictionary` (piece to id, ids below `size`), and
    /// the ids from `size` on that stand for pieces the dictionary does not know: their embedding
    /// must be that of `unknown`.
    ///
    /// Pieces that text must not produce (control tokens, dictionary entries the model does not
    /// have) keep their id under a name with a space, which no normalised text contains.
    pub fn to_tokenizer(
        &self,
        dictionary: &HashMap<String, usize>,
        size: usize,
        unknown: usize,
        post_processor: Value,
    ) -> Result<(Value, usize), String> {
        let is_text = |kind| matches!(kind, PieceType::Normal | PieceType::Byte);
        let lowest = self
            .pieces
            .iter()
            .filter(|p| p.2 == PieceType::Normal)
            .map(|p| p.1)
            .fold(f32::INFINITY, f32::min);
        if !lowest.is_finite() {
            return Err("it has no ordinary pieces".into());
        }
        // Position is id.
        let mut vocabulary: Vec<Option<(String, f32)>> = vec![None; size];
        let mut names = HashSet::new();
        for (piece, score, kind) in &self.pieces {
            if !is_text(*kind) || !names.insert(piece.clone()) {
                continue;
            }
            let entry = Some((piece.clone(), *score));
            match dictionary.get(piece) {
                Some(&id) if id < size => vocabulary[id] = entry,
                Some(&id) => return Err(format!("id {id} of piece \"{piece}\" is out of range")),
                None => vocabulary.push(entry),
            }
        }
        for (piece, &id) in dictionary {
            if id < size && vocabulary[id].is_none() {
                vocabulary[id] = Some((format!("{piece} "), lowest));
            }
        }
        let vocabulary: Vec<(String, f32)> = vocabulary
            .into_iter()
            .enumerate()
            .map(|(id, entry)| entry.unwrap_or_else(|| (format!("unused {id}"), lowest)))
            .collect();
        let total = vocabulary.len();
        let split = !names
            .iter()
            .any(|piece| piece.chars().skip(1).any(|c| c == SPACE));
        let unknown_name = vocabulary[unknown].0.clone();
        let model = if self.is_bpe {
            json!({
                "type": "BPE",
                "vocab": vocabulary
                    .iter()
                    .enumerate()
                    .map(|(id, (piece, _))| (piece.clone(), Value::from(id)))
                    .collect::<serde_json::Map<_, _>>(),
                "merges": self.merges(&names),
                "unk_token": unknown_name,
                "fuse_unk": true,
                "byte_fallback": self.byte_fallback,
                "dropout": null,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
            })
        } else {
            json!({
                "type": "Unigram",
                "unk_id": unknown,
                "vocab": vocabulary,
                "byte_fallback": self.byte_fallback,
            })
        };
        let mut normalizers = Vec::new();
        if !self.charsmap.is_empty() {
            normalizers.push(json!({
                "type": "Precompiled",
                "precompiled_charsmap": BASE64_STANDARD.encode(&self.charsmap),
            }));
        }
        if self.remove_extra_whitespaces {
            for (pattern, content) in [("^ +| +$", ""), (" {2,}", " ")] {
                normalizers.push(json!({
                    "type": "Replace", "pattern": {"Regex": pattern}, "content": content,
                }));
            }
        }
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [],
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": {
                "type": "Metaspace",
                "replacement": SPACE,
                "prepend_scheme": if self.add_dummy_prefix { "always" } else { "never" },
                "split": split,
            },
            "post_processor": post_processor,
            "decoder": {
                "type": "Metaspace",
                "replacement": SPACE,
                "prepend_scheme": if self.add_dummy_prefix { "always" } else { "never" },
                "split": split,
            },
            "model": model,
        });
        Ok((tokenizer, total))
    }

    /// All pairs of pieces that make up a piece, best piece first.
    fn merges(&self, names: &HashSet<String>) -> Vec<[String; 2]> {
        let mut order: Vec<_> = self
            .pieces
            .iter()
            .filter(|p| p.2 == PieceType::Normal)
            .collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut merges = Vec::new();
        for (piece, ..) in order {
            for (at, _) in piece.char_indices().skip(1) {
                let (left, right) = piece.split_at(at);
                if names.contains(left) && names.contains(right) {
                    merges.push([left.to_owned(), right.to_owned()]);
                }
            }
        }
        merges
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SentencePiece::parse(&bytes);
        }
    }
}
