//! Classifiers on frozen embeddings: logistic regression and perceptrons, trained with Adam and stopped
//! early on a dev set.

use laser_kernels::training::Arithmetic;
use laser_kernels::training::softmax::{cross_entropy, softmax};
use laser_model::config::Activation;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::EvalError;
use crate::models::Parameters;
use crate::models::perceptron::{InputDropout, Perceptron};
use crate::ops::pair::PairFeatures;
use crate::optim::OptimizerOptions;
use crate::optim::adam;

/// Embedded texts, or pairs of texts, whose features are made when they are needed.
#[derive(Clone, Copy, Debug)]
pub struct Embedded<'a> {
    /// Embeddings [texts, width].
    pub first: &'a [f32],
    /// Embeddings [texts, width] of second texts, and what is made of both.
    pub second: Option<(&'a [f32], PairFeatures)>,
    /// Width of an embedding.
    pub width: usize,
}

impl Embedded<'_> {
    /// Width of the features.
    #[must_use]
    pub fn features(&self) -> usize {
        self.second
            .map_or(self.width, |(_, kind)| kind.width(self.width))
    }

    /// Number of texts or pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.first.len() / self.width
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Features [rows, features] of some rows.
    #[must_use]
    pub fn gather(&self, rows: &[u32]) -> Vec<f32> {
        let mut out = Vec::with_capacity(rows.len() * self.features());
        for row in rows {
            let at = *row as usize * self.width..(*row as usize + 1) * self.width;
            match self.second {
                Some((second, kind)) => kind.append(&self.first[at.clone()], &second[at], &mut out),
                None => out.extend_from_slice(&self.first[at]),
            }
        }
        out
    }
}

/// Rows of embedded texts with their labels.
#[derive(Clone, Copy, Debug)]
pub struct Examples<'a> {
    /// Embeddings, of which `rows` are used.
    pub texts: Embedded<'a>,
    /// Class of every text, used or not.
    pub labels: &'a [u32],
    /// Positions in `texts` and `labels`; may repeat.
    pub rows: &'a [u32],
}

/// How a classifier is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct FitOptions {
    /// Widths of hidden layers; none for logistic regression.
    pub hidden: Vec<usize>,
    /// Activation between layers.
    pub activation: Activation,
    /// Share of the inputs of every layer that is left out while training.
    pub dropout: f32,
    /// Factor λ of the weights in their gradient (λ/2 ‖w‖² in the loss); not of biases.
    pub l2: f64,
    /// Learning rate of Adam.
    pub learning_rate: f64,
    /// Examples of a minibatch.
    pub batch: usize,
    /// Most passes over the training set.
    pub epochs: usize,
    /// Passes between measurements on the dev set.
    pub dev_epochs: usize,
    /// Measurements without a better one before training ends.
    pub patience: usize,
    /// Seed of parameters, order and dropout.
    pub seed: u64,
}

impl Default for FitOptions {
    /// Logistic regression as SentEval trains it: four passes between measurements, the best of at most
    /// 200 passes.
    fn default() -> Self {
        Self {
            hidden: Vec::new(),
            activation: Activation::Relu,
            dropout: 0.0,
            l2: 0.0,
            learning_rate: 1e-3,
            batch: 64,
            epochs: 200,
            dev_epochs: 4,
            patience: 5,
            seed: 1,
        }
    }
}

/// The loss that is minimised.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// Cross-entropy with the labels.
    Labels,
    /// Mean square of the difference from distributions [texts, classes].
    Distributions(&'a [f32]),
}

/// A trained classifier.
#[derive(Clone, Debug)]
pub struct Classifier {
    parameters: Parameters,
    net: Perceptron,
    /// The figure of the dev set by which these weights were chosen.
    pub dev: f64,
    /// Passes over the training set until then.
    pub epochs: usize,
}

impl Classifier {
    /// Trains a classifier. `measure` is the figure on the dev set that is to become large.
    ///
    /// # Errors
    /// [`EvalError::Config`] if there is nothing to train on, or the loss is not finite.
    pub fn fit(
        train: Examples<'_>,
        classes: usize,
        target: Target<'_>,
        options: &FitOptions,
        measure: &dyn Fn(&Self) -> f64,
    ) -> Result<Self, EvalError> {
        if train.rows.is_empty() || classes < 2 || options.batch == 0 || options.dev_epochs == 0 {
            let message = "a classifier needs examples of at least two classes, and batches";
            return Err(EvalError::Config(message.into()));
        }
        let mut parameters = Parameters::default();
        let mut widths = vec![train.texts.features()];
        widths.extend(&options.hidden);
        widths.push(classes);
        let net = Perceptron::new(
            &mut parameters,
            "classifier",
            &widths,
            options.activation,
            options.seed,
        );
        let mut this = Self {
            parameters,
            net,
            dev: f64::NEG_INFINITY,
            epochs: 0,
        };
        let mut best = this.clone();
        let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
        let mut fit = Fit::new(options, &this.parameters);
        let mut order = train.rows.to_vec();
        let mut stale = 0;
        while this.epochs < options.epochs {
            for _ in 0..options.dev_epochs.min(options.epochs - this.epochs) {
                order.shuffle(&mut rng);
                this.epochs += 1;
                for rows in order.chunks(options.batch) {
                    let loss = fit.step(&mut this, train, rows, target, rng.random());
                    if !loss.is_finite() {
                        return Err(EvalError::Config(format!(
                            "the classifier's loss is {loss} in epoch {}; try a smaller learning rate",
                            this.epochs
                        )));
                    }
                }
            }
            this.dev = measure(&this);
            if this.dev > best.dev {
                best = this.clone();
                stale = 0;
            } else {
                stale += 1;
                if stale >= options.patience {
                    break;
                }
            }
        }
        Ok(best)
    }

    /// Probabilities [rows, classes] of some rows.
    #[must_use]
    pub fn probabilities(&self, texts: Embedded<'_>, rows: &[u32]) -> Vec<f32> {
        let mut out = Vec::with_capacity(rows.len() * self.net.outputs());
        for rows in rows.chunks(1024) {
            let x = texts.gather(rows);
            let none = InputDropout::default();
            let (y, _) = self.net.forward(&self.parameters, x, none, Arithmetic::F32);
            out.extend_from_slice(&y);
        }
        softmax(&mut out, self.net.outputs());
        out
    }

    /// The most probable class of some rows; the first of equal ones.
    #[must_use]
    pub fn predict(&self, texts: Embedded<'_>, rows: &[u32]) -> Vec<u32> {
        let best = |row: &[f32]| {
            let mut best = 0;
            for (i, p) in row.iter().enumerate() {
                if *p > row[best] {
                    best = i;
                }
            }
            best as u32
        };
        self.probabilities(texts, rows)
            .chunks_exact(self.net.outputs())
            .map(best)
            .collect()
    }

    /// Share of examples whose most probable class is their label; NaN if there are none.
    #[must_use]
    pub fn accuracy(&self, examples: Examples<'_>) -> f64 {
        let found = self.predict(examples.texts, examples.rows);
        let wanted = examples.rows.iter().map(|r| examples.labels[*r as usize]);
        let right = found.iter().zip(wanted).filter(|(f, w)| **f == *w).count();
        right as f64 / found.len() as f64
    }
}

/// Parameters and moments during training.
struct Fit<'a> {
    options: &'a FitOptions,
    adam: OptimizerOptions,
    first: Vec<Vec<f32>>,
    second: Vec<Vec<f32>>,
    updates: u64,
}

impl<'a> Fit<'a> {
    fn new(options: &'a FitOptions, parameters: &Parameters) -> Self {
        Self {
            options,
            adam: OptimizerOptions {
                learning_rate: options.learning_rate,
                ..OptimizerOptions::default()
            },
            first: parameters.zeros(),
            second: parameters.zeros(),
            updates: 0,
        }
    }

    /// One update; returns the loss.
    fn step(
        &mut self,
        classifier: &mut Classifier,
        train: Examples<'_>,
        rows: &[u32],
        target: Target<'_>,
        seed: u64,
    ) -> f64 {
        let dropout = InputDropout {
            rate: self.options.dropout,
            seed,
        };
        let Classifier {
            parameters, net, ..
        } = classifier;
        let x = train.texts.gather(rows);
        let (mut y, saved) = net.forward(parameters, x, dropout, Arithmetic::F32);
        let loss = match target {
            Target::Labels => {
                let labels: Vec<u32> = rows.iter().map(|r| train.labels[*r as usize]).collect();
                cross_entropy(&mut y, net.outputs(), &labels)
            }
            Target::Distributions(all) => squares(&mut y, net.outputs(), all, rows),
        };
        let mut gradients = parameters.zeros();
        let exact = Arithmetic::F32;
        // The embeddings are frozen.
        let _ = net.backward(parameters, saved, y, dropout, &mut gradients, exact);
        self.updates += 1;
        let list = parameters.list_mut().iter_mut().zip(&mut gradients);
        for ((p, g), (m, v)) in list.zip(self.first.iter_mut().zip(&mut self.second)) {
            if self.options.l2 > 0.0 && p.shape.len() > 1 {
                laser_kernels::slices::axpy(self.options.l2 as f32, &p.value, g);
            }
            adam::update(&self.adam, self.updates, &mut p.value, (m, v), g);
        }
        loss
    }
}

/// Mean square over all elements of `softmax(logits) − wanted`, and its gradient by the logits in their
/// place.
fn squares(logits: &mut [f32], classes: usize, wanted: &[f32], rows: &[u32]) -> f64 {
    let elements = logits.len() as f32;
    softmax(logits, classes);
    let mut loss = 0.0;
    for (p, row) in logits.chunks_exact_mut(classes).zip(rows) {
        let at = *row as usize * classes;
        let wanted = &wanted[at..at + classes];
        let slopes: Vec<f32> = p.iter().zip(wanted).map(|(p, w)| p - w).collect();
        loss += slopes.iter().map(|s| f64::from(s * s)).sum::<f64>();
        let along: f32 = p.iter().zip(&slopes).map(|(p, s)| p * s).sum();
        for (p, s) in p.iter_mut().zip(&slopes) {
            *p *= 2.0 * (s - along) / elements;
        }
    }
    loss / f64::from(elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::parameters::random;

    /// Points in the plane: two linearly separable classes, or four quadrants in two classes.
    fn points(quadrants: bool) -> (Vec<f32>, Vec<u32>) {
        let x = random(800, 1.0, 5, 1);
        let class = |p: &[f32]| {
            if quadrants {
                u32::from(p[0] * p[1] > 0.0)
            } else {
                u32::from(p[0] + p[1] > 0.1)
            }
        };
        let labels = x.chunks_exact(2).map(class).collect();
        (x, labels)
    }

    fn accuracy(quadrants: bool, hidden: &[usize]) -> f64 {
        let (x, labels) = points(quadrants);
        let texts = Embedded {
            first: &x,
            second: None,
            width: 2,
        };
        let rows: Vec<u32> = (0..400).collect();
        let part = |rows| Examples {
            texts,
            labels: &labels,
            rows,
        };
        let options = FitOptions {
            hidden: hidden.to_vec(),
            learning_rate: 0.02,
            ..FitOptions::default()
        };
        let (train, dev, test) = (
            part(&rows[..250]),
            part(&rows[250..300]),
            part(&rows[300..]),
        );
        let fit = || {
            let measure = |c: &Classifier| c.accuracy(dev);
            Classifier::fit(train, 2, Target::Labels, &options, &measure).unwrap()
        };
        let fitted = fit();
        assert_eq!(fit().predict(texts, &rows), fitted.predict(texts, &rows));
        fitted.accuracy(test)
    }

    #[test]
    fn a_line_is_found_and_quadrants_need_a_hidden_layer() {
        let line = accuracy(false, &[]);
        assert!(line > 0.95, "{line}");
        let linear = accuracy(true, &[]);
        assert!(linear < 0.75, "{linear}");
        let hidden = accuracy(true, &[32]);
        assert!(hidden > 0.9, "{hidden}");
    }

    #[test]
    fn a_loss_that_is_not_finite_is_an_error() {
        let (mut x, labels) = points(false);
        x[7] = f32::NAN;
        let rows: Vec<u32> = (0..400).collect();
        let texts = Embedded {
            first: &x,
            second: None,
            width: 2,
        };
        let train = Examples {
            texts,
            labels: &labels,
            rows: &rows,
        };
        let options = FitOptions::default();
        let error = Classifier::fit(train, 2, Target::Labels, &options, &|_| 0.0).unwrap_err();
        assert!(error.to_string().contains("in epoch 1"), "{error}");
    }

    #[test]
    fn the_slope_of_squares_matches_finite_differences() {
        let mut x = random(6, 1.0, 1, 1);
        let wanted = [0.2, 0.8, 0.0, 0.5, 0.1, 0.4];
        let rows = [1, 0];
        let mut gradient = x.clone();
        squares(&mut gradient, 3, &wanted, &rows);
        for k in 0..x.len() {
            let (value, h) = (x[k], 1e-2);
            let mut at = |offset: f32| {
                x[k] = value + offset;
                squares(&mut x.clone(), 3, &wanted, &rows)
            };
            let slope = (at(h) - at(-h)) / (2.0 * f64::from(h));
            x[k] = value;
            let wrong = (f64::from(gradient[k]) - slope).abs();
            assert!(wrong < 1e-4, "{} {slope}", gradient[k]);
        }
    }
}
