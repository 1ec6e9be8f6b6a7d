//! Regularization of a training step.

/// How a forward pass differs between training and use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Regularization {
    /// Dropout of token embeddings (BiLSTM) or of the pooled embedding (mean).
    pub embedding: f32,
    /// Dropout between the layers of the encoder and before every dense layer.
    pub hidden: f32,
    /// Seed of the masks: the same seed and the same split over threads give the same masks.
    pub seed: u64,
}
