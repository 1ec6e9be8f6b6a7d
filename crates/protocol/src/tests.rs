//! What is written is read again, and nothing else is.

use proptest::prelude::*;

use crate::request::EMBED;
use crate::{
    ErrorCode, Failure, FrameBuffer, MAX_TEXT_BYTES, MAX_TEXTS, ModelInfo, ProtocolError, Reply,
    Request, Role, Search, Status, decode_reply, decode_request, encode_embed_request,
    encode_reply, encode_request, valid_model_name,
};

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        any::<u16>().prop_map(|version| Request::Hello { version }),
        any::<u64>().prop_map(|id| Request::Ping { id }),
        any::<u64>().prop_map(|id| Request::Models { id }),
        any::<u64>().prop_map(|id| Request::Status { id }),
        (any::<u64>(), "[a-z0-9._-]{0,63}").prop_map(|(id, model)| Request::Describe { id, model }),
        (
            any::<u64>(),
            "[a-z0-9._-]{0,63}",
            proptest::collection::vec(".{0,40}", 0..20),
            0u8..=3,
        )
            .prop_map(|(id, model, texts, role)| Request::Embed {
                id,
                model,
                texts,
                role: Role::from_u8(role).unwrap(),
            }),
        (
            any::<u64>(),
            "[a-z0-9._-]{0,63}",
            ".{0,40}",
            proptest::collection::vec(".{0,40}", 0..20),
        )
            .prop_map(|(id, model, query, texts)| Request::Rerank {
                id,
                model,
                query,
                texts,
            }),
        any::<(u64, u32, u32, bool, u64, u64, u64, u32)>().prop_map(|a| Request::Search {
            id: a.0,
            search: Search {
                dimensions: a.1,
                k: a.2,
                backward: a.3,
                source_rows: a.4,
                target_rows: a.5,
                memory: a.6,
                threads: a.7,
            },
        }),
    ]
}

fn model() -> impl Strategy<Value = ModelInfo> {
    (
        ".{0,20}",
        any::<u32>(),
        ".{0,20}",
        any::<u32>(),
        any::<Option<[u8; 32]>>(),
        any::<(bool, bool)>(),
        ".{0,20}",
        any::<bool>(),
        (".{0,20}", ".{0,20}", ".{0,20}"),
    )
        .prop_map(
            |(name, dimensions, architecture, max_tokens, fingerprint, l, p, d, texts)| ModelInfo {
                name,
                dimensions,
                architecture,
                reranker: l.1,
                max_tokens,
                fingerprint,
                loaded: l.0,
                precision: p,
                default: d,
                query_prefix: texts.1,
                passage_prefix: texts.2,
                error: texts.0,
            },
        )
}

fn status() -> impl Strategy<Value = Status> {
    (
        any::<(u32, u32, u64, u64, u64, u64)>(),
        any::<(u64, u64, u64, u32)>(),
        proptest::collection::vec(".{0,10}", 0..4),
        ".{0,30}",
    )
        .prop_map(|(a, b, loaded, text)| Status {
            pid: a.0,
            device: text.clone(),
            default_model: text.chars().rev().collect(),
            loaded,
            memory: a.2,
            sessions: a.1,
            queued: a.3,
            queue_limit: a.4,
            batches: a.5,
            sentences: b.0,
            tokens: b.1,
            sentences_per_second: f64::from(b.3),
            restarts: b.2,
            uptime_ms: a.2 ^ b.0,
            last_error: text,
        })
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        any::<(u16, u32)>().prop_map(|(version, pid)| Reply::Hello { version, pid }),
        any::<u64>().prop_map(|id| Reply::Pong { id }),
        (any::<u64>(), any::<[u8; 32]>(), 0usize..8, 0usize..8).prop_flat_map(
            |(id, fingerprint, rows, dims)| {
                (
                    proptest::collection::vec(-1e3f32..1e3, rows * dims),
                    proptest::collection::vec(any::<bool>(), rows),
                )
                    .prop_map(move |(data, truncated)| Reply::Embeddings {
                        id,
                        fingerprint,
                        dimensions: dims as u32,
                        data,
                        truncated,
                    })
            }
        ),
        (any::<u64>(), proptest::collection::vec(model(), 0..5))
            .prop_map(|(id, models)| Reply::Models { id, models }),
        (any::<u64>(), status()).prop_map(|(id, status)| Reply::Status {
            id,
            status: Box::new(status)
        }),
        (any::<u64>(), ".{0,30}").prop_map(|(id, device)| Reply::Ready { id, device }),
        any::<(u64, u64, u64)>().prop_map(|(id, done, total)| Reply::Progress { id, done, total }),
        any::<u64>().prop_map(|id| Reply::Found { id }),
        (any::<u64>(), 1u16..=9, ".{0,30}", ".{0,30}").prop_map(|(id, code, message, hint)| {
            Reply::Error {
                id,
                failure: Failure {
                    code: ErrorCode::from_u16(code).unwrap(),
                    message,
                    hint,
                },
            }
        }),
    ]
}

proptest! {
    #[test]
    fn requests_survive_the_wire(messages in proptest::collection::vec(request(), 1..6),
                                 step in 1usize..64) {
        let mut bytes = Vec::new();
        for message in &messages {
            encode_request(message, &mut bytes);
        }
        let mut buffer = FrameBuffer::new();
        let mut seen = Vec::new();
        for piece in bytes.chunks(step) {
            buffer.push(piece);
            while let Some(frame) = buffer.next_frame().unwrap() {
                seen.push(decode_request(frame).unwrap());
            }
        }
        prop_assert_eq!(seen, messages);
    }

    #[test]
    fn replies_survive_the_wire(message in reply()) {
        let mut bytes = Vec::new();
        encode_reply(&message, &mut bytes);
        let mut buffer = FrameBuffer::new();
        buffer.push(&bytes);
        let seen = decode_reply(buffer.next_frame().unwrap().unwrap()).unwrap();
        prop_assert_eq!(seen, message);
        prop_assert!(buffer.is_empty());
    }

    #[test]
    fn every_cut_message_is_an_error(message in reply(), at in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        encode_reply(&message, &mut bytes);
        let payload = &bytes[4..];
        prop_assert!(decode_reply(&payload[..at.index(payload.len())]).is_err());
    }

    #[test]
    fn hostile_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
                                 kind in prop_oneof![1u8..=8, 65u8..=73, any::<u8>()]) {
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        let _ = decode_request(&bytes);
        let _ = decode_reply(&bytes);
        let mut buffer = FrameBuffer::new();
        buffer.push(&bytes);
        while let Ok(Some(frame)) = buffer.next_frame() {
            let _ = decode_request(frame);
            let _ = decode_reply(frame);
        }
    }

    #[test]
    fn a_flipped_byte_never_panics(message in request(), at in any::<prop::sample::Index>(),
                                   value in any::<u8>()) {
        let mut bytes = Vec::new();
        encode_request(&message, &mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = value;
        let mut buffer = FrameBuffer::new();
        buffer.push(&bytes);
        while let Ok(Some(frame)) = buffer.next_frame() {
            let _ = decode_request(frame);
        }
    }
}

#[test]
fn counts_beyond_the_payload_are_refused_before_allocation() {
    let mut bytes = vec![EMBED];
    bytes.extend_from_slice(&7u64.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    bytes.push(Role::Plain as u8);
    bytes.extend_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        decode_request(&bytes),
        Err(ProtocolError::Truncated("texts"))
    );
}

#[test]
fn limits_are_enforced() {
    let mut bytes = Vec::new();
    let long = "x".repeat(MAX_TEXT_BYTES + 1);
    encode_embed_request(1, "m", Role::Plain, [long.as_str()].into_iter(), &mut bytes);
    assert_eq!(
        decode_request(&bytes[4..]),
        Err(ProtocolError::OutOfRange("text"))
    );
    bytes.clear();
    let texts = vec![""; MAX_TEXTS + 1];
    encode_embed_request(1, "m", Role::Plain, texts.into_iter(), &mut bytes);
    assert_eq!(
        decode_request(&bytes[4..]),
        Err(ProtocolError::OutOfRange("texts"))
    );
}

#[test]
fn model_names_are_names() {
    for good in ["a", "laser-2_v1.0", "A9", "laser@de", "laser@roa-tara"] {
        assert!(valid_model_name(good), "{good}");
    }
    for bad in [
        "",
        ".",
        "..",
        ".hidden",
        "a/b",
        "../x",
        "a b",
        "ä",
        &"x".repeat(64),
        "@",
        "@de",
        "laser@",
        "laser@..",
        "laser@../x",
        "../x@de",
        "laser@de@de",
        &format!("{}@de", "x".repeat(61)),
    ] {
        assert!(!valid_model_name(bad), "{bad}");
    }
}
