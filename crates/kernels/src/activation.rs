//! Which activation function a layer has.

use serde::{Deserialize, Serialize};

/// Activation functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The value itself.
    None,
    /// Hyperbolic tangent.
    Tanh,
    /// GELU with the error function.
    Gelu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// Rectified linear unit.
    Relu,
}
