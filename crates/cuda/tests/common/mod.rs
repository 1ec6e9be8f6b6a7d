//! What the tests of all kernels share.

use candle_core::{DType, Device, Tensor, WithDType};

/// Numbers between -1 and 1.
pub struct Random(pub u64);

impl Random {
    pub fn tensor(&mut self, shape: &[usize], scale: f32, dtype: DType) -> Tensor {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|_| {
                self.0 ^= self.0 << 13;
                self.0 ^= self.0 >> 7;
                self.0 ^= self.0 << 17;
                ((self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * scale
            })
            .collect();
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        tensor.to_dtype(dtype).unwrap()
    }
}

/// A tensor's numbers.
pub fn numbers<T: WithDType>(tensor: &Tensor) -> Vec<T> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// The same as f32, of a tensor on any device.
pub fn floats(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.to_dtype(DType::F32).unwrap();
    numbers(&tensor.to_device(&Device::Cpu).unwrap())
}

/// Elements as f32.
pub fn wide<T: WithDType>(values: &[T]) -> Vec<f32> {
    values.iter().map(|x| x.to_f64() as f32).collect()
}

/// Fails where numbers differ by more than a tolerance, as a share of those above 1.
#[track_caller]
pub fn assert_close(a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        // Written so that NaN fails.
        let close = (a - b).abs() <= tolerance * b.abs().max(1.0);
        assert!(close, "{i}: {a} {b}");
    }
}
