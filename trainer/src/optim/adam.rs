//! Adam with decoupled weight decay (AdamW) for dense parameters, and its lazy form or row-wise
//! Adagrad for embedding tables.

use serde::{Deserialize, Serialize};

use crate::models::Parameters;
use crate::models::parameters::Parameter;
use crate::ops::pool::SparseGradient;
use crate::ops::threads::Threads;
use laser_kernels::slices::{average, axpy, sum_of_squares};
use laser_kernels::training::adam::{Step, adam};

/// How the rows of embedding tables are updated. Rows without gradient stay as they are, with
/// their moments (lazy updates).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingRule {
    /// Adam with two moments per element.
    #[default]
    Adam,
    /// Adagrad with one sum of mean squares per row: a third of Adam's memory.
    Adagrad,
}

/// Options of the optimiser, the `[optimizer]` table of a training configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerOptions {
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Factor of the learning rate for embedding tables.
    pub embedding_rate_factor: f64,
    /// Factor of the learning rate for learned token weights.
    pub token_weight_rate_factor: f64,
    /// Update of embedding tables.
    pub embedding_rule: EmbeddingRule,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay of dense matrices (not of biases, norms and embeddings).
    pub weight_decay: f64,
    /// Global gradient norm above which gradients are scaled down; 0 = never.
    pub clip_norm: f64,
    /// Decay a step of the averaged weights that are evaluated and exported; 0 = no averaging.
    pub average_decay: f64,
}

impl Default for OptimizerOptions {
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            embedding_rate_factor: 1.0,
            token_weight_rate_factor: 1.0,
            embedding_rule: EmbeddingRule::Adam,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            clip_norm: 0.0,
            average_decay: 0.0,
        }
    }
}

/// Update `t` (from 1) of one dense tensor and its moments, on the calling thread; without weight decay and
/// clipping.
pub fn update(
    options: &OptimizerOptions,
    t: u64,
    value: &mut [f32],
    (first, second): (&mut [f32], &mut [f32]),
    gradient: &[f32],
) {
    adam(
        value,
        first,
        second,
        gradient,
        step_of(options, t, options.learning_rate),
    );
}

/// The factors of update `t` (from 1) at a learning rate.
fn step_of(o: &OptimizerOptions, t: u64, rate: f64) -> Step {
    let t = t as f64;
    Step {
        rate: (rate / (1.0 - o.beta1.powf(t))) as f32,
        beta1: o.beta1 as f32,
        beta2: o.beta2 as f32,
        epsilon: o.epsilon as f32,
        root_correction: (1.0 / (1.0 - o.beta2.powf(t)).sqrt()) as f32,
        scale: 1.0,
        decay: 0.0,
    }
}

/// The averaged weights are brought up to date at intervals of steps.
const AVERAGE_EVERY: u64 = 8;

/// Moments of all parameters.
#[derive(Clone, Debug)]
pub struct Optimizer {
    options: OptimizerOptions,
    /// Updates made so far.
    steps: u64,
    first: Vec<Vec<f32>>,
    second: Vec<Vec<f32>>,
    average: Option<Vec<Vec<f32>>>,
}

impl Optimizer {
    /// An optimiser that has made no step.
    pub fn new(options: OptimizerOptions, parameters: &Parameters) -> Self {
        let adagrad = options.embedding_rule == EmbeddingRule::Adagrad;
        let frozen = parameters.frozen();
        let size = |(i, p): (usize, &Parameter), second: bool| {
            if i < frozen {
                0
            } else if adagrad && i < parameters.sparse() {
                if second { p.shape[0] } else { 0 }
            } else {
                p.value.len()
            }
        };
        let zeros = |second| {
            parameters
                .list()
                .iter()
                .enumerate()
                .map(|p| vec![0.0; size(p, second)])
                .collect()
        };
        let average = (options.average_decay > 0.0).then(|| {
            let values = parameters.list()[frozen..].iter().map(|p| p.value.clone());
            std::iter::repeat_n(Vec::new(), frozen)
                .chain(values)
                .collect()
        });
        Self {
            options,
            steps: 0,
            first: zeros(false),
            second: zeros(true),
            average,
        }
    }

    /// Updates made so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The options it was made with.
    pub fn options(&self) -> &OptimizerOptions {
        &self.options
    }

    /// Averaged weights, one buffer a parameter (empty for those that are frozen), if they are kept.
    pub fn averaged(&self) -> Option<&[Vec<f32>]> {
        self.average.as_deref()
    }

    /// Everything that a checkpoint must keep, as named buffers.
    pub fn state(&self, parameters: &Parameters) -> Vec<(String, &[f32])> {
        let names = parameters.list().iter().map(|p| &p.name);
        let mut state = Vec::new();
        for (i, name) in names.enumerate() {
            state.push((format!("optimizer.first.{name}"), &self.first[i][..]));
            state.push((format!("optimizer.second.{name}"), &self.second[i][..]));
            if let Some(average) = &self.average {
                state.push((format!("optimizer.average.{name}"), &average[i][..]));
            }
        }
        state
    }

    /// Goes on from a checkpoint: `read` gives a buffer of the asked name and length.
    ///
    /// # Errors
    /// Whatever `read` returns.
    pub fn restore<E>(
        &mut self,
        parameters: &Parameters,
        steps: u64,
        mut read: impl FnMut(&str, usize) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        self.steps = steps;
        for (i, parameter) in parameters.list().iter().enumerate() {
            let name = &parameter.name;
            let (first, second) = (self.first[i].len(), self.second[i].len());
            self.first[i] = read(&format!("optimizer.first.{name}"), first)?;
            self.second[i] = read(&format!("optimizer.second.{name}"), second)?;
            if let Some(average) = &mut self.average {
                let len = average[i].len();
                average[i] = read(&format!("optimizer.average.{name}"), len)?;
            }
        }
        Ok(())
    }

    /// Global norm of a gradient: `dense` has a buffer for every parameter (those of sparse ones
    /// are ignored).
    pub fn norm(
        &self,
        threads: &Threads,
        parameters: &Parameters,
        dense: &[Vec<f32>],
        sparse: &SparseGradient,
    ) -> f64 {
        const BLOCK: usize = 1 << 14;
        let squares = |g: &[f32]| -> f64 {
            let blocks = threads.split(g.len().div_ceil(BLOCK));
            let sum = |_, blocks: std::ops::Range<usize>| -> f64 {
                let part = &g[blocks.start * BLOCK..g.len().min(blocks.end * BLOCK)];
                part.chunks(BLOCK)
                    .map(|c| f64::from(sum_of_squares(c)))
                    .sum()
            };
            threads.map(blocks, sum).iter().sum()
        };
        let mut total = squares(&sparse.rows) + squares(&sparse.weights);
        total += dense[parameters.sparse()..]
            .iter()
            .map(|g| squares(g))
            .sum::<f64>();
        total.sqrt()
    }

    /// Updates the parameters from a gradient whose [`Optimizer::norm`] is `norm`, with the
    /// schedule's factor of the learning rate.
    pub fn step(
        &mut self,
        threads: &Threads,
        parameters: &mut Parameters,
        dense: &[Vec<f32>],
        sparse: &SparseGradient,
        norm: f64,
        rate_factor: f64,
    ) {
        let o = &self.options;
        let sparse_count = parameters.sparse();
        let scale = if o.clip_norm > 0.0 && norm > o.clip_norm {
            o.clip_norm / norm
        } else {
            1.0
        };
        self.steps += 1;
        let t = self.steps as f64;
        let rate = o.learning_rate * rate_factor;
        let step = Step {
            scale: scale as f32,
            ..step_of(o, self.steps, rate)
        };
        let list = parameters.list_mut();
        #[allow(clippy::needless_range_loop)] // indexes three lists
        for i in 0..sparse_count {
            let (first, second) = (&mut self.first[i], &mut self.second[i]);
            let (gradient, factor) = match i {
                0 => (&sparse.rows, o.embedding_rate_factor),
                _ => (&sparse.weights, o.token_weight_rate_factor),
            };
            if gradient.is_empty() {
                continue;
            }
            let work = RowWork {
                ids: &sparse.ids,
                gradient,
                width: gradient.len() / sparse.ids.len(),
                step: Step {
                    rate: step.rate * factor as f32,
                    ..step
                },
                plain_rate: (rate * factor) as f32,
                rule: o.embedding_rule,
            };
            work.run(threads, &mut list[i].value, first, second);
        }
        let decay = (rate * o.weight_decay) as f32;
        let mut work = Vec::new();
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((i, parameter), (first, second)) in
            list.iter_mut().enumerate().zip(moments).skip(sparse_count)
        {
            let decay = if parameter.shape.len() > 1 {
                decay
            } else {
                0.0
            };
            let ranges = threads.split(parameter.value.len());
            let parts = crate::ops::threads::cut(&mut parameter.value, &ranges, 1)
                .into_iter()
                .zip(crate::ops::threads::cut(first, &ranges, 1))
                .zip(crate::ops::threads::cut(second, &ranges, 1))
                .zip(ranges.iter().cloned())
                .enumerate();
            for (thread, (((w, m), v), range)) in parts {
                if work.len() <= thread {
                    work.push(Vec::new());
                }
                work[thread].push((w, m, v, &dense[i][range], Step { decay, ..step }));
            }
        }
        threads.map(work, |_, parts| {
            for (w, m, v, g, step) in parts {
                adam(w, m, v, g, step);
            }
        });
        if let Some(averages) = &mut self.average
            && self.steps.is_multiple_of(AVERAGE_EVERY)
        {
            // Early on a slow average would be made of random weights mostly.
            let warm = (1.0 + t) / (10.0 + t);
            let decay = o.average_decay.min(warm).powi(AVERAGE_EVERY as i32) as f32;
            let mut work: Vec<Vec<(&mut [f32], &[f32])>> = Vec::new();
            for (parameter, kept) in list.iter().zip(averages) {
                let ranges = threads.split(kept.len());
                let parts = crate::ops::threads::cut(kept, &ranges, 1);
                for (thread, (part, range)) in parts.into_iter().zip(ranges).enumerate() {
                    if work.len() <= thread {
                        work.push(Vec::new());
                    }
                    work[thread].push((part, &parameter.value[range]));
                }
            }
            threads.map(work, |_, parts| {
                for (kept, value) in parts {
                    average(decay, value, kept);
                }
            });
        }
    }
}

/// Update of the touched rows of one table.
struct RowWork<'a> {
    ids: &'a [u32],
    gradient: &'a [f32],
    width: usize,
    step: Step,
    plain_rate: f32,
    rule: EmbeddingRule,
}

impl RowWork<'_> {
    fn run(&self, threads: &Threads, table: &mut [f32], first: &mut [f32], second: &mut [f32]) {
        let width = self.width;
        let ranges = threads.split(self.ids.len());
        // Row r of the table belongs to the thread whose range of touched rows holds or precedes
        // it, so that every thread owns one stretch of the table.
        let rows: Vec<usize> = ranges
            .iter()
            .map(|r| {
                self.ids
                    .get(r.end)
                    .map_or(table.len() / width, |id| *id as usize)
            })
            .collect();
        let stretches: Vec<_> = rows
            .iter()
            .scan(0, |begin, end| Some(std::mem::replace(begin, *end)..*end))
            .collect();
        let moments = match self.rule {
            EmbeddingRule::Adam => (width, width),
            EmbeddingRule::Adagrad => (0, 1),
        };
        let work: Vec<_> = crate::ops::threads::cut(table, &stretches, width)
            .into_iter()
            .zip(crate::ops::threads::cut(first, &stretches, moments.0))
            .zip(crate::ops::threads::cut(second, &stretches, moments.1))
            .zip(ranges.into_iter().zip(stretches))
            .collect();
        threads.map(work, |_, (((table, first), second), (range, stretch))| {
            for t in range {
                let row = self.ids[t] as usize - stretch.start;
                let g = &self.gradient[t * width..(t + 1) * width];
                let w = &mut table[row * width..(row + 1) * width];
                match self.rule {
                    EmbeddingRule::Adam => {
                        let m = &mut first[row * width..(row + 1) * width];
                        let v = &mut second[row * width..(row + 1) * width];
                        adam(w, m, v, g, self.step);
                    }
                    EmbeddingRule::Adagrad => {
                        let scale = self.step.scale;
                        second[row] += sum_of_squares(g) * scale * scale / width as f32;
                        let root = second[row].sqrt() + self.step.epsilon;
                        axpy(-self.plain_rate * scale / root, g, w);
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> Parameters {
        let mut p = Parameters::default();
        p.push_sparse("table", &[5, 2], vec![1.0; 10]);
        p.uniform("matrix", &[3, 3], 1.0, 4);
        p.constant("bias", &[3], 0.5);
        p
    }

    /// One step of Adam in f64 from zero moments, as in the paper (Kingma and Ba, algorithm 1).
    fn reference(w: f32, g: f32, rate: f64, decay: f64) -> f64 {
        let g = f64::from(g);
        let (m, v) = (0.1 * g, 0.001 * g * g);
        let (mh, vh) = (m / 0.1, v / 0.001);
        f64::from(w) - rate * decay * f64::from(w) - rate * mh / (vh.sqrt() + 1e-8)
    }

    #[test]
    fn one_step_follows_the_paper_and_leaves_untouched_rows() {
        for count in [1, 2, 3] {
            let threads = Threads::new(count).unwrap();
            let mut p = parameters();
            let before = p.clone();
            let options = OptimizerOptions {
                learning_rate: 0.1,
                weight_decay: 0.5,
                ..Default::default()
            };
            let mut optimizer = Optimizer::new(options, &p);
            let mut dense = p.zeros();
            dense[1] = (0..9).map(|i| i as f32 - 4.0).collect();
            dense[2] = vec![1.0, -2.0, 3.0];
            let sparse = SparseGradient {
                ids: vec![1, 4],
                rows: vec![1.0, -1.0, 0.5, 0.25],
                weights: vec![],
            };
            let norm = optimizer.norm(&threads, &p, &dense, &sparse);
            optimizer.step(&threads, &mut p, &dense, &sparse, norm, 0.5);
            let table = p.value(0);
            assert_eq!(table[..2], [1.0; 2]);
            assert_eq!(table[4..8], [1.0; 4]);
            for (at, g) in [(2, 1.0), (3, -1.0), (8, 0.5), (9, 0.25)] {
                assert!((f64::from(table[at]) - reference(1.0, g, 0.05, 0.0)).abs() < 1e-6);
            }
            for (i, &gradient) in dense[1].iter().enumerate().take(9) {
                let expected = reference(before.value(1)[i], gradient, 0.05, 0.5);
                assert!((f64::from(p.value(1)[i]) - expected).abs() < 1e-6);
            }
            let expected = reference(0.5, -2.0, 0.05, 0.0);
            assert!((f64::from(p.value(2)[1]) - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn clipping_scales_the_whole_gradient() {
        let threads = Threads::new(1).unwrap();
        let options = OptimizerOptions {
            clip_norm: 1.0,
            embedding_rule: EmbeddingRule::Adagrad,
            learning_rate: 0.1,
            epsilon: 0.0,
            ..Default::default()
        };
        let mut p = parameters();
        let mut optimizer = Optimizer::new(options, &p);
        let dense = p.zeros();
        let sparse = SparseGradient {
            ids: vec![2],
            rows: vec![3.0, 4.0],
            weights: vec![],
        };
        let norm = optimizer.norm(&threads, &p, &dense, &sparse);
        optimizer.step(&threads, &mut p, &dense, &sparse, norm, 1.0);
        assert!((norm - 5.0).abs() < 1e-6);
        // Gradient (0.6, 0.8); root of the mean square: sqrt(0.5).
        let factor = 0.1 / 0.5f32.sqrt();
        assert!((p.value(0)[4] - (1.0 - factor * 0.6)).abs() < 1e-6);
        assert!((p.value(0)[5] - (1.0 - factor * 0.8)).abs() < 1e-6);
    }
}
