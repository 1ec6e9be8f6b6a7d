//! Nanoseconds per distance of the kernels here and of NumKong's, at 1,024 dimensions.

use half::f16;
use laser_vector::Element;
use numkong::{Angular, Euclidean};
use std::hint::black_box;
use std::time::Instant;

const DIMENSIONS: usize = 1024;
const ROWS: usize = 256;

fn time(name: &str, mut distance: impl FnMut(usize) -> f64) {
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        for _ in 0..20 {
            for row in 0..ROWS {
                black_box(distance(black_box(row)));
            }
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (20 * ROWS) as f64);
    }
    println!("{name:<28}{best:8.1} ns");
}

fn rows<E: Element>() -> Vec<Vec<E>> {
    let element = |i: usize| E::from_f32(((i * 2_654_435_761) % 2003) as f32 / 1001.0 - 1.0);
    (0..ROWS)
        .map(|row| {
            (0..DIMENSIONS)
                .map(|i| element(row * DIMENSIONS + i))
                .collect()
        })
        .collect()
}

fn main() {
    println!("{:?}, {DIMENSIONS} dimensions", laser_cpu::Isa::detect());
    let f = rows::<f32>();
    time("f32 dot", |i| f32::dot(&f[0], &f[i]).into());
    time("f32 l2", |i| f32::l2_squared(&f[0], &f[i]).into());
    time("f32 cosine", |i| {
        laser_vector::kernels::cosine_distance(&f[0], &f[i])
    });
    time("f32 dot, numkong", |i| dot_numkong(&f[0], &f[i]));
    time("f32 l2, numkong", |i| {
        <f32 as Euclidean>::sqeuclidean(&f[0], &f[i]).unwrap()
    });
    time("f32 cosine, numkong", |i| {
        <f32 as Angular>::angular(&f[0], &f[i]).unwrap()
    });
    let h = rows::<f16>();
    let n: Vec<Vec<numkong::f16>> = h
        .iter()
        .map(|row| row.iter().map(|x| numkong::f16(x.to_bits())).collect())
        .collect();
    time("f16 dot", |i| f16::dot(&h[0], &h[i]).into());
    time("f16 l2", |i| f16::l2_squared(&h[0], &h[i]).into());
    time("f16 cosine", |i| {
        laser_vector::kernels::cosine_distance(&h[0], &h[i])
    });
    time("f16 dot, numkong", |i| {
        <numkong::f16 as numkong::Dot>::dot(&n[0], &n[i]).unwrap() as f64
    });
    time("f16 cosine, numkong", |i| {
        <numkong::f16 as Angular>::angular(&n[0], &n[i]).unwrap() as f64
    });
}

/// `dot` of both traits has one name.
fn dot_numkong(a: &[f32], b: &[f32]) -> f64 {
    <f32 as numkong::Dot>::dot(a, b).unwrap()
}
