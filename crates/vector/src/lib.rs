//! What an embedding is: its elements, its text and wire formats, and the distances between two.
//!
//! Nothing here knows PostgreSQL, so all of it is tested without a server. The extension adds the
//! memory layout of a datum and turns [`VectorError`] into SQL errors.

pub mod element;
pub mod kernels;
pub mod text;
pub mod wire;

pub use element::Element;
pub use half::f16;

/// The largest number of dimensions of an embedding, as in pgvector.
pub const MAX_DIMENSIONS: usize = 16_000;

/// The class of an error; the extension maps it to a SQLSTATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The text does not follow the syntax (22P02).
    Syntax,
    /// A number does not fit the element type (22003).
    OutOfRange,
    /// The value is not an embedding: empty, not finite, of other dimensions (22000).
    Data,
    /// More than [`MAX_DIMENSIONS`] (54000).
    TooLarge,
    /// The binary representation is broken (22P03).
    Binary,
}

/// Why a value is not an embedding. `kind` is the SQL name of the type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VectorError {
    /// The text is not `[number, …]`.
    #[error("invalid input syntax for type {kind}: \"{input}\"")]
    Syntax {
        /// The SQL name of the type.
        kind: &'static str,
        /// The beginning of the offending text.
        input: String,
        /// What was expected.
        detail: &'static str,
    },
    /// A number is too large for the element type.
    #[error("\"{number}\" is out of range for type {kind}")]
    OutOfRange {
        /// The SQL name of the type.
        kind: &'static str,
        /// The number as the input has it, shortened, or as it was computed.
        number: String,
    },
    /// An element is NaN.
    #[error("NaN not allowed in {kind}")]
    NaN {
        /// The SQL name of the type.
        kind: &'static str,
    },
    /// An element is infinite.
    #[error("infinite value not allowed in {kind}")]
    Infinite {
        /// The SQL name of the type.
        kind: &'static str,
    },
    /// There are no elements.
    #[error("{kind} must have at least 1 dimension")]
    Empty {
        /// The SQL name of the type.
        kind: &'static str,
    },
    /// There are more than [`MAX_DIMENSIONS`] elements.
    #[error("{kind} cannot have more than {MAX_DIMENSIONS} dimensions")]
    TooMany {
        /// The SQL name of the type.
        kind: &'static str,
    },
    /// The value does not have the dimensions of its column.
    #[error("expected {expected} dimensions, not {found}")]
    Expected {
        /// Dimensions of the type modifier.
        expected: usize,
        /// Dimensions of the value.
        found: usize,
    },
    /// Two embeddings of one operation differ in their dimensions.
    #[error("different {kind} dimensions {left} and {right}")]
    Different {
        /// The SQL name of the type.
        kind: &'static str,
        /// Dimensions of the left operand.
        left: usize,
        /// Dimensions of the right operand.
        right: usize,
    },
    /// The wire format is broken.
    #[error("invalid binary representation of type {kind}")]
    Binary {
        /// The SQL name of the type.
        kind: &'static str,
        /// What is wrong with it.
        detail: String,
    },
}

impl VectorError {
    /// Which SQLSTATE the error has in SQL.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Syntax { .. } => ErrorClass::Syntax,
            Self::OutOfRange { .. } => ErrorClass::OutOfRange,
            Self::TooMany { .. } => ErrorClass::TooLarge,
            Self::Binary { .. } => ErrorClass::Binary,
            Self::NaN { .. }
            | Self::Infinite { .. }
            | Self::Empty { .. }
            | Self::Expected { .. }
            | Self::Different { .. } => ErrorClass::Data,
        }
    }

    /// A second sentence for the user, where there is one.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Syntax { detail, .. } => Some(detail),
            Self::Binary { detail, .. } => Some(detail),
            _ => None,
        }
    }
}

/// Checks a number of dimensions: 1 to [`MAX_DIMENSIONS`].
///
/// # Errors
/// [`VectorError::Empty`] or [`VectorError::TooMany`].
pub fn check_dimensions<E: Element>(dimensions: usize) -> Result<(), VectorError> {
    match dimensions {
        0 => Err(VectorError::Empty { kind: E::KIND }),
        1..=MAX_DIMENSIONS => Ok(()),
        _ => Err(VectorError::TooMany { kind: E::KIND }),
    }
}

/// Checks the dimensions of a value against a type modifier (`-1`: any).
///
/// # Errors
/// [`VectorError::Expected`].
pub fn check_typmod(typmod: i32, dimensions: usize) -> Result<(), VectorError> {
    match usize::try_from(typmod) {
        Ok(expected) if expected != dimensions => Err(VectorError::Expected {
            expected,
            found: dimensions,
        }),
        _ => Ok(()),
    }
}

/// Checks that every element is finite.
///
/// # Errors
/// [`VectorError::NaN`] or [`VectorError::Infinite`] for the first element that is not.
pub fn check_finite<E: Element>(values: &[E]) -> Result<(), VectorError> {
    // Branch-free per block, so that the usual case runs at memory speed.
    for block in values.chunks(64) {
        if !block.iter().fold(true, |finite, x| finite & x.is_finite()) {
            let nan = block
                .iter()
                .find(|x| !x.is_finite())
                .is_some_and(|x| x.is_nan());
            return Err(if nan {
                VectorError::NaN { kind: E::KIND }
            } else {
                VectorError::Infinite { kind: E::KIND }
            });
        }
    }
    Ok(())
}

/// Checks dimensions and elements: what every embedding satisfies.
///
/// # Errors
/// See [`check_dimensions`] and [`check_finite`].
pub fn check<E: Element>(values: &[E]) -> Result<(), VectorError> {
    check_dimensions::<E>(values.len())?;
    check_finite(values)
}

/// Checks that two operands have the same dimensions.
///
/// # Errors
/// [`VectorError::Different`].
pub fn check_same<E: Element>(left: &[E], right: &[E]) -> Result<(), VectorError> {
    if left.len() == right.len() {
        Ok(())
    } else {
        Err(VectorError::Different {
            kind: E::KIND,
            left: left.len(),
            right: right.len(),
        })
    }
}

/// Rounds numbers to the element type.
///
/// # Errors
/// NaN and infinity are refused, and what is too large for the element type is
/// [`VectorError::OutOfRange`].
pub fn narrow<E: Element>(
    values: impl ExactSizeIterator<Item = f64>,
) -> Result<Vec<E>, VectorError> {
    check_dimensions::<E>(values.len())?;
    values.map(narrow_one).collect()
}

/// Rounds one number to the element type; see [`narrow`].
///
/// # Errors
/// As [`narrow`].
pub fn narrow_one<E: Element>(value: f64) -> Result<E, VectorError> {
    if value.is_nan() {
        return Err(VectorError::NaN { kind: E::KIND });
    }
    if value.is_infinite() {
        return Err(VectorError::Infinite { kind: E::KIND });
    }
    let narrowed = E::from_f64(value);
    if narrowed.is_finite() {
        Ok(narrowed)
    } else {
        Err(VectorError::OutOfRange {
            kind: E::KIND,
            number: if value.abs() < 1e15 {
                format!("{value}")
            } else {
                format!("{value:e}")
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_limited() {
        assert_eq!(
            check_dimensions::<f32>(0),
            Err(VectorError::Empty { kind: "embedding" })
        );
        assert_eq!(check_dimensions::<f32>(1), Ok(()));
        assert_eq!(check_dimensions::<f32>(MAX_DIMENSIONS), Ok(()));
        assert!(check_dimensions::<f32>(MAX_DIMENSIONS + 1).is_err());
        assert_eq!(check_typmod(-1, 7), Ok(()));
        assert_eq!(check_typmod(7, 7), Ok(()));
        assert_eq!(
            check_typmod(3, 7),
            Err(VectorError::Expected {
                expected: 3,
                found: 7
            })
        );
    }

    #[test]
    fn only_finite_elements_pass() {
        let mut values = vec![1.0f32; 200];
        assert_eq!(check(&values), Ok(()));
        values[131] = f32::NEG_INFINITY;
        assert_eq!(
            check(&values),
            Err(VectorError::Infinite { kind: "embedding" })
        );
        values[129] = f32::NAN;
        assert_eq!(check(&values), Err(VectorError::NaN { kind: "embedding" }));
        assert!(check(&[f16::INFINITY]).is_err());
        assert!(check(&[f16::MAX, f16::MIN]).is_ok());
    }

    #[test]
    fn narrowing_refuses_what_does_not_fit() {
        assert_eq!(narrow::<f16>([65504.0].into_iter()).unwrap(), [f16::MAX]);
        // 65520 is the first number that rounds to infinity.
        assert_eq!(narrow_one::<f16>(65519.9).unwrap(), f16::MAX);
        assert!(matches!(
            narrow_one::<f16>(65520.0),
            Err(VectorError::OutOfRange { .. })
        ));
        assert!(matches!(
            narrow_one::<f32>(1e39),
            Err(VectorError::OutOfRange { .. })
        ));
        assert!(matches!(
            narrow_one::<f32>(f64::NAN),
            Err(VectorError::NaN { .. })
        ));
        assert!(matches!(
            narrow::<f32>([].into_iter()),
            Err(VectorError::Empty { .. })
        ));
    }
}
