// Arguments of the LSTM kernels; `src/lstm/arguments.rs` has the same structs. H is `hidden`,
// D the number of directions, the second dimension of the grid.
#pragma once

#include <stdint.h>

// How the states of a sentence become one vector.
enum Pooling : uint32_t { NONE = 0, MAX = 1, SUM = 2, LAST = 3 };

// Tokens are rows ordered by step, and within a step by descending length of their sentences:
// step t has the rows offsets[t] .. offsets[t + 1] of the sentences 0, 1, ….
template <typename Element>
struct Forward {
  const Element* products;   // [tokens, D, 4H]: inputs times their weights, gates i, f, g, o
  const Element* recurrent;  // [D, 4H, H]
  const float* bias;         // [D, 4H]: both biases
  const uint32_t* offsets;   // [steps + 1]
  Element* states;           // [tokens, D, H]
  float* cell;               // [sentences, D, H], need not be set
  uint32_t* arrivals;        // [groups, D], zeros
  float* pooled;             // [sentences, D, H] if pooling != NONE
  uint32_t* argmax;         // [sentences, D, H] or null: steps of the maxima
  Element* gates;            // [tokens, D, 4H] or null: after their non-linearity
  float* cells;              // [tokens, D, H] or null
  uint32_t hidden;
  uint32_t steps;
  uint32_t pooling;
};

// The backward pass through a layer. Either `d_states` is given or `d_pooled` with `pooling`.
template <typename Element>
struct Backward {
  const Element* recurrent;  // [D, H, 4H]: those of Forward, transposed
  const uint32_t* offsets;   // [steps + 1]
  const Element* gates;      // [tokens, D, 4H]
  const float* cells;        // [tokens, D, H]
  const Element* d_states;   // [tokens, D, H] or null
  const float* d_pooled;     // [sentences, D, H] or null
  const uint32_t* argmax;   // [sentences, D, H] if pooling == MAX
  Element* d_products;       // [tokens, D, 4H]
  float* d_cell;             // [sentences, D, H], need not be set
  uint32_t* arrivals;        // [groups, D], zeros
  uint32_t hidden;
  uint32_t steps;
  uint32_t pooling;
};
