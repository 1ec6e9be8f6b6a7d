// Arguments of the transformer kernels; `src/transformer/arguments.rs` has the same structs. Tokens are rows, sentence
// after sentence and without padding: sentence s has the rows offsets[s] .. offsets[s + 1].
#pragma once

#include <stdint.h>

enum Activation : uint32_t { IDENTITY = 0, TANH = 1, GELU = 2, GELU_TANH = 3, RELU = 4 };

enum Pooled : uint32_t { FIRST = 0, MEAN = 1, MAX = 2 };

template <typename Element>
struct Attention {
  const Element* projected;  // [tokens, heads + 2 shared, size]: queries, keys and values, their biases not yet added
  const float* bias;         // [heads + 2 shared, size] or null
  const uint32_t* offsets;   // [sentences + 1]
  const float* relative;     // [heads, 2 reach - 1] or null: what a score gets for key - query from 1 - reach on
  Element* mixed;            // [tokens, heads, size]
  float scale;               // of queries
  uint32_t reach;
  uint32_t shared;  // keys of a token, and values, each for heads / shared neighbouring queries
  uint32_t window;  // a query meets the keys that are fewer than this many tokens away
};

// Norms of queries and keys, by the root of their mean square, which the angles of their token's place turn.
template <typename Element>
struct Turn {
  const Element* projected;  // [tokens, heads + 2 shared, size]
  const float* query;        // [size]: weights of the norms
  const float* key;          // [size]
  const float* cosines;      // [places, size / 2]
  const float* sines;        // [places, size / 2]
  const uint32_t* offsets;   // [sentences + 1]
  Element* out;              // as projected, the values as they were
  uint32_t heads;
  uint32_t shared;
  uint32_t size;
  float scale;  // of queries
  float epsilon;
};

template <typename Element>
struct Activate {
  const Element* product;  // [rows, width]
  const float* bias;       // [width]
  Element* out;            // [rows, width]
  uint32_t rows;
  uint32_t width;
  uint32_t activation;
};

// out = activation(gate) up
template <typename Element>
struct Gate {
  const Element* product;  // [rows, 2, width]: gates, then what they let through
  Element* out;            // [rows, width]
  uint32_t rows;
  uint32_t width;
  uint32_t activation;
};

// out = norm(stream + product + bias)
template <typename Element>
struct Normalize {
  const float* stream;     // [rows, width]
  const Element* product;  // [rows, width] or null
  const float* bias;       // [width] if product is not null
  const float* weight;     // [width]
  const float* shift;      // [width]
  float* kept;             // [rows, width]: the sum, or its norm if `normalized`
  Element* out;            // [rows, width]
  uint32_t rows;
  uint32_t width;
  float epsilon;
  uint32_t normalized;
};

// out = norm(stream + norm(product)), by the root of the mean square
template <typename Element>
struct RootNormalize {
  const float* stream;     // [rows, width]
  const Element* product;  // [rows, width] or null
  const float* inner;      // [width] if product is not null: weights of its norm
  const float* weight;     // [width]
  float* kept;             // [rows, width]: the sum, or its norm if `normalized`
  Element* out;            // [rows, width]
  uint32_t rows;
  uint32_t width;
  float epsilon;
  uint32_t normalized;
};

struct Pool {
  const float* states;      // [tokens, width]
  const uint32_t* offsets;  // [sentences + 1]
  float* out;               // [sentences, width]
  uint32_t width;
  uint32_t pooling;
};
