//! The kernels of `kernels/lstm.cu`.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::ptr::null;

use half::bf16;
use laser_cuda::lstm::Shape;
use laser_cuda::lstm::arguments::{Backward, Forward};
use laser_cuda::lstm::plan::Plan;

use crate::outcome;

/// A kernel: arguments, rows of the plan, directions, groups of the plan, bytes of shared memory, seed.
type Kernel<A> = unsafe extern "C" fn(*const A, u32, u32, u32, u32, u32) -> *const c_char;

unsafe extern "C" {
    fn laser_emulate_lstm_forward_bf16(
        arguments: *const Forward<bf16>,
        rows: u32,
        directions: u32,
        groups: u32,
        bytes: u32,
        seed: u32,
    ) -> *const c_char;
    fn laser_emulate_lstm_forward_f32(
        arguments: *const Forward<f32>,
        rows: u32,
        directions: u32,
        groups: u32,
        bytes: u32,
        seed: u32,
    ) -> *const c_char;
    fn laser_emulate_lstm_backward_bf16(
        arguments: *const Backward<bf16>,
        rows: u32,
        directions: u32,
        groups: u32,
        bytes: u32,
        seed: u32,
    ) -> *const c_char;
    fn laser_emulate_lstm_backward_f32(
        arguments: *const Backward<f32>,
        rows: u32,
        directions: u32,
        groups: u32,
        bytes: u32,
        seed: u32,
    ) -> *const c_char;
}

/// A type that the kernels were compiled for.
pub trait Element: Copy + Default {
    #[doc(hidden)]
    const FORWARD: Kernel<Forward<Self>>;
    #[doc(hidden)]
    const BACKWARD: Kernel<Backward<Self>>;
}

impl Element for bf16 {
    const FORWARD: Kernel<Forward<Self>> = laser_emulate_lstm_forward_bf16;
    const BACKWARD: Kernel<Backward<Self>> = laser_emulate_lstm_backward_bf16;
}

/// What a GPU cannot do: the kernels' arithmetic without rounding.
impl Element for f32 {
    const FORWARD: Kernel<Forward<Self>> = laser_emulate_lstm_forward_f32;
    const BACKWARD: Kernel<Backward<Self>> = laser_emulate_lstm_backward_f32;
}

fn launch<A>(
    kernel: Kernel<A>,
    arguments: &A,
    directions: usize,
    plan: &Plan,
    seed: u32,
) -> Result<(), String> {
    let (rows, groups) = (plan.rows as u32, plan.groups as u32);
    let (directions, bytes) = (directions as u32, plan.shared as u32);
    // SAFETY: the callers fill in buffers with the lengths that the kernel expects, which outlive
    // the call; it runs on this thread.
    let failure = unsafe { kernel(arguments, rows, directions, groups, bytes, seed) };
    outcome(failure)
}

/// Inputs of a layer as `kernels/lstm.cuh` describes them.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, T> {
    /// [tokens, D, 4H].
    pub products: &'a [T],
    /// [D, 4H, H].
    pub weights: &'a [T],
    /// [D, 4H].
    pub bias: &'a [f32],
    /// [steps + 1].
    pub offsets: &'a [u32],
    /// D and H.
    pub shape: Shape,
    /// A value of the enum `Pooling` there.
    pub pooling: u32,
}

/// All that a layer can write.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs<T> {
    /// [tokens, D, H].
    pub states: Vec<T>,
    /// [sentences, D, H].
    pub pooled: Vec<f32>,
    /// [sentences, D, H].
    pub argmax: Vec<u32>,
    /// [tokens, D, 4H].
    pub gates: Vec<T>,
    /// [tokens, D, H].
    pub cells: Vec<f32>,
}

/// Runs `lstm_forward_*` as planned; threads take turns in an order that depends on `seed`.
///
/// # Errors
/// If the kernel waits forever or uses an address that CUDA would refuse.
///
/// # Panics
/// If a slice has another length than its shape.
pub fn lstm_forward<T: Element>(
    inputs: Inputs<'_, T>,
    plan: &Plan,
    seed: u32,
) -> Result<Outputs<T>, String> {
    let Shape { directions, hidden } = inputs.shape;
    let width = inputs.shape.width();
    let steps = inputs.offsets.len() - 1;
    let tokens = inputs.offsets[steps] as usize;
    let sentences = inputs.offsets[1] as usize;
    assert_eq!(inputs.products.len(), tokens * 4 * width);
    assert_eq!(inputs.weights.len(), 4 * width * hidden);
    assert_eq!(inputs.bias.len(), 4 * width);
    let mut out = Outputs {
        states: vec![T::default(); tokens * width],
        pooled: vec![f32::NAN; sentences * width],
        argmax: vec![u32::MAX; sentences * width],
        gates: vec![T::default(); tokens * 4 * width],
        cells: vec![f32::NAN; tokens * width],
    };
    let mut cell = vec![f32::NAN; sentences * width];
    let mut arrivals = vec![0u32; plan.groups * directions];
    let arguments = Forward {
        products: inputs.products.as_ptr(),
        recurrent: inputs.weights.as_ptr(),
        bias: inputs.bias.as_ptr(),
        offsets: inputs.offsets.as_ptr(),
        states: out.states.as_mut_ptr(),
        cell: cell.as_mut_ptr(),
        arrivals: arrivals.as_mut_ptr(),
        pooled: out.pooled.as_mut_ptr(),
        argmax: out.argmax.as_mut_ptr(),
        gates: out.gates.as_mut_ptr(),
        cells: out.cells.as_mut_ptr(),
        hidden: hidden as u32,
        steps: steps as u32,
        pooling: inputs.pooling,
    };
    launch(T::FORWARD, &arguments, directions, plan, seed)?;
    Ok(out)
}

/// Inputs of the backward pass, as `kernels/lstm.cuh` describes them.
#[derive(Clone, Copy, Debug)]
pub struct Gradients<'a, T> {
    /// [D, H, 4H].
    pub transposed: &'a [T],
    /// [steps + 1].
    pub offsets: &'a [u32],
    /// Those of the forward pass.
    pub saved: &'a Outputs<T>,
    /// [tokens, D, H], or else `d_pooled`.
    pub d_states: Option<&'a [T]>,
    /// [sentences, D, H].
    pub d_pooled: Option<&'a [f32]>,
    /// D and H.
    pub shape: Shape,
    /// A value of the enum `Pooling` there; 0 without `d_pooled`.
    pub pooling: u32,
}

/// Runs `lstm_backward_*`; returns the gradient of the products, [tokens, D, 4H].
///
/// # Errors
/// As [`lstm_forward`].
///
/// # Panics
/// As [`lstm_forward`].
pub fn lstm_backward<T: Element>(
    inputs: Gradients<'_, T>,
    plan: &Plan,
    seed: u32,
) -> Result<Vec<T>, String> {
    let Shape { directions, hidden } = inputs.shape;
    let width = inputs.shape.width();
    let steps = inputs.offsets.len() - 1;
    let tokens = inputs.offsets[steps] as usize;
    let sentences = inputs.offsets[1] as usize;
    assert_eq!(inputs.transposed.len(), 4 * width * hidden);
    assert_eq!(inputs.saved.gates.len(), tokens * 4 * width);
    assert_eq!(inputs.saved.cells.len(), tokens * width);
    assert_eq!(inputs.saved.argmax.len(), sentences * width);
    assert!(inputs.d_states.is_none_or(|d| d.len() == tokens * width));
    assert!(inputs.d_pooled.is_none_or(|d| d.len() == sentences * width));
    assert_eq!(inputs.d_pooled.is_some(), inputs.pooling != 0);
    let mut d_products = vec![T::default(); tokens * 4 * width];
    let mut d_cell = vec![f32::NAN; sentences * width];
    let mut arrivals = vec![0u32; plan.groups * directions];
    let arguments = Backward {
        recurrent: inputs.transposed.as_ptr(),
        offsets: inputs.offsets.as_ptr(),
        gates: inputs.saved.gates.as_ptr(),
        cells: inputs.saved.cells.as_ptr(),
        d_states: inputs.d_states.map_or(null(), <[T]>::as_ptr),
        d_pooled: inputs.d_pooled.map_or(null(), <[f32]>::as_ptr),
        argmax: inputs.saved.argmax.as_ptr(),
        d_products: d_products.as_mut_ptr(),
        d_cell: d_cell.as_mut_ptr(),
        arrivals: arrivals.as_mut_ptr(),
        hidden: hidden as u32,
        steps: steps as u32,
        pooling: inputs.pooling,
    };
    launch(T::BACKWARD, &arguments, directions, plan, seed)?;
    Ok(d_products)
}
