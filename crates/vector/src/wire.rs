//! The binary format of send and receive, that of pgvector's `vector_send` and `halfvec_send`:
//! int16 dimensions, int16 unused (zero), then the elements, all in network order.

use crate::{Element, VectorError, check_dimensions, check_finite};

/// Appends the binary representation of `values`.
pub fn encode<E: Element>(values: &[E], out: &mut Vec<u8>) {
    out.reserve(4 + values.len() * E::SIZE);
    // At most MAX_DIMENSIONS, which fits an int16.
    out.extend_from_slice(&(values.len() as u16).to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    for &value in values {
        value.put(out);
    }
}

/// Reads a binary representation, which must fill `bytes` exactly.
///
/// # Errors
/// [`VectorError::Binary`] where the length or the unused field is wrong, and what
/// [`crate::check`] refuses.
pub fn decode<E: Element>(bytes: &[u8]) -> Result<Vec<E>, VectorError> {
    let broken = |detail: String| VectorError::Binary {
        kind: E::KIND,
        detail,
    };
    let Some((head, body)) = bytes.split_first_chunk::<4>() else {
        return Err(broken(format!(
            "{} bytes are too short for a header.",
            bytes.len()
        )));
    };
    let dimensions = i16::from_be_bytes([head[0], head[1]]);
    let unused = i16::from_be_bytes([head[2], head[3]]);
    check_dimensions::<E>(usize::try_from(dimensions).unwrap_or(0))?;
    if unused != 0 {
        return Err(broken(format!("The unused field must be 0, not {unused}.")));
    }
    let expected = dimensions as usize * E::SIZE;
    if body.len() != expected {
        return Err(broken(format!(
            "{dimensions} dimensions need {expected} bytes, not {}.",
            body.len()
        )));
    }
    let values: Vec<E> = body.chunks_exact(E::SIZE).map(E::get).collect();
    check_finite(&values)?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use proptest::prelude::*;

    #[test]
    fn layout_is_pgvectors() {
        let mut out = Vec::new();
        encode(&[1.0f32, -2.0], &mut out);
        assert_eq!(out, [0, 2, 0, 0, 0x3f, 0x80, 0, 0, 0xc0, 0, 0, 0]);
        out.clear();
        encode(&[f16::ONE], &mut out);
        assert_eq!(out, [0, 1, 0, 0, 0x3c, 0]);
    }

    #[test]
    fn broken_input_is_refused() {
        assert!(matches!(
            decode::<f32>(&[0, 1]),
            Err(VectorError::Binary { .. })
        ));
        assert!(matches!(
            decode::<f32>(&[0, 0, 0, 0]),
            Err(VectorError::Empty { .. })
        ));
        assert!(matches!(
            decode::<f32>(&[0xff, 0xff, 0, 0]),
            Err(VectorError::Empty { .. })
        ));
        assert!(matches!(
            decode::<f32>(&[0x7f, 0xff, 0, 0]),
            Err(VectorError::TooMany { .. })
        ));
        assert!(matches!(
            decode::<f32>(&[0, 1, 0, 1, 0, 0, 0, 0]),
            Err(VectorError::Binary { .. })
        ));
        assert!(matches!(
            decode::<f32>(&[0, 1, 0, 0, 0, 0, 0]),
            Err(VectorError::Binary { .. })
        ));
        let nan = [0, 1, 0, 0, 0x7f, 0xc0, 0, 0];
        assert!(matches!(decode::<f32>(&nan), Err(VectorError::NaN { .. })));
        assert!(matches!(
            decode::<f16>(&[0, 1, 0, 0, 0xfc, 0]),
            Err(VectorError::Infinite { .. })
        ));
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(values in prop::collection::vec(any::<f32>(), 1..300)) {
            let finite: Vec<f32> = values.iter().map(|x| if x.is_finite() { *x } else { 0.5 }).collect();
            let mut out = Vec::new();
            encode(&finite, &mut out);
            prop_assert_eq!(decode::<f32>(&out).unwrap(), finite);
        }

        #[test]
        fn decode_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<f32>(&bytes);
            let _ = decode::<f16>(&bytes);
        }
    }
}
