//! One step of an LSTM with its gradient. Gates are those of `torch.nn.LSTM`, by H: i, f, g, o;
//! `c_t = σ(f) c_{t−1} + σ(i) tanh(g)`, `h_t = σ(o) tanh(c_t)`.

use laser_cpu::simd;

use crate::approximate::{sigmoid, tanh};

simd! {
    /// One step for one sentence: gates in place, new cell and output.
    pub fn cell(gates: &mut [f32], previous: &[f32], cell: &mut [f32], hidden: &mut [f32]) {
        let n = cell.len();
        let (i, rest) = gates.split_at_mut(n);
        let (f, rest) = rest.split_at_mut(n);
        let (g, o) = rest.split_at_mut(n);
        let (o, hidden) = (&mut o[..n], &mut hidden[..n]);
        if previous.is_empty() {
            for k in 0..n {
                (i[k], f[k], g[k], o[k]) = (sigmoid(i[k]), sigmoid(f[k]), tanh(g[k]), sigmoid(o[k]));
                cell[k] = i[k] * g[k];
                hidden[k] = o[k] * tanh(cell[k]);
            }
        } else {
            let previous = &previous[..n];
            for k in 0..n {
                (i[k], f[k], g[k], o[k]) = (sigmoid(i[k]), sigmoid(f[k]), tanh(g[k]), sigmoid(o[k]));
                cell[k] = f[k] * previous[k] + i[k] * g[k];
                hidden[k] = o[k] * tanh(cell[k]);
            }
        }
    }
}

simd! {
    /// Gradient of one step for one sentence: `gates` turn into the gradients of their
    /// pre-activations, `d_cell` into the gradient of the previous cell.
    pub fn cell_backward(
        gates: &mut [f32],
        previous: &[f32],
        cell: &[f32],
        d_hidden: &[f32],
        d_cell: &mut [f32],
    ) {
        let n = cell.len();
        let (i, rest) = gates.split_at_mut(n);
        let (f, rest) = rest.split_at_mut(n);
        let (g, o) = rest.split_at_mut(n);
        let (o, d_hidden, d_cell) = (&mut o[..n], &d_hidden[..n], &mut d_cell[..n]);
        let zero = previous.is_empty();
        let previous = if zero { &cell[..n] } else { &previous[..n] };
        let factor = if zero { 0.0 } else { 1.0 };
        for k in 0..n {
            let t = tanh(cell[k]);
            let dc = d_cell[k] + d_hidden[k] * o[k] * (1.0 - t * t);
            let (iv, fv, gv, ov) = (i[k], f[k], g[k], o[k]);
            o[k] = d_hidden[k] * t * ov * (1.0 - ov);
            i[k] = dc * gv * iv * (1.0 - iv);
            g[k] = dc * iv * (1.0 - gv * gv);
            f[k] = factor * dc * previous[k] * fv * (1.0 - fv);
            d_cell[k] = dc * fv;
        }
    }
}
