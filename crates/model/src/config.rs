//! `config.json` of a model folder.

use std::borrow::Cow;

use laser_protocol::{Role, valid_folder_name};
use serde::{Deserialize, Serialize};

use crate::ModelError;

pub use laser_kernels::Activation;

/// The version of the model folder format that this crate reads and writes.
pub const FORMAT: u32 = 1;

/// Largest number of dimensions of an embedding (the limit of the SQL type).
pub const MAX_DIMENSIONS: usize = 16_000;

/// Upper bound for widths, depths and counts in a configuration, so that a hostile file cannot
/// make their products overflow.
const MAX_WIDTH: usize = 65_536;

/// Longest prefix in bytes.
const MAX_PREFIX: usize = 4096;

/// The contents of `config.json`. Unknown fields are refused: a model that needs something this
/// version does not know must not be run without it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Format version of the folder, [`FORMAT`].
    pub format: u32,
    /// Name of the model, as users know it.
    pub name: String,
    /// Length of an embedding.
    pub dimensions: usize,
    /// Longest token sequence, special tokens included; longer texts are cut.
    pub max_tokens: usize,
    /// Whether embeddings are scaled to unit L2 norm.
    pub normalize: bool,
    /// Preparation of a text before the tokenizer sees it.
    #[serde(default, skip_serializing_if = "TextConfig::is_default")]
    pub text: TextConfig,
    /// The sentence encoder.
    pub encoder: Architecture,
    /// Dense layers between the encoder and the normalisation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dense: Vec<Dense>,
    /// Sentences on which reduced precision is compared with f32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<String>,
    /// The model that this one builds on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// What the model is for.
    #[serde(default, skip_serializing_if = "Task::is_default")]
    pub task: Task,
    /// What stands before queries and passages.
    #[serde(default, skip_serializing_if = "Prefixes::is_default")]
    pub prefixes: Prefixes,
}

/// What a model is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// It embeds texts.
    #[default]
    Embed,
    /// It scores pairs of a query and a text, which it reads together (a cross-encoder; Nogueira & Cho, 2019,
    /// arXiv:1901.04085): the score is the only dimension of its output, before any activation.
    Rerank,
}

impl Task {
    /// Whether it embeds.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What a model was trained to read before a text, by what the text is ([`Role`]); it comes before
/// [`TextConfig`]. E5 has "query: " and "passage: ".
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prefixes {
    /// Before what is searched for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub query: String,
    /// Before what is searched in.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub passage: String,
}

impl Prefixes {
    /// Whether there are none.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it matters which of the two a text is.
    pub fn differ(&self) -> bool {
        self.query != self.passage
    }

    /// The text that the model reads.
    ///
    /// # Errors
    /// [`ModelError::Undecided`] where it is not known what the text is, and matters.
    pub fn apply<'t>(&self, role: Role, text: &'t str) -> Result<Cow<'t, str>, ModelError> {
        let prefix = match role {
            Role::Plain => "",
            Role::Passage => &self.passage,
            Role::Undecided if self.differ() => return Err(ModelError::Undecided),
            Role::Query | Role::Undecided => &self.query,
        };
        Ok(match prefix {
            "" => Cow::Borrowed(text),
            prefix => Cow::Owned([prefix, text].concat()),
        })
    }
}

/// A model whose tokenizer and token embeddings another one uses, see [`crate::base`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// Name of its folder, beside that of the model.
    pub model: String,
    /// Its fingerprint ([`crate::folder::fingerprint`]), in 64 hexadecimal digits.
    pub fingerprint: String,
}

/// Text preparation, in the order of the fields. What the tokenizer's own normalizer can do (NFKC,
/// lower-casing) belongs into `tokenizer.json`; these are the steps it has no words for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    /// What becomes of characters of the Unicode categories C*.
    pub non_printing: NonPrinting,
    /// Moses punctuation normalisation (`normalize-punctuation.perl`) for this language, for
    /// example "en".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub punctuation: Option<String>,
    /// XML entities that Moses writes (`&apos;`, `&#124;`, …) become characters again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub descape: bool,
    /// Moses tokenisation without escapes (`tokenizer.perl -no-escape`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moses: Option<Moses>,
    /// Words are separated by spaces, with the dictionary in the model folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segmentation: Option<Segmentation>,
    /// Greek letters are romanised.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub romanize_greek: bool,
    /// Full Unicode lower-casing, as Python's `str.lower`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lowercase: bool,
    /// fastBPE merges ("left right" in order of priority) applied to the words of the text; the
    /// pieces reach the tokenizer separated by spaces, all but a word's last marked with `@@`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_bpe: Option<FastBpe>,
}

/// Moses tokenisation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moses {
    /// Language, for example "en": decides about apostrophes and colons.
    pub language: String,
    /// Words after which a full stop does not end a sentence (`nonbreaking_prefix.*`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<String>,
    /// The same, where a number follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numeric_prefixes: Vec<String>,
}

/// Word segmentation, with [`crate::files::DICTIONARY`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Segmentation {
    /// Chinese, as the Python package jieba.
    Jieba,
    /// Japanese, as `mecab -O wakati`.
    Mecab,
}

/// A fastBPE segmentation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FastBpe {
    /// Merges "left right", most frequent first; `</w>` marks the end of a word.
    pub merges: Vec<String>,
    /// Pieces as they occur in the segmented text (`ab@@`, `c`); pieces outside are split again.
    pub vocabulary: Vec<String>,
}

/// Treatment of characters in the Unicode categories C* (control, format, surrogate, private use,
/// unassigned).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonPrinting {
    /// Left as they are.
    #[default]
    Keep,
    /// Deleted from the text.
    Remove,
    /// Replaced by a space.
    Space,
}

impl TextConfig {
    /// Whether texts reach the tokenizer unchanged.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The architecture of the encoder and its sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "architecture", rename_all = "snake_case")]
pub enum Architecture {
    /// Mean of token embeddings.
    Mean(MeanConfig),
    /// Stacked LSTM, bidirectional (LASER; Artetxe & Schwenk, TACL 2019, section 3.1) or not.
    Bilstm(BilstmConfig),
    /// Mean of token embeddings with a gated BiLSTM residual, which knows their order.
    ResidualBilstm(ResidualBilstmConfig),
    /// Transformer encoder with learned positions (BERT, LaBSE).
    Transformer(TransformerConfig),
    /// Transformer encoder with rotary positions (EmbeddingGemma).
    RotaryTransformer(RotaryTransformerConfig),
}

/// Mean of token embeddings. Tensors: `embed_tokens.weight` [V, E] and, for weighted pooling,
/// `token_weight` [V].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeanConfig {
    /// Width E of the embedding table.
    pub embedding_size: usize,
    /// How token embeddings are combined.
    pub pooling: MeanPooling,
}

/// Pooling of [`MeanConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeanPooling {
    /// Arithmetic mean.
    Mean,
    /// `sum_i w_i e_i / sum_i w_i` with `w_i = exp(token_weight[id_i])`.
    Weighted,
}

/// Stacked LSTM of D directions, two unless `bidirectional` is false. Tensors: `embed_tokens.weight` [V, E]; for each
/// layer l and, with the suffix `_reverse`, each direction: `lstm.weight_ih_l{l}` [4H, E or DH],
/// `lstm.weight_hh_l{l}` [4H, H], `lstm.bias_ih_l{l}` and `lstm.bias_hh_l{l}` [4H]; gates in the order i, f, g, o.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BilstmConfig {
    /// Width E of the embedding table.
    pub embedding_size: usize,
    /// Width H of one direction; the encoder's output has DH dimensions.
    pub hidden_size: usize,
    /// Stacked layers, 1 to 64; each but the first reads the states of the one before, DH wide.
    pub layers: usize,
    /// Pooling over time.
    pub pooling: BilstmPooling,
    /// Whether `</s>` is appended to every token sequence here (and not by the tokenizer).
    pub append_eos: bool,
    /// Whether every layer also reads from the last token to the first.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub bidirectional: bool,
}

impl BilstmConfig {
    /// What PyTorch adds to the names of each direction's tensors, forward direction first.
    pub fn suffixes(&self) -> &'static [&'static str] {
        if self.bidirectional {
            &["", "_reverse"]
        } else {
            &[""]
        }
    }

    /// Number D of directions.
    pub fn directions(&self) -> usize {
        self.suffixes().len()
    }

    /// Width DH of the states of a layer.
    pub fn output_size(&self) -> usize {
        self.directions() * self.hidden_size
    }

    /// Width of what layer `layer` reads.
    pub fn input_size(&self, layer: usize) -> usize {
        match layer {
            0 => self.embedding_size,
            _ => self.output_size(),
        }
    }
}

/// Pooling of [`BilstmConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BilstmPooling {
    /// Maximum over time of every dimension.
    Max,
    /// Last state of each direction: the forward one after the last token, the backward one after
    /// the first.
    Last,
    /// Mean over time.
    Mean,
}

/// Mean of token embeddings plus a BiLSTM over the same embeddings, behind a gate that training
/// begins at zero (ReZero; Bachlechner et al., UAI 2021): `m + g (P r + b)`, where `m` is what
/// [`MeanConfig`] gives and `r` the pooled states of the BiLSTM. Tensors: those of [`MeanConfig`]
/// and, but for the table, of [`BilstmConfig`]; `gate` [1], `projection.weight` [E, 2H],
/// `projection.bias` [E].
///
/// An input of the BiLSTM is the mean of a token's embedding and of those of the n-grams behind it
/// (`ngrams_from`), weighted as in `m`: a step a token of the text, not one a spelling of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidualBilstmConfig {
    /// Width E of the embedding table and of the output.
    pub embedding_size: usize,
    /// How token embeddings are combined, in `m` and in an input of the BiLSTM.
    pub pooling: MeanPooling,
    /// Width H of one direction.
    pub hidden_size: usize,
    /// Layers of the BiLSTM, 1 to 64, stacked as in [`BilstmConfig`].
    pub layers: usize,
    /// Pooling of the states over time.
    pub state_pooling: BilstmPooling,
    /// Ids from here on are no steps of their own but belong to that of the token before; every
    /// token is a step if there is no such id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ngrams_from: Option<u32>,
}

impl ResidualBilstmConfig {
    /// The mean alone.
    pub fn mean(&self) -> MeanConfig {
        MeanConfig {
            embedding_size: self.embedding_size,
            pooling: self.pooling,
        }
    }

    /// The BiLSTM alone.
    pub fn bilstm(&self) -> BilstmConfig {
        BilstmConfig {
            embedding_size: self.embedding_size,
            hidden_size: self.hidden_size,
            layers: self.layers,
            pooling: self.state_pooling,
            append_eos: false,
            bidirectional: true,
        }
    }

    /// Whether the token at `position` of a sequence begins a step.
    pub fn begins_step(&self, position: usize, id: u32) -> bool {
        position == 0 || self.ngrams_from.is_none_or(|first| id < first)
    }
}

/// BERT-style transformer. Tensors: `embed_tokens.weight` [V, D], `embed_positions.weight`
/// [max_positions, D], `embed_types.weight` [type_vocab_size, D] if there are types (row 0 is for a text, row 1 for the
/// second one of a pair), `embed_norm.weight`/`.bias` [D] with post norm (pre norm: `final_norm.*` after the last
/// layer, and `embed_norm` if present); per layer l, below `layers.{l}.`: `attention.{query,key,
/// value,output}.weight` [D, D] and `.bias`, `attention_norm.*` [D], `feed_forward.up.weight`
/// [F, D], `feed_forward.down.weight` [D, F] with biases, `feed_forward_norm.*` [D].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerConfig {
    /// Model width D.
    pub hidden_size: usize,
    /// Layers of attention and feed-forward network, 1 to 256.
    pub layers: usize,
    /// Attention heads; divides `hidden_size`.
    pub heads: usize,
    /// Width F of the feed-forward layers.
    pub intermediate_size: usize,
    /// Rows of the position table.
    pub max_positions: usize,
    /// Rows of the token type table; 0 if the model has none.
    pub type_vocab_size: usize,
    /// Added to the variance in layer normalisation.
    pub layer_norm_eps: f64,
    /// Activation between the feed-forward matrices.
    pub activation: Activation,
    /// Where layer normalisation stands.
    pub norm: NormPosition,
    /// Pooling over time.
    pub pooling: TransformerPooling,
    /// Row of the position table that belongs to the first token (fairseq keeps the rows up to
    /// the padding id for itself).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub position_offset: usize,
    /// Token embeddings are multiplied by the square root of the width (fairseq).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scale_embedding: bool,
    /// Whether `embed_norm` is applied to the sum of the embedding tables.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub embedding_norm: bool,
    /// What is added to the scores of attention by the distance of two tokens, in all layers alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative_positions: Option<RelativePositions>,
}

/// Biases of attention for buckets of distances (Raffel et al., JMLR 2020, section 2.1; MPNet). Tensor:
/// `relative_positions.weight` [buckets, heads].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelativePositions {
    /// Number of buckets, a multiple of four: one half for what stands before a token and itself, the other
    /// for what stands behind it.
    pub buckets: usize,
    /// Distance from which on all are in one bucket.
    pub max_distance: usize,
}

impl RelativePositions {
    /// The bucket of a key that stands `distance` tokens behind the query: of its half the first part has a
    /// bucket for each distance, the other grows by a constant factor. In the arithmetic of `transformers`,
    /// whose rounding decides where a bucket ends.
    pub fn bucket(self, distance: isize) -> usize {
        let half = self.buckets / 2;
        let side = if distance > 0 { half } else { 0 };
        let (exact, n) = (half / 2, distance.unsigned_abs());
        if n < exact {
            return side + n;
        }
        let range = (self.max_distance as f64 / exact as f64).ln() as f32;
        let grown = (n as f32 / exact as f32).ln() / range * (half - exact) as f32;
        side + (exact + grown as usize).min(half - 1)
    }
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

fn yes() -> bool {
    true
}

/// Position of layer normalisation in a transformer layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPosition {
    /// After the residual sum (BERT).
    Post,
    /// Before each sub-layer, with a final normalisation after the last layer.
    Pre,
}

/// Pooling of [`TransformerConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransformerPooling {
    /// State of the first token.
    Cls,
    /// Maximum over time of every dimension.
    Max,
    /// Mean over time.
    Mean,
}

/// Transformer encoder as Gemma 3 (arXiv:2503.19786) has it when every token sees those behind it as well, as in
/// EmbeddingGemma (arXiv:2509.20354): token embeddings times √D, rotary positions, RMS normalisation before and behind
/// each part of a layer, keys and values that several queries share, and a gate in the feed-forward part. A layer
/// computes `x += norm(attention(norm(x)))`, then `x += norm(W_down (activation(W_gate y) · W_up y))` with
/// `y = norm(x)`. Tensors, without biases: `embed_tokens.weight` [V, D], `final_norm.weight` [D]; per layer l, below
/// `layers.{l}.`: `attention_norm.weight`, `attention_output_norm.weight`, `feed_forward_norm.weight` and
/// `feed_forward_output_norm.weight` [D], `attention.query.weight` [HS, D], `attention.key.weight` and
/// `attention.value.weight` [GS, D], `attention.query_norm.weight` and `attention.key_norm.weight` [S],
/// `attention.output.weight` [D, HS], `feed_forward.gate.weight` and `feed_forward.up.weight` [F, D],
/// `feed_forward.down.weight` [D, F].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotaryTransformerConfig {
    /// Model width D.
    pub hidden_size: usize,
    /// How far attention reaches, layer by layer.
    pub layers: Vec<Reach>,
    /// Queries H of a token.
    pub heads: usize,
    /// Keys G of a token, and values; each is for H / G neighbouring queries.
    pub key_value_heads: usize,
    /// Length S of a query, even.
    pub head_size: usize,
    /// Width F of the feed-forward layers.
    pub intermediate_size: usize,
    /// Longest token sequence.
    pub max_positions: usize,
    /// Added to the mean of squares in normalisation.
    pub rms_norm_eps: f64,
    /// Activation of the gate.
    pub activation: Activation,
    /// What scores of attention are multiplied by: 1/√S, unless a model says otherwise.
    pub score_scale: f64,
    /// Base of the angles of positions in layers that reach everywhere.
    pub rotary_base: f64,
    /// The layers that do not, if there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalAttention>,
    /// Pooling over time.
    pub pooling: TransformerPooling,
}

/// How far the attention of a layer reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// To all tokens.
    Full,
    /// To those of [`LocalAttention`].
    Local,
}

/// Layers of [`Reach::Local`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalAttention {
    /// A token sees itself and those fewer than this many tokens away, on either side.
    pub window: usize,
    /// Base of the angles of positions.
    pub rotary_base: f64,
}

/// A dense layer. Tensors: `dense.{i}.weight` [out, in], `dense.{i}.bias` [out] and, with
/// `layer_norm`, `dense.{i}.norm.weight`/`.bias` [out]. Computes `y = activation(W x + b)`, adds
/// `x` if `residual` (in = out), then normalises if `layer_norm`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// Input width.
    #[serde(rename = "in")]
    pub input: usize,
    /// Output width.
    #[serde(rename = "out")]
    pub output: usize,
    /// Applied to the affine output, element by element.
    pub activation: Activation,
    /// Whether the input is added to the activated output.
    #[serde(default)]
    pub residual: bool,
    /// Whether the result goes through layer normalisation (epsilon 1e-5).
    #[serde(default)]
    pub layer_norm: bool,
}

impl Architecture {
    /// Width of the pooled output.
    pub fn output_size(&self) -> usize {
        match self {
            Self::Mean(c) => c.embedding_size,
            Self::Bilstm(c) => c.output_size(),
            Self::ResidualBilstm(c) => c.embedding_size,
            Self::Transformer(c) => c.hidden_size,
            Self::RotaryTransformer(c) => c.hidden_size,
        }
    }

    /// Width of the token embedding table.
    pub fn embedding_size(&self) -> usize {
        match self {
            Self::Mean(c) => c.embedding_size,
            Self::Bilstm(c) => c.embedding_size,
            Self::ResidualBilstm(c) => c.embedding_size,
            Self::Transformer(c) => c.hidden_size,
            Self::RotaryTransformer(c) => c.hidden_size,
        }
    }

    /// The name in `config.json`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mean(_) => "mean",
            Self::Bilstm(_) => "bilstm",
            Self::ResidualBilstm(_) => "residual_bilstm",
            Self::Transformer(_) => "transformer",
            Self::RotaryTransformer(_) => "rotary_transformer",
        }
    }
}

impl Config {
    /// Parses and validates the contents of a `config.json`.
    pub fn from_json(json: &str) -> Result<Self, ModelError> {
        let config: Self =
            serde_json::from_str(json).map_err(|e| ModelError::Config(e.to_string()))?;
        config.validate()?;
        Ok(config)
    }

    /// The contents of `config.json`.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a configuration has only string keys")
    }

    /// Checks every field and the widths from layer to layer.
    pub fn validate(&self) -> Result<(), ModelError> {
        let fail = |message: String| Err(ModelError::Config(message));
        if self.format != FORMAT {
            return fail(format!(
                "format is {}, but this version reads format {FORMAT}",
                self.format
            ));
        }
        if self.name.is_empty() || self.name.len() > 200 || self.name.contains(['/', '\0']) {
            return fail("name must be 1 to 200 bytes without \"/\"".into());
        }
        if !(1..=MAX_DIMENSIONS).contains(&self.dimensions) {
            return fail(format!(
                "dimensions is {}, must be 1 to {MAX_DIMENSIONS}",
                self.dimensions
            ));
        }
        let range = |name: &str, value: usize, low: usize, high: usize| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(ModelError::Config(format!(
                    "{name} is {value}, must be {low} to {high}"
                )))
            }
        };
        range("max_tokens", self.max_tokens, 3, MAX_WIDTH)?;
        if let Some(base) = &self.base {
            if !valid_folder_name(&base.model) {
                return fail("base.model is not the name of a model".into());
            }
            let digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
            if base.fingerprint.len() != 64 || !base.fingerprint.bytes().all(digit) {
                return fail("base.fingerprint must be 64 hexadecimal digits".into());
            }
        }
        if self.task == Task::Rerank {
            let transformer = matches!(self.encoder, Architecture::Transformer(_));
            let embeds = self.dimensions != 1 || self.normalize || !self.prefixes.is_default();
            if !transformer || embeds || self.base.is_some() {
                return fail(
                    "a model with the task \"rerank\" is a transformer without a base and prefixes, with one \
                     dimension that is not normalized"
                        .into(),
                );
            }
        }
        let Prefixes { query, passage } = &self.prefixes;
        range("length of prefixes.query", query.len(), 0, MAX_PREFIX)?;
        range("length of prefixes.passage", passage.len(), 0, MAX_PREFIX)?;
        match &self.encoder {
            Architecture::Mean(c) => range("embedding_size", c.embedding_size, 1, MAX_WIDTH)?,
            Architecture::Bilstm(c) => {
                range("embedding_size", c.embedding_size, 1, MAX_WIDTH)?;
                range("hidden_size", c.hidden_size, 1, MAX_WIDTH)?;
                range("layers", c.layers, 1, 64)?;
            }
            Architecture::ResidualBilstm(c) => {
                range("embedding_size", c.embedding_size, 1, MAX_WIDTH)?;
                range("hidden_size", c.hidden_size, 1, MAX_WIDTH)?;
                range("layers", c.layers, 1, 64)?;
            }
            Architecture::Transformer(c) => {
                range("hidden_size", c.hidden_size, 1, MAX_WIDTH)?;
                range("layers", c.layers, 1, 256)?;
                range("heads", c.heads, 1, c.hidden_size)?;
                range("intermediate_size", c.intermediate_size, 1, 4 * MAX_WIDTH)?;
                range("max_positions", c.max_positions, 1, 16 * MAX_WIDTH)?;
                range("type_vocab_size", c.type_vocab_size, 0, MAX_WIDTH)?;
                if c.hidden_size % c.heads != 0 {
                    return fail(format!(
                        "hidden_size {} is not a multiple of heads {}",
                        c.hidden_size, c.heads
                    ));
                }
                if !(c.layer_norm_eps.is_finite() && c.layer_norm_eps > 0.0) {
                    return fail("layer_norm_eps must be positive".into());
                }
                if let Some(relative) = &c.relative_positions {
                    range("relative_positions.buckets", relative.buckets, 4, 4096)?;
                    let (low, high) = (relative.buckets / 4 + 1, MAX_WIDTH);
                    range(
                        "relative_positions.max_distance",
                        relative.max_distance,
                        low,
                        high,
                    )?;
                    if !relative.buckets.is_multiple_of(4) {
                        return fail("relative_positions.buckets must be a multiple of 4".into());
                    }
                }
                if self.max_tokens.saturating_add(c.position_offset) > c.max_positions {
                    return fail(format!(
                        "max_tokens {} with position_offset {} does not fit max_positions {}",
                        self.max_tokens, c.position_offset, c.max_positions
                    ));
                }
            }
            Architecture::RotaryTransformer(c) => self.check_rotary(c, range)?,
        }
        let mut width = self.encoder.output_size();
        for (i, dense) in self.dense.iter().enumerate() {
            range(&format!("dense[{i}].out"), dense.output, 1, 4 * MAX_WIDTH)?;
            if dense.input != width {
                return fail(format!(
                    "dense[{i}].in is {}, but the layer before gives {width}",
                    dense.input
                ));
            }
            if dense.residual && dense.input != dense.output {
                return fail(format!("dense[{i}] is residual, but its widths differ"));
            }
            width = dense.output;
        }
        if width != self.dimensions {
            return fail(format!(
                "dimensions is {}, but the last layer gives {width}",
                self.dimensions
            ));
        }
        Ok(())
    }

    /// Checks the fields of a transformer with rotary positions; `range` is that of [`Config::validate`].
    fn check_rotary(
        &self,
        c: &RotaryTransformerConfig,
        range: impl Fn(&str, usize, usize, usize) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let fail = |message: String| Err(ModelError::Config(message));
        range("hidden_size", c.hidden_size, 1, MAX_WIDTH)?;
        range("number of layers", c.layers.len(), 1, 256)?;
        range("head_size", c.head_size, 2, 1024)?;
        range("heads", c.heads, 1, MAX_WIDTH / c.head_size)?;
        range("key_value_heads", c.key_value_heads, 1, c.heads)?;
        range("intermediate_size", c.intermediate_size, 1, 4 * MAX_WIDTH)?;
        range("max_positions", c.max_positions, 1, MAX_WIDTH)?;
        if !c.heads.is_multiple_of(c.key_value_heads) {
            return fail(format!(
                "heads {} is not a multiple of key_value_heads {}",
                c.heads, c.key_value_heads
            ));
        }
        if !c.head_size.is_multiple_of(2) {
            return fail(format!("head_size {} is not even", c.head_size));
        }
        let positive = |name: &str, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(ModelError::Config(format!("{name} must be positive"))),
        };
        positive("rms_norm_eps", c.rms_norm_eps)?;
        positive("score_scale", c.score_scale)?;
        positive("rotary_base", c.rotary_base)?;
        match &c.local {
            Some(local) => {
                range("local.window", local.window, 1, 4 * MAX_WIDTH)?;
                positive("local.rotary_base", local.rotary_base)?;
            }
            None if c.layers.contains(&Reach::Local) => {
                return fail("a layer is \"local\", but local is missing".into());
            }
            None => {}
        }
        if self.max_tokens > c.max_positions {
            return fail(format!(
                "max_tokens {} does not fit max_positions {}",
                self.max_tokens, c.max_positions
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `MPNetEncoder.relative_position_bucket` of transformers gives these from each distance on.
    #[test]
    fn buckets_are_those_of_transformers() {
        for (buckets, max_distance, expected) in [
            (
                32,
                128,
                &[
                    (-600, 15),
                    (-90, 14),
                    (-63, 13),
                    (-45, 12),
                    (-31, 11),
                    (-22, 10),
                    (-15, 9),
                    (-11, 8),
                    (-7, 7),
                    (-6, 6),
                    (-5, 5),
                    (-4, 4),
                    (-3, 3),
                    (-2, 2),
                    (-1, 1),
                    (0, 0),
                    (1, 17),
                    (2, 18),
                    (3, 19),
                    (4, 20),
                    (5, 21),
                    (6, 22),
                    (7, 23),
                    (8, 24),
                    (12, 25),
                    (16, 26),
                    (23, 27),
                    (32, 28),
                    (46, 29),
                    (64, 30),
                    (91, 31),
                ][..],
            ),
            (
                8,
                20,
                &[(-600, 3), (-6, 2), (-1, 1), (0, 0), (1, 5), (2, 6), (7, 7)][..],
            ),
        ] {
            let relative = RelativePositions {
                buckets,
                max_distance,
            };
            let mut found = Vec::new();
            for distance in -600..=600 {
                let bucket = relative.bucket(distance);
                if found.last().is_none_or(|(_, last)| *last != bucket) {
                    found.push((distance, bucket));
                }
            }
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn prefixes_stand_before_texts_that_are_told_apart() {
        let prefixes = |query: &str, passage: &str| Prefixes {
            query: query.into(),
            passage: passage.into(),
        };
        let e5 = prefixes("query: ", "passage: ");
        assert_eq!(e5.apply(Role::Query, "x").unwrap(), "query: x");
        assert_eq!(e5.apply(Role::Passage, "x").unwrap(), "passage: x");
        assert_eq!(e5.apply(Role::Plain, "x").unwrap(), "x");
        assert!(matches!(
            e5.apply(Role::Undecided, "x"),
            Err(ModelError::Undecided)
        ));
        // Which of the two a text is makes no difference.
        let same = prefixes("text: ", "text: ");
        assert_eq!(same.apply(Role::Undecided, "x").unwrap(), "text: x");
        let none = Prefixes::default();
        assert_eq!(none.apply(Role::Undecided, "x").unwrap(), "x");
        assert!(none.is_default() && !none.differ() && e5.differ());
    }

    /// Folders and checkpoints from before there was a choice do not name it.
    #[test]
    fn an_lstm_is_bidirectional_unless_it_says_otherwise() {
        let with = |dimensions: usize, more: &str| {
            Config::from_json(&format!(
                r#"{{"format":1,"name":"t","dimensions":{dimensions},"max_tokens":16,"normalize":true,
                "encoder":{{"architecture":"bilstm","embedding_size":3,"hidden_size":4,"layers":2,
                "pooling":"last","append_eos":true{more}}}}}"#
            ))
        };
        for (dimensions, more, named) in [
            (8, "", false),
            (8, r#","bidirectional":true"#, false),
            (4, r#","bidirectional":false"#, true),
        ] {
            let config = with(dimensions, more).expect("valid");
            assert_eq!(config.to_json().contains("bidirectional"), named, "{more}");
            assert_eq!(Config::from_json(&config.to_json()).expect("valid"), config);
        }
        let error = with(8, r#","bidirectional":false"#).unwrap_err();
        assert!(
            error.to_string().contains("the last layer gives 4"),
            "{error}"
        );
        assert!(with(8, r#","directions":1"#).is_err());
    }

    #[test]
    fn rotary_transformers_are_checked() {
        let good = r#"{"format":1,"name":"t","dimensions":6,"max_tokens":16,"normalize":true,"encoder":{
            "architecture":"rotary_transformer","hidden_size":6,"layers":["local","full"],"heads":4,
            "key_value_heads":2,"head_size":8,"intermediate_size":9,"max_positions":16,"rms_norm_eps":1e-6,
            "activation":"gelu_tanh","score_scale":0.0625,"rotary_base":1000000.0,
            "local":{"window":5,"rotary_base":10000.0},"pooling":"mean"}}"#;
        let config = Config::from_json(good).expect("valid");
        assert_eq!(config.encoder.output_size(), 6);
        assert_eq!(Config::from_json(&config.to_json()).expect("valid"), config);
        for (from, to, expected) in [
            ("\"local\",\"full\"", "", "number of layers is 0"),
            ("\"full\"", "\"half\"", "unknown variant `half`"),
            (
                "\"heads\":4",
                "\"heads\":3",
                "not a multiple of key_value_heads 2",
            ),
            (
                "key_value_heads\":2",
                "key_value_heads\":0",
                "key_value_heads is 0",
            ),
            ("head_size\":8", "head_size\":7", "head_size 7 is not even"),
            (
                "head_size\":8",
                "head_size\":4294967296",
                "head_size is 4294967296",
            ),
            ("window\":5", "window\":0", "local.window is 0"),
            (
                "\"local\":{\"window\":5,\"rotary_base\":10000.0},",
                "",
                "local is missing",
            ),
            ("1000000.0", "0", "rotary_base must be positive"),
            ("10000.0", "-1", "local.rotary_base must be positive"),
            ("0.0625", "0", "score_scale must be positive"),
            ("1e-6", "0", "rms_norm_eps must be positive"),
            (
                "max_positions\":16",
                "max_positions\":15",
                "max_tokens 16 does not fit",
            ),
            ("\"pooling\"", "\"causal\":true,\"pooling\"", "causal"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = Config::from_json(&good.replacen(from, to, 1)).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(expected), "{from}, {to}: {error}");
        }
    }

    #[test]
    fn numbers_come_back_as_they_were_written() {
        let with = |eps: &str| {
            format!(
                r#"{{"format":1,"name":"t","dimensions":4,"max_tokens":16,"normalize":true,
                "encoder":{{"architecture":"transformer","hidden_size":4,"layers":1,"heads":2,
                "intermediate_size":8,"max_positions":18,"type_vocab_size":1,
                "layer_norm_eps":{eps},"activation":"gelu","norm":"post","pooling":"mean",
                "position_offset":2,"scale_embedding":true}}}}"#
            )
        };
        for exponent in 1..30 {
            for digits in [1, 7, 123, 98_765, 1_234_567_891] {
                let eps = format!("{digits}e-{}", exponent + 9);
                let config = Config::from_json(&with(&eps)).expect("valid");
                let Architecture::Transformer(encoder) = &config.encoder else {
                    panic!("{:?}", config.encoder)
                };
                let exact: f64 = eps.parse().expect("a number");
                assert_eq!(encoder.layer_norm_eps.to_bits(), exact.to_bits(), "{eps}");
                assert_eq!(Config::from_json(&config.to_json()).expect("valid"), config);
            }
        }
    }
}
