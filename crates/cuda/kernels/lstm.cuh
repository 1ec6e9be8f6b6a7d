// Arguments of the LSTM kernels; `src/lstm/arguments.rs` has the same structs. H is `hidden`.
#pragma once

#include <stdint.h>

// How the states of a sentence become one vector.
enum Pooling : uint32_t { NONE = 0, MAX = 1, SUM = 2, LAST = 3 };

// Tokens are rows ordered by step, and within a step by descending length of their sentences:
// step t has the rows offsets[t] .. offsets[t + 1] of the sentences 0, 1, ….
template <typename Element>
struct Forward {
  const Element* products;   // [tokens, 2, 4H]: inputs times their weights, gates i, f, g, o
  const Element* recurrent;  // [2, 4H, H]
  const float* bias;         // [2, 4H]: both biases
  const uint32_t* offsets;   // [steps + 1]
  Element* states;           // [tokens, 2, H]
  float* cell;               // [sentences, 2, H], need not be set
  uint32_t* arrivals;        // [groups, 2], zeros
  float* pooled;             // [sentences, 2, H] if pooling != NONE
  uint32_t* argmax;         // [sentences, 2, H] or null: steps of the maxima
  Element* gates;            // [tokens, 2, 4H] or null: after their non-linearity
  float* cells;              // [tokens, 2, H] or null
  uint32_t hidden;
  uint32_t steps;
  uint32_t pooling;
};

// The backward pass through a layer. Either `d_states` is given or `d_pooled` with `pooling`.
template <typename Element>
struct Backward {
  const Element* recurrent;  // [2, H, 4H]: those of Forward, transposed
  const uint32_t* offsets;   // [steps + 1]
  const Element* gates;      // [tokens, 2, 4H]
  const float* cells;        // [tokens, 2, H]
  const Element* d_states;   // [tokens, 2, H] or null
  const float* d_pooled;     // [sentences, 2, H] or null
  const uint32_t* argmax;   // [sentences, 2, H] if pooling == MAX
  Element* d_products;       // [tokens, 2, 4H]
  float* d_cell;             // [sentences, 2, H], need not be set
  uint32_t* arrivals;        // [groups, 2], zeros
  uint32_t hidden;
  uint32_t steps;
  uint32_t pooling;
};
