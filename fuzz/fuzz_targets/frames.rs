//! Bytes on the socket, in both directions: what is read is written back the same.
#![no_main]

use laser_protocol::{
    FrameBuffer, MAX_TEXT_BYTES, MAX_TEXTS, Request, decode_reply, decode_request, encode_reply,
    encode_request,
};
use libfuzzer_sys::fuzz_target;

// Byte 0: how large the pieces are in which the rest, a stream of frames, arrives.
fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let Some((&piece, stream)) = data.split_first() else { return };
    let mut buffer = FrameBuffer::new();
    let mut out = Vec::new();
    for bytes in stream.chunks(usize::from(piece) + 1) {
        buffer.push(bytes);
        assert!(buffer.len() <= stream.len());
        loop {
            let frame = match buffer.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(_) => return,
            };
            if let Ok(request) = decode_request(frame) {
                if let Request::Embed { texts, .. } = &request {
                    assert!(texts.len() <= MAX_TEXTS);
                    assert!(texts.iter().all(|text| text.len() <= MAX_TEXT_BYTES));
                }
                out.clear();
                encode_request(&request, &mut out);
                assert_eq!(&out[4..], frame);
            }
            if let Ok(reply) = decode_reply(frame) {
                out.clear();
                encode_reply(&reply, &mut out);
                assert_eq!(&out[4..], frame);
            }
        }
    }
}));
