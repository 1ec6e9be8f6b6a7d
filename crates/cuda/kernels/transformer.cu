// A transformer layer between its products with weights: attention, biases with activations, gates, residual sums with
// normalisation, turns by position, and the pooling of sentences. Each reads its inputs once and writes its outputs once; nothing is
// padded, and no score leaves a multiprocessor.

#include "transformer.cuh"
// By its name alone: the tests have another one.
#include <platform.cuh>

// Older GPUs have no products in bf16; nobody launches these there.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

namespace {

using Element = __nv_bfloat16;

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;
// Queries of a block, 16 for each warp.
constexpr int ROWS = 16 * WARPS;
// Elements between rows in shared memory, so that eight rows lie in different banks.
constexpr int PAD = 8;
constexpr uint32_t ALL_LANES = 0xffffffff;

// Elements that are read or written at once: 16 and 8 bytes in bf16.
struct alignas(8 * sizeof(Element)) Eight {
  Element at[8];
};
struct alignas(4 * sizeof(Element)) Four {
  Element at[4];
};
struct alignas(16) Floats {
  float at[4];
};

__device__ inline float sum_of_warp(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(ALL_LANES, x, lane);
  return x;
}

__device__ inline float activate(float x, uint32_t activation) {
  switch (activation) {
    case TANH:
      return tanhf(x);
    case GELU:
      return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case GELU_TANH:
      return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case RELU:
      return fmaxf(x, 0.0f);
    default:
      return x;
  }
}

__device__ inline Pair pair(float x, float y) { return {{__float2bfloat16_rn(x), __float2bfloat16_rn(y)}}; }

// The attention of one head of a sentence for ROWS of its queries (Dao, ICLR 2024). Scores, shares and sums stay in
// the registers of a warp, which has 16 queries: lane 4 i + j has those of the queries i and 8 + i, of two columns of
// each 8 from 2 j on. Biases of keys change all scores of a query alike, so shares do not know them, and shares add up to
// one, so the bias of values is added to what they mix.
template <int SIZE>
struct Head {
  static constexpr int LINE = SIZE + PAD;
  // Keys that queries meet at a time. Of the largest size fewer, for the sake of registers and shared memory.
  static constexpr int KEYS = SIZE > 128 ? 32 : 64;
  // Columns of the values, in parts of up to 64.
  static constexpr int PART = SIZE < 64 ? SIZE / 8 : 8;
  static constexpr int PARTS = SIZE / 8 / PART;

  const Attention<Element>& p;
  const int head, heads, columns, length, first, window;
  const size_t begin;
  Element *queries, *keys, *values;
  // Of the lane: its first query in the sentence, its first column, and whether the warp has queries.
  const int query, column;
  const bool works;

  __device__ Head(const Attention<Element>& p, unsigned char* shared)
      : p(p),
        head(blockIdx.y),
        heads(gridDim.y),
        columns((gridDim.y + 2 * p.shared) * SIZE),
        length(p.offsets[blockIdx.z + 1] - p.offsets[blockIdx.z]),
        first(blockIdx.x * ROWS),
        window(p.window < static_cast<uint32_t>(length) ? p.window : length),
        begin(p.offsets[blockIdx.z]),
        query(first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
        column(threadIdx.x % 4 * 2),
        works(first + static_cast<int>(threadIdx.x) / 32 * 16 < length) {
    queries = reinterpret_cast<Element*>(shared);
    keys = queries + ROWS * LINE;
    values = keys + KEYS * LINE;
  }

  // Queries, with their bias, to shared memory; zeros behind the sentence's end.
  __device__ void load_queries() {
    constexpr int VECTORS = SIZE / 8;
    for (int i = threadIdx.x; i < ROWS * VECTORS; i += THREADS) {
      const int local = i / VECTORS, column = i % VECTORS * 8;
      Eight vector;
      if (first + local < length) {
        vector = *reinterpret_cast<const Eight*>(p.projected + (begin + first + local) * columns + head * SIZE + column);
        const float* bias = p.bias ? p.bias + head * SIZE + column : nullptr;
        for (int k = 0; k < 8; k++) {
          const float x = __bfloat162float(vector.at[k]);
          vector.at[k] = __float2bfloat16_rn((bias ? x + bias[k] : x) * p.scale);
        }
      } else {
        for (int k = 0; k < 8; k++) vector.at[k] = __float2bfloat16_rn(0.0f);
      }
      *reinterpret_cast<Eight*>(queries + local * LINE + column) = vector;
    }
  }

  // Sends for the keys or the values of a tile; zeros behind the sentence's end.
  __device__ void fetch(Element* to, int column, int from) {
    constexpr int VECTORS = SIZE / 8;
    for (int i = threadIdx.x; i < KEYS * VECTORS; i += THREADS) {
      const int local = i / VECTORS, own = i % VECTORS * 8;
      // An address behind the end is not read.
      const bool there = from + local < length;
      const Element* source = p.projected + (begin + (there ? from + local : 0)) * columns + column + own;
      __pipeline_memcpy_async(to + local * LINE + own, source, sizeof(Eight), there ? 0 : sizeof(Eight));
    }
    __pipeline_commit();
  }

  // Scores of the warp's queries and the keys in shared memory.
  __device__ void score(float (&scores)[KEYS / 8][4]) const {
    UNROLL for (int n = 0; n < KEYS / 8; n++) {
      UNROLL for (int k = 0; k < 4; k++) scores[n][k] = 0.0f;
    }
    UNROLL for (int k = 0; k < SIZE; k += 16) {
      Pair left[4], right[KEYS / 8][2];
      load_matrices<LINE>(left, queries + threadIdx.x / 32 * 16 * LINE + k);
      UNROLL for (int n = 0; n < KEYS / 8; n += 2) {
        Pair both[4];
        load_matrices<LINE>(both, keys + n * 8 * LINE + k);
        right[n][0] = both[0];
        right[n][1] = both[2];
        right[n + 1][0] = both[1];
        right[n + 1][1] = both[3];
      }
      multiply(scores, left, right);
    }
  }

  // Adds what scores get by distance, and takes the keys away that a query does not see.
  __device__ void see(float (&scores)[KEYS / 8][4], int from) const {
    const bool whole = from + KEYS <= length && first + ROWS - 1 - from < window && from + KEYS - 1 - first < window;
    if (whole && !p.relative) return;
    const float* relative = p.relative ? p.relative + head * (2 * p.reach - 1) + p.reach - 1 : nullptr;
    UNROLL for (int n = 0; n < KEYS / 8; n++) {
      UNROLL for (int k = 0; k < 4; k++) {
        // Queries behind the end have scores as well, which nobody reads.
        const int own = min(query + k / 2 * 8, length - 1);
        const int key = from + n * 8 + column + k % 2, distance = key - own;
        if (key >= length || distance >= window || -distance >= window) {
          scores[n][k] = -INFINITY;
        } else if (relative) {
          scores[n][k] += relative[distance];
        }
      }
    }
  }

  // Of scores their shares, not yet divided by their sum, beside the largest score so far.
  __device__ void share(float (&scores)[KEYS / 8][4], float (&largest)[2], float (&sum)[2],
                        float (&mixed)[PARTS][PART][4]) const {
    UNROLL for (int row = 0; row < 2; row++) {
      float here = largest[row];
      UNROLL for (int n = 0; n < KEYS / 8; n++) here = fmaxf(here, fmaxf(scores[n][2 * row], scores[n][2 * row + 1]));
      here = fmaxf(here, __shfl_xor_sync(ALL_LANES, here, 1));
      here = fmaxf(here, __shfl_xor_sync(ALL_LANES, here, 2));
      // A query may see no key of its first tiles.
      const float origin = here == -INFINITY ? 0.0f : here;
      const float before = __expf(largest[row] - origin);
      largest[row] = here;
      sum[row] *= before;
      UNROLL for (int part = 0; part < PARTS; part++) {
        UNROLL for (int n = 0; n < PART; n++) {
          mixed[part][n][2 * row] *= before;
          mixed[part][n][2 * row + 1] *= before;
        }
      }
      UNROLL for (int n = 0; n < KEYS / 8; n++) {
        UNROLL for (int k = 2 * row; k < 2 * row + 2; k++) {
          scores[n][k] = __expf(scores[n][k] - origin);
          sum[row] += scores[n][k];
        }
      }
    }
  }

  __device__ void mix(const float (&shares)[KEYS / 8][4], float (&mixed)[PARTS][PART][4]) const {
    UNROLL for (int k = 0; k < KEYS / 8; k += 2) {
      const Pair left[4] = {pair(shares[k][0], shares[k][1]), pair(shares[k][2], shares[k][3]),
                            pair(shares[k + 1][0], shares[k + 1][1]), pair(shares[k + 1][2], shares[k + 1][3])};
      UNROLL for (int part = 0; part < PARTS; part++) {
        Pair right[PART][2];
        UNROLL for (int n = 0; n < PART; n += 2) {
          Pair both[4];
          load_transposed<LINE>(both, values + k * 8 * LINE + (part * PART + n) * 8);
          right[n][0] = both[0];
          right[n][1] = both[1];
          right[n + 1][0] = both[2];
          right[n + 1][1] = both[3];
        }
        multiply(mixed[part], left, right);
      }
    }
  }

  // By way of the queries' memory, of which a warp has read its own.
  __device__ void write(const float (&sum)[2], const float (&mixed)[PARTS][PART][4], int value_column) {
    Element* rows = queries + threadIdx.x / 32 * 16 * LINE;
    const int lane = threadIdx.x % 32;
    UNROLL for (int row = 0; row < 2; row++) {
      float whole = sum[row] + __shfl_xor_sync(ALL_LANES, sum[row], 1);
      whole += __shfl_xor_sync(ALL_LANES, whole, 2);
      const float factor = 1.0f / whole;
      UNROLL for (int part = 0; part < PARTS; part++) {
        UNROLL for (int n = 0; n < PART; n++) {
          const int own = (part * PART + n) * 8 + column;
          float x = mixed[part][n][2 * row] * factor, y = mixed[part][n][2 * row + 1] * factor;
          if (p.bias) {
            x += p.bias[value_column + own];
            y += p.bias[value_column + own + 1];
          }
          *reinterpret_cast<Pair*>(rows + (lane / 4 + 8 * row) * LINE + own) = pair(x, y);
        }
      }
    }
    __syncwarp();
    constexpr int VECTORS = SIZE / 8;
    const int above = first + threadIdx.x / 32 * 16;
    for (int i = lane; i < 16 * VECTORS; i += 32) {
      const int local = i / VECTORS, own = i % VECTORS * 8;
      if (above + local < length) {
        *reinterpret_cast<Eight*>(p.mixed + ((begin + above + local) * heads + head) * SIZE + own) =
            *reinterpret_cast<const Eight*>(rows + local * LINE + own);
      }
    }
  }

  __device__ void run() {
    const int key_column = (heads + head / (heads / static_cast<int>(p.shared))) * SIZE;
    const int value_column = key_column + p.shared * SIZE;
    // The tiles that some query of the block sees something of.
    const int start = first < window ? 0 : (first - window + 1) / KEYS * KEYS;
    const int end = min(length, first + ROWS - 1 + window);
    fetch(keys, key_column, start);
    fetch(values, value_column, start);
    load_queries();
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    float mixed[PARTS][PART][4];
    UNROLL for (int part = 0; part < PARTS; part++) {
      UNROLL for (int n = 0; n < PART; n++) {
        UNROLL for (int k = 0; k < 4; k++) mixed[part][n][k] = 0.0f;
      }
    }
    for (int from = start; from < end; from += KEYS) {
      float scores[KEYS / 8][4];
      // The keys are there; the values, sent for later, may not be.
      __pipeline_wait_prior(1);
      __syncthreads();
      if (works) score(scores);
      __syncthreads();
      // An empty group where there is no next tile keeps the count.
      if (from + KEYS < end) fetch(keys, key_column, from + KEYS);
      else __pipeline_commit();
      if (works) {
        see(scores, from);
        share(scores, largest, sum, mixed);
      }
      __pipeline_wait_prior(1);
      __syncthreads();
      if (works) mix(scores, mixed);
      __syncthreads();
      if (from + KEYS < end) fetch(values, value_column, from + KEYS);
      else __pipeline_commit();
    }
    if (works) write(sum, mixed, value_column);
  }
};

// The grid is (tiles of queries, heads, sentences).
template <int SIZE>
__device__ void attention(const Attention<Element>& p) {
  DYNAMIC_SHARED(shared);
  Head<SIZE> head(p, shared);
  if (head.first < head.length) head.run();
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) transformer_attention_32(Attention<Element> p) {
  attention<32>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS) transformer_attention_64(Attention<Element> p) {
  attention<64>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS) transformer_attention_128(Attention<Element> p) {
  attention<128>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS) transformer_attention_256(Attention<Element> p) {
  attention<256>(p);
}

// The grid is (tiles of a sentence's heads, sentences); a warp has a head of a token, and a lane four of its pairs.
extern "C" __global__ void __launch_bounds__(THREADS) transformer_turn(Turn<Element> p) {
  const uint32_t begin = p.offsets[blockIdx.y], length = p.offsets[blockIdx.y + 1] - begin;
  const uint32_t heads = p.heads + 2 * p.shared, unit = blockIdx.x * WARPS + threadIdx.x / 32;
  const uint32_t place = unit / heads, head = unit % heads;
  if (place >= length) return;
  const int half = p.size / 2, at = threadIdx.x % 32 * 4;
  const bool works = at < half;
  const size_t row = ((begin + place) * static_cast<size_t>(heads) + head) * p.size;
  Four low = {}, high = {};
  if (works) {
    low = *reinterpret_cast<const Four*>(p.projected + row + at);
    high = *reinterpret_cast<const Four*>(p.projected + row + half + at);
  }
  if (head < p.heads + p.shared) {
    float x[4], y[4], squares = 0.0f;
    for (int k = 0; k < 4; k++) {
      x[k] = __bfloat162float(low.at[k]);
      y[k] = __bfloat162float(high.at[k]);
      squares += x[k] * x[k] + y[k] * y[k];
    }
    const bool asks = head < p.heads;
    const float factor = 1.0f / sqrtf(sum_of_warp(squares) / p.size + p.epsilon) * (asks ? p.scale : 1.0f);
    const float* weight = asks ? p.query : p.key;
    if (works) {
      const Floats cosines = *reinterpret_cast<const Floats*>(p.cosines + (size_t)place * half + at);
      const Floats sines = *reinterpret_cast<const Floats*>(p.sines + (size_t)place * half + at);
      for (int k = 0; k < 4; k++) {
        x[k] *= factor * weight[at + k];
        y[k] *= factor * weight[half + at + k];
        low.at[k] = __float2bfloat16_rn(x[k] * cosines.at[k] - y[k] * sines.at[k]);
        high.at[k] = __float2bfloat16_rn(x[k] * sines.at[k] + y[k] * cosines.at[k]);
      }
    }
  }
  if (works) {
    *reinterpret_cast<Four*>(p.out + row + at) = low;
    *reinterpret_cast<Four*>(p.out + row + half + at) = high;
  }
}

// A thread has eight elements.
extern "C" __global__ void __launch_bounds__(THREADS) transformer_activate(Activate<Element> p) {
  const size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * 8;
  if (at >= (size_t)p.rows * p.width) return;
  const float* bias = p.bias + at % p.width;
  Eight vector = *reinterpret_cast<const Eight*>(p.product + at);
  for (int k = 0; k < 8; k++) {
    vector.at[k] = __float2bfloat16_rn(activate(__bfloat162float(vector.at[k]) + bias[k], p.activation));
  }
  *reinterpret_cast<Eight*>(p.out + at) = vector;
}

// A thread has eight elements.
extern "C" __global__ void __launch_bounds__(THREADS) transformer_gate(Gate<Element> p) {
  const size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * 8;
  if (at >= (size_t)p.rows * p.width) return;
  const Element* gate = p.product + at / p.width * 2 * p.width + at % p.width;
  const Eight gates = *reinterpret_cast<const Eight*>(gate);
  Eight vector = *reinterpret_cast<const Eight*>(gate + p.width);
  for (int k = 0; k < 8; k++) {
    const float share = activate(__bfloat162float(gates.at[k]), p.activation);
    vector.at[k] = __float2bfloat16_rn(share * __bfloat162float(vector.at[k]));
  }
  *reinterpret_cast<Eight*>(p.out + at) = vector;
}

// A warp has a row, and each lane keeps its part of the sums in shared memory.
extern "C" __global__ void __launch_bounds__(THREADS) transformer_normalize(Normalize<Element> p) {
  DYNAMIC_SHARED(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const size_t row = (size_t)blockIdx.x * WARPS + warp;
  if (row >= p.rows) return;
  const int width = p.width;
  float* sums = reinterpret_cast<float*>(shared) + warp * width;
  float total = 0.0f;
  for (int c = lane * 4; c < width; c += 32 * 4) {
    Floats x = *reinterpret_cast<const Floats*>(p.stream + row * width + c);
    if (p.product) {
      const Four product = *reinterpret_cast<const Four*>(p.product + row * width + c);
      const Floats bias = *reinterpret_cast<const Floats*>(p.bias + c);
      for (int k = 0; k < 4; k++) x.at[k] += __bfloat162float(product.at[k]) + bias.at[k];
    }
    for (int k = 0; k < 4; k++) total += x.at[k];
    *reinterpret_cast<Floats*>(sums + c) = x;
  }
  const float mean = sum_of_warp(total) / width;
  float squares = 0.0f;
  for (int c = lane * 4; c < width; c += 32 * 4) {
    for (int k = 0; k < 4; k++) squares += (sums[c + k] - mean) * (sums[c + k] - mean);
  }
  const float factor = 1.0f / sqrtf(sum_of_warp(squares) / width + p.epsilon);
  for (int c = lane * 4; c < width; c += 32 * 4) {
    Floats x = *reinterpret_cast<const Floats*>(sums + c);
    const Floats weight = *reinterpret_cast<const Floats*>(p.weight + c);
    const Floats shift = *reinterpret_cast<const Floats*>(p.shift + c);
    Floats normalized;
    Four out;
    for (int k = 0; k < 4; k++) {
      normalized.at[k] = (x.at[k] - mean) * factor * weight.at[k] + shift.at[k];
      out.at[k] = __float2bfloat16_rn(normalized.at[k]);
    }
    *reinterpret_cast<Floats*>(p.kept + row * width + c) = p.normalized ? normalized : x;
    *reinterpret_cast<Four*>(p.out + row * width + c) = out;
  }
}

// As transformer_normalize.
extern "C" __global__ void __launch_bounds__(THREADS) transformer_root_normalize(RootNormalize<Element> p) {
  DYNAMIC_SHARED(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const size_t row = (size_t)blockIdx.x * WARPS + warp;
  if (row >= p.rows) return;
  const int width = p.width;
  float* sums = reinterpret_cast<float*>(shared) + warp * width;
  float factor = 0.0f;
  if (p.product) {
    float squares = 0.0f;
    for (int c = lane * 4; c < width; c += 32 * 4) {
      const Four product = *reinterpret_cast<const Four*>(p.product + row * width + c);
      Floats x;
      for (int k = 0; k < 4; k++) {
        x.at[k] = __bfloat162float(product.at[k]);
        squares += x.at[k] * x.at[k];
      }
      *reinterpret_cast<Floats*>(sums + c) = x;
    }
    factor = 1.0f / sqrtf(sum_of_warp(squares) / width + p.epsilon);
  }
  float squares = 0.0f;
  for (int c = lane * 4; c < width; c += 32 * 4) {
    Floats x = *reinterpret_cast<const Floats*>(p.stream + row * width + c);
    if (p.product) {
      const Floats product = *reinterpret_cast<const Floats*>(sums + c);
      const Floats inner = *reinterpret_cast<const Floats*>(p.inner + c);
      for (int k = 0; k < 4; k++) x.at[k] += product.at[k] * factor * inner.at[k];
    }
    for (int k = 0; k < 4; k++) squares += x.at[k] * x.at[k];
    *reinterpret_cast<Floats*>(sums + c) = x;
  }
  factor = 1.0f / sqrtf(sum_of_warp(squares) / width + p.epsilon);
  for (int c = lane * 4; c < width; c += 32 * 4) {
    const Floats x = *reinterpret_cast<const Floats*>(sums + c);
    const Floats weight = *reinterpret_cast<const Floats*>(p.weight + c);
    Floats normalized;
    Four out;
    for (int k = 0; k < 4; k++) {
      normalized.at[k] = x.at[k] * factor * weight.at[k];
      out.at[k] = __float2bfloat16_rn(normalized.at[k]);
    }
    *reinterpret_cast<Floats*>(p.kept + row * width + c) = p.normalized ? normalized : x;
    *reinterpret_cast<Four*>(p.out + row * width + c) = out;
  }
}

// The grid is (THREADS columns, sentences).
extern "C" __global__ void __launch_bounds__(THREADS) transformer_pool(Pool p) {
  const uint32_t column = blockIdx.x * THREADS + threadIdx.x;
  if (column >= p.width) return;
  const uint32_t begin = p.offsets[blockIdx.y], end = p.offsets[blockIdx.y + 1];
  const float* states = p.states + column;
  float pooled = states[(size_t)begin * p.width];
  if (p.pooling != FIRST) {
    for (size_t row = begin + 1; row < end; row++) {
      const float state = states[row * p.width];
      pooled = p.pooling == MAX ? fmaxf(pooled, state) : pooled + state;
    }
  }
  if (p.pooling == MEAN) pooled /= end - begin;
  p.out[(size_t)blockIdx.y * p.width + column] = pooled;
}

#endif
