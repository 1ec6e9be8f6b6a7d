// A transformer layer between its products with weights: attention, biases with activations, residual sums with
// layer normalisation, and the pooling of sentences. Each reads its inputs once and writes its outputs once; nothing is
// padded, and no score leaves a multiprocessor.

#include "transformer.cuh"
// By its name alone: the tests have another one.
#include <platform.cuh>

// Older GPUs have no products in bf16; nobody launches these there.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

namespace {

using namespace nvcuda;

using Element = __nv_bfloat16;

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;
// Queries of a block, 16 for each warp, and keys that they meet at a time.
constexpr int ROWS = 16 * WARPS;
constexpr int KEYS = 64;
// Elements between rows in shared memory, so that eight rows lie in different banks; floats likewise.
constexpr int PAD = 8;
constexpr int SCORE_LINE = KEYS + 4;
constexpr int SHARE_LINE = KEYS + PAD;
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

// The attention of one head of a sentence for ROWS of its queries. Keys are met twice, first for the largest score and
// the sum of a query's exponentials, then for its shares of the values: a product costs less than correcting sums for a
// larger score that comes later.
template <int SIZE>
struct Head {
  static constexpr int LINE = SIZE + PAD;

  const Attention<Element>& p;
  const int head, heads, length, first;
  const size_t begin;
  Element *queries, *keys, *values, *shares;
  float* scores;
  // Of the scores and shares: a warp has 16 queries, and two lanes for each.
  const int warp, row, half;

  __device__ Head(const Attention<Element>& p, unsigned char* shared)
      : p(p),
        head(blockIdx.y),
        heads(gridDim.y),
        length(p.offsets[blockIdx.z + 1] - p.offsets[blockIdx.z]),
        first(blockIdx.x * ROWS),
        begin(p.offsets[blockIdx.z]),
        warp(threadIdx.x / 32),
        row(threadIdx.x % 32 / 2),
        half(threadIdx.x % 2) {
    queries = reinterpret_cast<Element*>(shared);
    keys = queries + ROWS * LINE;
    values = keys + KEYS * LINE;
    scores = reinterpret_cast<float*>(values + KEYS * LINE) + warp * 16 * SCORE_LINE;
    shares = reinterpret_cast<Element*>(reinterpret_cast<float*>(values + KEYS * LINE) + ROWS * SCORE_LINE) +
             warp * 16 * SHARE_LINE;
  }

  // Brings rows of one part of the projections, with their bias, to shared memory; zeros behind the sentence's end.
  __device__ void load(Element* to, int part, int from, float scale) {
    constexpr int VECTORS = SIZE / 8;
    for (int i = threadIdx.x; i < KEYS * VECTORS; i += THREADS) {
      const int local = i / VECTORS, column = i % VECTORS * 8;
      Eight vector;
      if (from + local < length) {
        const size_t token = begin + from + local;
        vector = *reinterpret_cast<const Eight*>(p.projected + ((token * 3 + part) * heads + head) * SIZE + column);
        const float* bias = p.bias + (part * heads + head) * SIZE + column;
        for (int k = 0; k < 8; k++) {
          vector.at[k] = __float2bfloat16_rn((__bfloat162float(vector.at[k]) + bias[k]) * scale);
        }
      } else {
        for (int k = 0; k < 8; k++) vector.at[k] = __float2bfloat16_rn(0.0f);
      }
      *reinterpret_cast<Eight*>(to + local * LINE + column) = vector;
    }
  }

  // Scores of the warp's queries and the keys in shared memory.
  __device__ void score() {
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[KEYS / 16];
    for (int j = 0; j < KEYS / 16; j++) wmma::fill_fragment(sum[j], 0.0f);
    for (int k = 0; k < SIZE; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, Element, wmma::row_major> left;
      wmma::load_matrix_sync(left, queries + warp * 16 * LINE + k, LINE);
      for (int j = 0; j < KEYS / 16; j++) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, Element, wmma::col_major> right;
        wmma::load_matrix_sync(right, keys + 16 * j * LINE + k, LINE);
        wmma::mma_sync(sum[j], left, right, sum[j]);
      }
    }
    for (int j = 0; j < KEYS / 16; j++) {
      wmma::store_matrix_sync(scores + 16 * j, sum[j], SCORE_LINE, wmma::mem_row_major);
    }
    __syncwarp();
  }

  // The score of the lane's query and a key of the tile that begins at `from`.
  __device__ float at(int from, int column) const {
    float score = scores[row * SCORE_LINE + column];
    if (p.relative) {
      // Queries behind the end have scores as well, which nobody reads.
      const int query = min(first + warp * 16 + row, length - 1);
      const int distance = from + column - query + static_cast<int>(p.reach) - 1;
      score += p.relative[head * (2 * p.reach - 1) + distance];
    }
    return score;
  }

  __device__ void run() {
    load(queries, 0, first, p.scale);
    float largest = -INFINITY, sum = 0.0f;
    for (int from = 0; from < length; from += KEYS) {
      // The keys of the tile before have been read.
      __syncthreads();
      load(keys, 1, from, 1.0f);
      __syncthreads();
      score();
      const int columns = min(KEYS, length - from);
      float here = -INFINITY;
      for (int c = half; c < columns; c += 2) here = fmaxf(here, at(from, c));
      here = fmaxf(here, __shfl_xor_sync(ALL_LANES, here, 1));
      const float before = largest;
      largest = fmaxf(largest, here);
      sum *= __expf(before - largest);
      for (int c = half; c < columns; c += 2) sum += __expf(at(from, c) - largest);
      // The next tile's scores overwrite these.
      __syncwarp();
    }
    const float share = 1.0f / (sum + __shfl_xor_sync(ALL_LANES, sum, 1));

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> mixed[SIZE / 16];
    for (int j = 0; j < SIZE / 16; j++) wmma::fill_fragment(mixed[j], 0.0f);
    for (int from = 0; from < length; from += KEYS) {
      __syncthreads();
      // Of one tile keys and scores are there.
      const bool again = length > KEYS;
      if (again) load(keys, 1, from, 1.0f);
      load(values, 2, from, 1.0f);
      __syncthreads();
      if (again) score();
      const int columns = min(KEYS, length - from);
      for (int c = half; c < KEYS; c += 2) {
        const float x = c < columns ? __expf(at(from, c) - largest) * share : 0.0f;
        shares[row * SHARE_LINE + c] = __float2bfloat16_rn(x);
      }
      __syncwarp();
      for (int k = 0; k < KEYS; k += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, Element, wmma::row_major> left;
        wmma::load_matrix_sync(left, shares + k, SHARE_LINE);
        for (int j = 0; j < SIZE / 16; j++) {
          wmma::fragment<wmma::matrix_b, 16, 16, 16, Element, wmma::row_major> right;
          wmma::load_matrix_sync(right, values + k * LINE + 16 * j, LINE);
          wmma::mma_sync(mixed[j], left, right, mixed[j]);
        }
      }
      __syncwarp();
    }

    // By way of the scores' memory, as many columns at a time as it has.
    const int query = first + warp * 16 + row;
    constexpr int AT_ONCE = SIZE < KEYS ? SIZE : KEYS;
    for (int column = 0; column < SIZE; column += AT_ONCE) {
      for (int j = 0; j < AT_ONCE / 16; j++) {
        wmma::store_matrix_sync(scores + 16 * j, mixed[column / 16 + j], SCORE_LINE, wmma::mem_row_major);
      }
      __syncwarp();
      if (query < length) {
        Element* to = p.mixed + ((begin + query) * heads + head) * SIZE + column;
        for (int c = half * 8; c < AT_ONCE; c += 16) {
          Eight vector;
          for (int k = 0; k < 8; k++) vector.at[k] = __float2bfloat16_rn(scores[row * SCORE_LINE + c + k]);
          *reinterpret_cast<Eight*>(to + c) = vector;
        }
      }
      __syncwarp();
    }
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
