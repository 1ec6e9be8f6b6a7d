//! The kernels of `kernels/transformer.cu`.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::ptr::null;

use half::bf16;
use laser_cuda::transformer::arguments::{
    Activate, Attention, Gate, Normalize, Pool, RootNormalize, Turn,
};
use laser_cuda::transformer::plan::Plan;
use laser_cuda::transformer::{Activation, Keep, Pooling, Sentences};

use crate::outcome;

/// A kernel: arguments, grid, bytes of shared memory, seed.
type Kernel<A> = unsafe extern "C" fn(*const A, *const [u32; 3], u32, u32) -> *const c_char;
/// A kernel with a version for each size of heads, which comes behind the arguments.
type Sized<A> = unsafe extern "C" fn(*const A, u32, *const [u32; 3], u32, u32) -> *const c_char;

macro_rules! kernels {
    ($($name:ident: $arguments:ty $(, $size:ident)?;)*) => {
        unsafe extern "C" {
            $(fn $name(
                arguments: *const $arguments,
                $($size: u32,)?
                grid: *const [u32; 3],
                bytes: u32,
                seed: u32,
            ) -> *const c_char;)*
        }
    };
}

kernels! {
    laser_emulate_transformer_attention_bf16: Attention<bf16>, size;
    laser_emulate_transformer_attention_f32: Attention<f32>, size;
    laser_emulate_transformer_activate_bf16: Activate<bf16>;
    laser_emulate_transformer_activate_f32: Activate<f32>;
    laser_emulate_transformer_normalize_bf16: Normalize<bf16>;
    laser_emulate_transformer_normalize_f32: Normalize<f32>;
    laser_emulate_transformer_turn_bf16: Turn<bf16>;
    laser_emulate_transformer_turn_f32: Turn<f32>;
    laser_emulate_transformer_gate_bf16: Gate<bf16>;
    laser_emulate_transformer_gate_f32: Gate<f32>;
    laser_emulate_transformer_root_normalize_bf16: RootNormalize<bf16>;
    laser_emulate_transformer_root_normalize_f32: RootNormalize<f32>;
    laser_emulate_transformer_pool_bf16: Pool;
}

/// A type that the kernels were compiled for.
pub trait Element: Copy + Default {
    #[doc(hidden)]
    const ATTENTION: Sized<Attention<Self>>;
    #[doc(hidden)]
    const ACTIVATE: Kernel<Activate<Self>>;
    #[doc(hidden)]
    const NORMALIZE: Kernel<Normalize<Self>>;
    #[doc(hidden)]
    const ROOT_NORMALIZE: Kernel<RootNormalize<Self>>;
    #[doc(hidden)]
    const GATE: Kernel<Gate<Self>>;
    #[doc(hidden)]
    const TURN: Kernel<Turn<Self>>;
}

impl Element for bf16 {
    const ATTENTION: Sized<Attention<Self>> = laser_emulate_transformer_attention_bf16;
    const ACTIVATE: Kernel<Activate<Self>> = laser_emulate_transformer_activate_bf16;
    const NORMALIZE: Kernel<Normalize<Self>> = laser_emulate_transformer_normalize_bf16;
    const ROOT_NORMALIZE: Kernel<RootNormalize<Self>> =
        laser_emulate_transformer_root_normalize_bf16;
    const GATE: Kernel<Gate<Self>> = laser_emulate_transformer_gate_bf16;
    const TURN: Kernel<Turn<Self>> = laser_emulate_transformer_turn_bf16;
}

/// What a GPU cannot do: the kernels' arithmetic without rounding.
impl Element for f32 {
    const ATTENTION: Sized<Attention<Self>> = laser_emulate_transformer_attention_f32;
    const ACTIVATE: Kernel<Activate<Self>> = laser_emulate_transformer_activate_f32;
    const NORMALIZE: Kernel<Normalize<Self>> = laser_emulate_transformer_normalize_f32;
    const ROOT_NORMALIZE: Kernel<RootNormalize<Self>> =
        laser_emulate_transformer_root_normalize_f32;
    const GATE: Kernel<Gate<Self>> = laser_emulate_transformer_gate_f32;
    const TURN: Kernel<Turn<Self>> = laser_emulate_transformer_turn_f32;
}

fn launch<A>(kernel: Kernel<A>, arguments: &A, plan: &Plan, seed: u32) -> Result<(), String> {
    let grid = plan.grid.map(|blocks| blocks as u32);
    // SAFETY: the callers fill in buffers with the lengths that the kernel expects, which outlive
    // the call; it runs on this thread.
    outcome(unsafe { kernel(arguments, &grid, plan.shared as u32, seed) })
}

fn offsets(sentences: &Sentences) -> Vec<u32> {
    sentences.offsets().iter().map(|&at| at as u32).collect()
}

/// Inputs of the attention as `kernels/transformer.cuh` describes them.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, T> {
    /// [tokens, queries + 2 keys, size].
    pub projected: &'a [T],
    /// [queries + 2 keys, size].
    pub bias: Option<&'a [f32]>,
    /// [queries, 2 reach - 1].
    pub relative: Option<&'a [f32]>,
    /// Queries and keys of a token.
    pub heads: [usize; 2],
    /// What queries are multiplied by.
    pub scale: f32,
    /// How far tokens see.
    pub window: u32,
}

impl<T> Inputs<'_, T> {
    /// Queries, keys and values of a token, and the size of each.
    fn parts(&self, sentences: &Sentences) -> (usize, usize) {
        let [queries, keys] = self.heads;
        let parts = queries + 2 * keys;
        let size = self.projected.len() / sentences.tokens() / parts;
        assert_eq!(self.projected.len(), sentences.tokens() * parts * size);
        (parts, size)
    }
}

/// Runs `transformer_attention_*`, [tokens, queries, size]; threads take turns in an order that depends on `seed`.
///
/// # Errors
/// If there is no kernel for the size, or it waits forever or uses an address that CUDA would refuse.
///
/// # Panics
/// If a slice has another length than its shape.
pub fn attention<T: Element>(
    sentences: &Sentences,
    inputs: Inputs<'_, T>,
    seed: u32,
) -> Result<Vec<T>, String> {
    let [queries, keys] = inputs.heads;
    let (parts, size) = inputs.parts(sentences);
    assert!(inputs.bias.is_none_or(|bias| bias.len() == parts * size));
    let reach = inputs
        .relative
        .map_or(0, |relative| (relative.len() / queries).div_ceil(2));
    assert!(inputs.relative.is_none() || sentences.longest() <= reach);
    let offsets = offsets(sentences);
    let mut mixed = vec![T::default(); sentences.tokens() * queries * size];
    let arguments = Attention {
        projected: inputs.projected.as_ptr(),
        bias: inputs.bias.map_or(null(), <[f32]>::as_ptr),
        offsets: offsets.as_ptr(),
        relative: inputs.relative.map_or(null(), <[f32]>::as_ptr),
        mixed: mixed.as_mut_ptr(),
        scale: inputs.scale,
        reach: reach as u32,
        shared: keys as u32,
        window: inputs.window,
    };
    let plan = Plan::attention(sentences, queries, size);
    let grid = plan.grid.map(|blocks| blocks as u32);
    // SAFETY: as in `launch`.
    let failure = unsafe {
        (T::ATTENTION)(
            &raw const arguments,
            size as u32,
            &raw const grid,
            plan.shared as u32,
            seed,
        )
    };
    outcome(failure)?;
    Ok(mixed)
}

/// Runs `transformer_turn` on the projections and heads of `inputs`, with the weights of the queries' and the keys' norm
/// [size], cosines and sines [places, size / 2], and the norms' epsilon.
///
/// # Errors
/// As [`attention`].
///
/// # Panics
/// As [`attention`].
pub fn turn<T: Element>(
    sentences: &Sentences,
    inputs: Inputs<'_, T>,
    [query, key]: [&[f32]; 2],
    [cosines, sines]: [&[f32]; 2],
    epsilon: f32,
    seed: u32,
) -> Result<Vec<T>, String> {
    let [queries, keys] = inputs.heads;
    let (parts, size) = inputs.parts(sentences);
    assert_eq!([query.len(), key.len()], [size, size]);
    assert!(cosines.len() >= sentences.longest() * size / 2);
    assert_eq!(cosines.len(), sines.len());
    let offsets = offsets(sentences);
    let mut out = vec![T::default(); inputs.projected.len()];
    let arguments = Turn {
        projected: inputs.projected.as_ptr(),
        query: query.as_ptr(),
        key: key.as_ptr(),
        cosines: cosines.as_ptr(),
        sines: sines.as_ptr(),
        offsets: offsets.as_ptr(),
        out: out.as_mut_ptr(),
        heads: queries as u32,
        shared: keys as u32,
        size: size as u32,
        scale: inputs.scale,
        epsilon,
    };
    launch(T::TURN, &arguments, &Plan::turn(sentences, parts), seed)?;
    Ok(out)
}

/// Runs `transformer_activate` on a product [rows, width] and a bias [width].
///
/// # Errors
/// As [`attention`].
///
/// # Panics
/// As [`attention`].
pub fn activate<T: Element>(
    product: &[T],
    bias: &[f32],
    activation: Activation,
    seed: u32,
) -> Result<Vec<T>, String> {
    assert_eq!(product.len() % bias.len(), 0);
    let mut out = vec![T::default(); product.len()];
    let arguments = Activate {
        product: product.as_ptr(),
        bias: bias.as_ptr(),
        out: out.as_mut_ptr(),
        rows: (product.len() / bias.len()) as u32,
        width: bias.len() as u32,
        activation: activation as u32,
    };
    launch(
        T::ACTIVATE,
        &arguments,
        &Plan::activate(product.len()),
        seed,
    )?;
    Ok(out)
}

/// Runs `transformer_gate` on a product [rows, 2, width].
///
/// # Errors
/// As [`attention`].
///
/// # Panics
/// As [`attention`].
pub fn gate<T: Element>(
    product: &[T],
    width: usize,
    activation: Activation,
    seed: u32,
) -> Result<Vec<T>, String> {
    assert_eq!(product.len() % (2 * width), 0);
    let mut out = vec![T::default(); product.len() / 2];
    let arguments = Gate {
        product: product.as_ptr(),
        out: out.as_mut_ptr(),
        rows: (out.len() / width) as u32,
        width: width as u32,
        activation: activation as u32,
    };
    launch(T::GATE, &arguments, &Plan::activate(out.len()), seed)?;
    Ok(out)
}

/// Runs `transformer_normalize` on a stream [rows, width] and perhaps a product [rows, width] with its bias [width]; `norm` is
/// weight, shift and epsilon. What is kept comes back, and the norm.
///
/// # Errors
/// As [`attention`].
///
/// # Panics
/// As [`attention`].
pub fn normalize<T: Element>(
    stream: &[f32],
    product: Option<(&[T], &[f32])>,
    norm: (&[f32], &[f32], f32),
    keep: Keep,
    seed: u32,
) -> Result<(Vec<f32>, Vec<T>), String> {
    let (weight, shift, epsilon) = norm;
    let (rows, width) = (stream.len() / weight.len(), weight.len());
    assert_eq!(stream.len(), rows * width);
    assert_eq!(shift.len(), width);
    if let Some((product, bias)) = product {
        assert_eq!((product.len(), bias.len()), (stream.len(), width));
    }
    let (mut kept, mut out) = (vec![0f32; stream.len()], vec![T::default(); stream.len()]);
    let arguments = Normalize {
        stream: stream.as_ptr(),
        product: product.map_or(null(), |(product, _)| product.as_ptr()),
        bias: product.map_or(null(), |(_, bias)| bias.as_ptr()),
        weight: weight.as_ptr(),
        shift: shift.as_ptr(),
        kept: kept.as_mut_ptr(),
        out: out.as_mut_ptr(),
        rows: rows as u32,
        width: width as u32,
        epsilon,
        normalized: u32::from(keep == Keep::Norm),
    };
    launch(
        T::NORMALIZE,
        &arguments,
        &Plan::normalize(rows, width),
        seed,
    )?;
    Ok((kept, out))
}

/// Runs `transformer_root_normalize` on a stream [rows, width] and perhaps a product [rows, width] with the weights of its
/// norm [width]; `norm` is weight and epsilon. What is kept comes back, and the norm.
///
/// # Errors
/// As [`attention`].
///
/// # Panics
/// As [`attention`].
pub fn root_normalize<T: Element>(
    stream: &[f32],
    product: Option<(&[T], &[f32])>,
    (weight, epsilon): (&[f32], f32),
    keep: Keep,
    seed: u32,
) -> Result<(Vec<f32>, Vec<T>), String> {
    let (rows, width) = (stream.len() / weight.len(), weight.len());
    assert_eq!(stream.len(), rows * width);
    if let Some((product, inner)) = product {
        assert_eq!((product.len(), inner.len()), (stream.len(), width));
    }
    let (mut kept, mut out) = (vec![0f32; stream.len()], vec![T::default(); stream.len()]);
    let arguments = RootNormalize {
        stream: stream.as_ptr(),
        product: product.map_or(null(), |(product, _)| product.as_ptr()),
        inner: product.map_or(null(), |(_, inner)| inner.as_ptr()),
        weight: weight.as_ptr(),
        kept: kept.as_mut_ptr(),
        out: out.as_mut_ptr(),
        rows: rows as u32,
        width: width as u32,
        epsilon,
        normalized: u32::from(keep == Keep::Norm),
    };
    let plan = Plan::normalize(rows, width);
    launch(T::ROOT_NORMALIZE, &arguments, &plan, seed)?;
    Ok((kept, out))
}

/// Runs `transformer_pool` on states [tokens, width].
///
/// # Errors
/// As [`attention`].
///
/// # Panics
/// As [`attention`].
pub fn pool(
    sentences: &Sentences,
    states: &[f32],
    pooling: Pooling,
    seed: u32,
) -> Result<Vec<f32>, String> {
    let width = states.len() / sentences.tokens();
    assert_eq!(states.len(), sentences.tokens() * width);
    let offsets = offsets(sentences);
    let mut out = vec![f32::NAN; sentences.len() * width];
    let arguments = Pool {
        states: states.as_ptr(),
        offsets: offsets.as_ptr(),
        out: out.as_mut_ptr(),
        width: width as u32,
        pooling: pooling as u32,
    };
    let plan = Plan::pool(sentences, width);
    launch(laser_emulate_transformer_pool_bf16, &arguments, &plan, seed)?;
    Ok(out)
}
