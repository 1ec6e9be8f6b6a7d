//! Named tensors of a model.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A named tensor, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name in the model folder.
    pub name: String,
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    /// Elements in row-major order.
    pub value: Vec<f32>,
}

/// The tensors of a model. The first [`Parameters::sparse`] of them have one row a token and
/// receive gradients for the tokens of a batch alone; the first [`Parameters::frozen`] are not trained.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    list: Vec<Parameter>,
    sparse: usize,
    frozen: usize,
}

impl Parameters {
    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of tensors, at the front, with a row for every token.
    pub fn sparse(&self) -> usize {
        self.sparse
    }

    /// Number of tensors, at the front, that keep their values.
    pub fn frozen(&self) -> usize {
        self.frozen
    }

    /// Freezes the tensors with a row for every token.
    pub fn freeze_sparse(&mut self) {
        self.frozen = self.sparse;
    }

    /// Number of elements of all tensors.
    pub fn elements(&self) -> usize {
        self.list.iter().map(|p| p.value.len()).sum()
    }

    /// All tensors.
    pub fn list(&self) -> &[Parameter] {
        &self.list
    }

    /// All tensors, mutable.
    pub fn list_mut(&mut self) -> &mut [Parameter] {
        &mut self.list
    }

    /// Elements of tensor `i`.
    pub fn value(&self, i: usize) -> &[f32] {
        &self.list[i].value
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.list.iter().find(|p| p.name == name)
    }

    /// A zero buffer for every dense tensor and an empty one for every sparse one.
    pub fn zeros(&self) -> Vec<Vec<f32>> {
        let size = |(i, p): (usize, &Parameter)| if i < self.sparse { 0 } else { p.value.len() };
        self.list
            .iter()
            .enumerate()
            .map(|p| vec![0.0; size(p)])
            .collect()
    }

    /// Adds a tensor with a row for every token.
    ///
    /// # Panics
    /// If dense tensors were added before.
    pub(crate) fn push_sparse(&mut self, name: &str, shape: &[usize], value: Vec<f32>) {
        assert_eq!(self.sparse, self.list.len(), "sparse tensors come first");
        self.push(name, shape, value);
        self.sparse += 1;
    }

    /// Adds a dense tensor.
    pub(crate) fn push(&mut self, name: &str, shape: &[usize], value: Vec<f32>) {
        assert_eq!(shape.iter().product::<usize>(), value.len());
        self.list.push(Parameter {
            name: name.into(),
            shape: shape.into(),
            value,
        });
    }

    /// Adds a tensor drawn uniformly from `[-bound, bound]`.
    pub(crate) fn uniform(&mut self, name: &str, shape: &[usize], bound: f32, seed: u64) {
        let n = shape.iter().product();
        let value = random(n, bound, seed, self.list.len());
        self.push(name, shape, value);
    }

    /// Adds a tensor of one value.
    pub(crate) fn constant(&mut self, name: &str, shape: &[usize], value: f32) {
        self.push(name, shape, vec![value; shape.iter().product()]);
    }
}

/// `n` numbers drawn uniformly from `[-bound, bound]`.
pub(crate) fn random(n: usize, bound: f32, seed: u64, stream: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream as u64 + 1);
    (0..n).map(|_| rng.random_range(-bound..=bound)).collect()
}
