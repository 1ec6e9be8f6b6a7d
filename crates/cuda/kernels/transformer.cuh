// Arguments of the transformer kernels; `src/transformer/arguments.rs` has the same structs. Tokens are rows, sentence
// after sentence and without padding: sentence s has the rows offsets[s] .. offsets[s + 1].
#pragma once

#include <stdint.h>

enum Activation : uint32_t { IDENTITY = 0, TANH = 1, GELU = 2, GELU_TANH = 3, RELU = 4 };

enum Pooled : uint32_t { FIRST = 0, MEAN = 1, MAX = 2 };

template <typename Element>
struct Attention {
  const Element* projected;  // [tokens, 3, heads, size]: queries, keys and values, their biases not yet added
  const float* bias;         // [3, heads, size]
  const uint32_t* offsets;   // [sentences + 1]
  const float* relative;     // [heads, 2 reach - 1] or null: what a score gets for key - query from 1 - reach on
  Element* mixed;            // [tokens, heads, size]
  float scale;               // of queries
  uint32_t reach;
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

struct Pool {
  const float* states;      // [tokens, width]
  const uint32_t* offsets;  // [sentences + 1]
  float* out;               // [sentences, width]
  uint32_t width;
  uint32_t pooling;
};
