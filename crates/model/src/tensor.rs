//! Tensors that are written to a weights file.

use std::collections::BTreeMap;

use half::{bf16, f16};
use laser_kernels::int8;
use safetensors::Dtype;

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    values: TensorValues,
}

/// Elements of a [`Tensor`].
#[derive(Debug, Clone, PartialEq)]
enum TensorValues {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    I8(Vec<i8>),
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

impl Tensor {
    /// 32-bit floats.
    ///
    /// # Panics
    /// If the shape does not hold as many elements.
    pub fn f32(shape: &[usize], data: Vec<f32>) -> Self {
        assert_eq!(
            shape.iter().product::<usize>(),
            data.len(),
            "elements of {shape:?}"
        );
        Self {
            shape: shape.to_vec(),
            values: TensorValues::F32(data),
        }
    }

    /// The same tensor in another floating type.
    pub fn to_f16(&self) -> Self {
        let values = self.to_vec().into_iter().map(f16::from_f32).collect();
        Self {
            shape: self.shape.clone(),
            values: TensorValues::F16(values),
        }
    }

    /// The same tensor as brain floats.
    pub fn to_bf16(&self) -> Self {
        let values = self.to_vec().into_iter().map(bf16::from_f32).collect();
        Self {
            shape: self.shape.clone(),
            values: TensorValues::Bf16(values),
        }
    }

    /// Row-wise int8: the tensor `<name>` and its `<name>.scale`. Each row's largest magnitude
    /// becomes 127.
    ///
    /// # Panics
    /// If the tensor is not a matrix.
    pub fn to_i8(&self) -> (Self, Self) {
        let [rows, columns] = self.shape[..] else {
            panic!("int8 rows need a matrix")
        };
        let data = self.to_vec();
        let mut values = Vec::with_capacity(data.len());
        let mut scales = Vec::with_capacity(rows);
        for row in data.chunks_exact(columns.max(1)) {
            let (inverse, scale) = int8::factors(int8::largest(row));
            values.extend(row.iter().map(|x| (x * inverse).round() as i8));
            scales.push(scale);
        }
        scales.resize(rows, 0.0);
        (
            Self {
                shape: self.shape.clone(),
                values: TensorValues::I8(values),
            },
            Self::f32(&[rows], scales),
        )
    }

    /// The elements as f32 (of int8 tensors: without their scale).
    pub fn to_vec(&self) -> Vec<f32> {
        match &self.values {
            TensorValues::F32(v) => v.clone(),
            TensorValues::F16(v) => v.iter().map(|x| x.to_f32()).collect(),
            TensorValues::Bf16(v) => v.iter().map(|x| x.to_f32()).collect(),
            TensorValues::I8(v) => v.iter().map(|&x| f32::from(x)).collect(),
        }
    }

    /// Size of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
}

impl safetensors::View for &Tensor {
    fn dtype(&self) -> Dtype {
        match self.values {
            TensorValues::F32(_) => Dtype::F32,
            TensorValues::F16(_) => Dtype::F16,
            TensorValues::Bf16(_) => Dtype::BF16,
            TensorValues::I8(_) => Dtype::I8,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        match &self.values {
            TensorValues::F32(v) => bytemuck::cast_slice(v).into(),
            TensorValues::F16(v) => bytemuck::cast_slice(v).into(),
            TensorValues::Bf16(v) => bytemuck::cast_slice(v).into(),
            TensorValues::I8(v) => bytemuck::cast_slice(v).into(),
        }
    }

    fn data_len(&self) -> usize {
        self.data().len()
    }
}
